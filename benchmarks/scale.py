"""From 4 to 1,000 sites on one machine: time per site and memory beyond the data should stay flat.

`--engine` leaves the training out, so that only what the engine itself does is timed: a stricter
question, answered sooner.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import write

COUNTS = (4, 16, 64, 256, 1000)
IMAGES, SIZE, SITE_ROUNDS = 8, 32, 128
NETWORK = "unet-fedlppa"


def measure(count: int, rounds: int, trains: bool, network: str) -> dict[str, float]:
    """Run FedAvg on `count` sites in this process and return cost per site and round, and memory."""
    from contextlib import nullcontext
    from unittest.mock import patch

    import psutil

    from consilia.datasets.contract import Cases, SiteData
    from consilia.engines.inprocess import run_in_process
    from consilia.labels import LabelView
    from consilia.runs.spec import RunSpec
    from consilia.training.local import Trained

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

    sites = {name: site() for name in names}
    process = psutil.Process()
    peak = {"bytes": 0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            peak["bytes"] = max(peak["bytes"], process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    ends = [time.process_time()]
    untrained = patch(
        "consilia.methods.averaging.train_locally", lambda *_, **__: Trained(0.5, 1, IMAGES)
    )
    with tempfile.TemporaryDirectory() as folder, nullcontext() if trains else untrained:
        watcher.start()
        run_in_process(
            spec,
            Path(folder) / "run",
            data=Path(folder),
            sites=sites,
            listeners=(lambda line: ends.append(time.process_time()),),
        )
        ended.set()
        watcher.join()
    rounds_cost = np.diff(ends)[1:-1]  # the first round starts up, the last one is judged
    data = count * IMAGES * SIZE * SIZE * 2
    return {
        "sites": count,
        "ms_per_site": 1000 * float(np.mean(rounds_cost)) / count,
        "peak_mib_beyond_data": (peak["bytes"] - data) / 2**20,
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


def main() -> None:
    """Measure each count in a process of its own, interleaved, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--engine", action="store_true", help="leave the training out")
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="how many sites")
    given, _ = parser.parse_known_args()
    if given.one:
        # A small federation runs more rounds, so that each count is timed over a similar span.
        rounds = max(5, SITE_ROUNDS // given.one + 2)
        trains = not given.engine
        print(json.dumps(measure(given.one, rounds, trains, given.network)))
        return
    mode = ["--network", given.network, *(["--engine"] if given.engine else [])]
    found: dict[int, list[dict[str, float]]] = {count: [] for count in given.counts}
    for _ in range(given.repeats):
        for count in given.counts:
            command = [sys.executable, "-m", "benchmarks.scale", "--one", str(count), *mode]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[count].append(json.loads(text.splitlines()[-1]))
            time.sleep(0.2)
    rows = []
    for count, runs in found.items():
        rows.append({key: float(np.median([run[key] for run in runs])) for key in runs[0]})
        first = rows[0]
        ratio = rows[-1]["ms_per_site"] / first["ms_per_site"]
        memory = rows[-1]["peak_mib_beyond_data"] / first["peak_mib_beyond_data"]
        rows[-1] |= {"time_ratio": ratio, "memory_ratio": memory}
        print(
            f"{count:5d} sites  {rows[-1]['ms_per_site']:7.1f} ms per site (x{ratio:.2f})  "
            f"{rows[-1]['peak_mib_beyond_data']:7.0f} MiB beyond the data (x{memory:.2f})"
        )
    name = "scale-engine" if given.engine else "scale"
    name = name if given.network == NETWORK else f"{name}-{given.network}"
    name = name if tuple(given.counts) == COUNTS else f"{name}-ends"  # not over the whole table
    write(name, {"rows": rows, "repeats": given.repeats, "network": given.network})


if __name__ == "__main__":
    main()
