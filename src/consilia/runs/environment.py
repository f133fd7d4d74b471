"""On what a run was made: versions, and the machine without its name."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import consilia

_PACKAGES = (
    "torch",
    "monai",
    "numpy",
    "scipy",
    "scikit-learn",
    "scikit-image",
    "safetensors",
    "pydantic",
)


def environment(data: Path | None = None, card: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return on what a run was made: versions, machine (no host name), its GPU and where its data was."""
    return {
        "data": None if data is None else str(data.resolve()),
        "consilia": consilia.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        **(card or {}),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
