"""A round in which nobody trains: what the engine itself costs, at 4 sites and 1.8 M parameters."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.harness import write
from consilia.datasets.contract import Cases, SiteData
from consilia.engines.inprocess import run_in_process
from consilia.labels import LabelView
from consilia.runs.spec import RunSpec
from consilia.training.local import Trained

SITES = ("one", "two", "three", "four")
ROUNDS = 21  # the first round starts up, the last one is judged
#: Milliseconds a round may take, by what the ledger holds.
GOALS = {"shapes": 60.0, "hashes": 150.0}


def spec_of(ledger: str, checkpoint_every: int) -> RunSpec:
    """Return FedAvg of a U-Net 16-256 at four sites."""
    return RunSpec.model_validate(
        {
            "study": "noop",
            "federation": {
                "name": "noop",
                "task": "segmentation",
                "labels": ["lesion"],
                "image": {"size": [32, 32]},
                "site": [{"name": name, "data": "made"} for name in SITES],
            },
            "rounds": ROUNDS,
            "learner": {"network": "unet-fedlppa"},
            "evaluate": {"every": 100_000, "pictures": 0},
            "engine": {
                "checkpoint_every": checkpoint_every,
                "device": "cpu",
                "threads": 1,
                "ledger": ledger,
            },
        }
    )


def made() -> SiteData:
    """Return a site with two images, which nobody looks at."""
    truth = np.ones((2, 32, 32), dtype=np.uint8)
    cases = Cases(np.zeros((2, 1, 32, 32), dtype=np.uint8), truth, ("a", "b"), ("a", "b"))
    return SiteData(cases, LabelView(truth, np.ones((2, 1), dtype=bool)), None, cases)


def rounds_of(spec: RunSpec) -> tuple[list[float], list[float]]:
    """Return the wall and the processor milliseconds of each round but the first and the last."""
    wall, work = [], []

    def listen(line: object) -> None:
        wall.append(time.perf_counter())
        work.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        sites = {name: made() for name in SITES}
        with patch("consilia.methods.averaging.train_locally", lambda *_, **__: Trained(0.5, 1, 2)):
            run_in_process(spec, path / "run", data=path, sites=sites, listeners=(listen,))
    return tuple((1000 * np.diff(times)[:-1]).tolist() for times in (wall, work))


def main(repeats: int = 3) -> None:
    """Print and write the cost of a round; the kinds take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    given = parser.parse_args()
    if given.profile:
        profiler = cProfile.Profile()
        profiler.enable()
        rounds_of(spec_of("shapes", 100_000))
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
        return
    kinds = {
        "shapes": ("shapes", 100_000),
        "hashes": ("hashes", 100_000),
        "shapes, a checkpoint every 5 rounds": ("shapes", 5),
    }
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, chosen in kinds.items():
            wall, work = rounds_of(spec_of(*chosen))
            middle = statistics.mean if chosen[1] < ROUNDS else statistics.median
            found[kind].append((middle(wall), middle(work)))
    rows = {}
    for kind, pairs in found.items():
        wall, work = ([pair[i] for pair in pairs] for i in (0, 1))
        rows[kind] = {
            "wall_ms": statistics.median(wall),
            "processor_ms": statistics.median(work),
            "processor_ms_low": min(work),
            "processor_ms_high": max(work),
            "goal_ms": GOALS.get(kind),
        }
        print(
            f"{kind:36s} {rows[kind]['processor_ms']:6.1f} ms of processor "
            f"({min(work):.1f} to {max(work):.1f}), {rows[kind]['wall_ms']:6.1f} ms on the wall"
        )
    write("noop", {"rows": rows, "sites": len(SITES), "rounds": ROUNDS, "repeats": repeats})


if __name__ == "__main__":
    main()
