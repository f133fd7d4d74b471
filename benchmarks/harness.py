"""Interleaved repeats, medians and spread, machine facts: what every benchmark shares."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate over interleaved repeats."""

    name: str
    median: float
    low: float
    high: float
    repeats: int


def interleave(candidates: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Time candidates in turn, so that a noisy neighbour disturbs all alike; one warm-up each."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        order = list(candidates) if turn % 2 else list(reversed(candidates))
        for name in order:
            began = time.perf_counter()
            candidates[name]()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {
        name: Timing(name, statistics.median(times), min(times), max(times), repeats)
        for name, times in seconds.items()
    }


def paired_ratio(
    candidates: Mapping[str, Callable[[], object]], over: str, under: str, repeats: int
) -> tuple[float, float, float, dict[str, Timing]]:
    """Return the median, lowest and highest ratio of two candidates over interleaved pairs."""
    ratios: list[float] = []
    timed: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        took = {}
        for name in candidates if turn % 2 else reversed(list(candidates)):
            began = time.perf_counter()
            candidates[name]()
            took[name] = time.perf_counter() - began
        if turn:
            ratios.append(took[over] / took[under])
            for name, seconds in took.items():
                timed[name].append(seconds)
    timings = {
        name: Timing(name, statistics.median(times), min(times), max(times), repeats)
        for name, times in timed.items()
    }
    return statistics.median(ratios), min(ratios), max(ratios), timings


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


def plain(timings: Mapping[str, Timing]) -> dict[str, object]:
    """Return timings as JSON."""
    return {name: asdict(timing) for name, timing in timings.items()}
