"""Machine facts and results: what every benchmark shares."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """Return on what a benchmark ran, without naming the host."""
    return {
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def write(name: str, result: Mapping[str, object]) -> Path:
    """Write a result as JSON with the machine's facts."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return path
