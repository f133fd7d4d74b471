"""From 4 to 1,000 sites on one machine: time per site and memory beyond the data should stay flat.

Memory is measured with each number of sites in a process of its own. Time is measured with all of them in
one process that takes turns: rounds of 4 sites, then rounds of 16 sites and so on, as many as make a similar
span, several times over. So what the machine does for others meets all of them alike. Each turn is
compared with the turns of the smallest federation before and after it.

`--engine` leaves the training out, so that only what the engine itself does is timed: a stricter
question, answered sooner.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.harness import write

COUNTS = (4, 16, 64, 256, 1000)
IMAGES, SIZE = 8, 32
#: A turn holds so many rounds of one site, or one round where there are more sites.
TURN = 128
NETWORK = "unet-fedlppa"


def made_run(count: int, rounds: int, network: str) -> tuple[Any, dict[str, Any]]:
    """Return a FedAvg run over so many sites, and their data."""
    from consilia.datasets.contract import Cases, SiteData
    from consilia.labels import LabelView
    from consilia.runs.spec import RunSpec

    rng = np.random.default_rng(0)
    names = [f"site-{i:04d}" for i in range(count)]
    spec = RunSpec.model_validate(
        {
            "study": "scale",
            "federation": {
                "name": "scale",
                "task": "segmentation",
                "labels": ["lesion"],
                "image": {"size": [SIZE, SIZE]},
                "site": [{"name": name, "data": "made"} for name in names],
            },
            "rounds": rounds,
            "learner": {"network": network},
            "training": {"batch": 8},
            "evaluate": {"every": 100_000, "pictures": 0},
            "engine": {
                "checkpoint_every": 100_000,
                "memory_mib": 64,
                "device": "cpu",
                "threads": 1,
            },
        }
    )

    def site() -> SiteData:
        image = rng.integers(0, 255, (IMAGES, 1, SIZE, SIZE)).astype(np.uint8)
        truth = (rng.random((IMAGES, SIZE, SIZE)) > 0.5).astype(np.uint8)
        cases = Cases(image, truth, *[tuple(map(str, range(IMAGES)))] * 2)
        known = np.ones((IMAGES, 1), dtype=bool)
        return SiteData(cases, LabelView(truth, known), None, cases.take(np.arange(1)))

    return spec, {name: site() for name in names}


def run(count: int, rounds: int, network: str, listener: Callable[[dict[str, Any]], None]) -> None:
    """Run FedAvg on so many sites in this process."""
    from consilia.engines.inprocess import run_in_process

    spec, sites = made_run(count, rounds, network)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        run_in_process(spec, path / "run", data=path, sites=sites, listeners=(listener,))


def untrained() -> AbstractContextManager[Any]:
    """Leave the training out of every round."""
    from consilia.training.local import Trained

    instead = lambda *_, **__: Trained(0.5, 1, IMAGES)  # noqa: E731 - one line of a benchmark
    return patch("consilia.methods.averaging.train_locally", instead)


def memory(count: int, network: str) -> float:
    """Return the peak of memory beyond the data in MiB, over two rounds."""
    import psutil

    process, seen, ended = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            seen[0] = max(seen[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    run(count, 2, network, lambda line: None)
    ended.set()
    watcher.join()
    return (seen[0] - count * IMAGES * SIZE * SIZE * 2) / 2**20


class Turns:
    """A run in a thread of its own that makes some rounds when it is told to, and then waits."""

    def __init__(self, count: int, rounds: int, network: str) -> None:
        self.count = count
        self._left = 0
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        total = rounds + 2  # the first sets everything up, the last is judged: neither is timed
        self._thread = threading.Thread(
            target=self._live, args=(count, total, network), daemon=True
        )

    def start(self) -> None:
        """Make the first round, which sets everything up."""
        self._left = 1
        self._thread.start()
        self._done.acquire()

    def cost(self, rounds: int) -> float:
        """Make so many rounds and return the processor's milliseconds per site and round."""
        self._left = rounds
        began = time.process_time()
        self._go.release()
        self._done.acquire()
        return 1000 * (time.process_time() - began) / rounds / self.count

    def end(self) -> None:
        """Make the last round."""
        self._left = 1 << 30
        self._go.release()
        self._thread.join()

    def _live(self, count: int, rounds: int, network: str) -> None:
        run(count, rounds, network, self._heard)

    def _heard(self, line: dict[str, Any]) -> None:
        self._left -= 1
        if not self._left:
            self._done.release()
            self._go.acquire()


def times(counts: list[int], repeats: int, network: str) -> dict[int, list[tuple[float, float]]]:
    """Return the cost of each turn, and beside it that of the smallest federation around it."""
    small, *others = sorted(counts)
    turns = {small: repeats * len(others) + 1, **dict.fromkeys(others, repeats)}
    runs = {count: Turns(count, many * _rounds(count), network) for count, many in turns.items()}
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in runs}
    for one in runs.values():
        one.start()
    before = runs[small].cost(_rounds(small))
    found[small].append((before, before))
    for count in others * repeats:
        cost = runs[count].cost(_rounds(count))
        after = runs[small].cost(_rounds(small))
        found[count].append((cost, (before + after) / 2))
        found[small].append((after, after))
        before = after
    for one in runs.values():
        one.end()
    return found


def _rounds(count: int) -> int:
    return max(1, TURN // count)


def main() -> None:
    """Measure memory, then time, in processes of their own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("memory", "times"), help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each number of sites")
    parser.add_argument("--engine", action="store_true", help="leave the training out")
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="how many sites")
    given, _ = parser.parse_known_args()
    counts = sorted(given.counts)
    if given.part:
        with untrained() if given.engine else nullcontext():
            if given.part == "memory":
                print(json.dumps(memory(counts[0], given.network)))
            else:
                print(json.dumps(times(counts, given.repeats, given.network)))
        return
    mode = ["--network", given.network, *(["--engine"] if given.engine else [])]
    peaks = [_child("memory", [count], mode) for count in counts]
    turns = _child("times", counts, [*mode, "--repeats", str(given.repeats)])
    rows = []
    for count, peak in zip(counts, peaks, strict=True):
        costs = np.array(turns[str(count)])
        ratios = costs[:, 0] / costs[:, 1]
        row = {
            "sites": count,
            "ms_per_site": float(np.median(costs[:, 0])),
            "time_ratio": float(np.median(ratios)),
            "time_ratio_least": float(ratios.min()),
            "time_ratio_most": float(ratios.max()),
            "peak_mib_beyond_data": peak,
            "memory_ratio": peak / peaks[0],
        }
        rows.append(row)
        print(
            f"{count:5d} sites  {row['ms_per_site']:7.1f} ms per site (x{row['time_ratio']:.2f}; "
            f"{row['time_ratio_least']:.2f} to {row['time_ratio_most']:.2f})  "
            f"{peak:7.0f} MiB beyond the data (x{row['memory_ratio']:.2f})"
        )
    name = "scale-engine" if given.engine else "scale"
    name = name if given.network == NETWORK else f"{name}-{given.network}"
    name = name if tuple(counts) == COUNTS else f"{name}-ends"  # not over the whole table
    write(name, {"rows": rows, "repeats": given.repeats, "network": given.network})


def _child(part: str, counts: list[int], mode: list[str]) -> Any:
    numbers = [str(count) for count in counts]
    command = [sys.executable, "-m", "benchmarks.scale", "--part", part, *mode, "--counts"]
    text = subprocess.run([*command, *numbers], capture_output=True, text=True, check=True).stdout
    return json.loads(text.splitlines()[-1])


if __name__ == "__main__":
    main()
