"""What Flower is told before it is imported: to stay quiet, and to keep its files in our folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: Telemetry, update checks and run-time installs are off; Flower reads these when it is imported.
QUIET: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def quiet(home: Path) -> dict[str, str]:
    """Return the environment of a process that runs or imports Flower."""
    return {**os.environ, **QUIET, "FLWR_HOME": str(home)}


def hush(home: Path) -> None:
    """Prepare this process to import Flower; call it before `consilia.engines.flower` is imported."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ.update(quiet(home))
