"""Machine facts and results: what every benchmark shares."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
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


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median of some ratios or seconds with the least, the greatest and their number."""
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "pairs": len(values),
    }


def told(found: Mapping[str, float]) -> str:
    """Return a spread in words: "1.04 (0.98 to 1.12, 7 pairs)"."""
    median, low, high, pairs = (found[key] for key in ("median", "low", "high", "pairs"))
    return f"{median:.3f} ({low:.2f} to {high:.2f}, {pairs:.0f} pairs)"


def write(name: str, result: Mapping[str, object], path: Path | None = None) -> Path:
    """Write a result as JSON with the machine's facts, where told or among the other results."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return path
