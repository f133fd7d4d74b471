"""How long a user waits: for `consilia --help`, and from `consilia run` to the first trained batch."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import write

HELP = "import sys; sys.argv = ['consilia', '--help']; from consilia.cli.main import main; main()"
#: A run that ends itself when its first batch has been trained.
FIRST = """
import os, sys
import torch
step = torch.optim.Adam.step
def once(*given, **named):
    step(*given, **named)
    os._exit(0)
torch.optim.Adam.step = once
sys.argv = ['consilia', 'run', 'phantom-lesions', '--out', sys.argv[1]]
from consilia.cli.main import main
main()
"""
GOALS = {"--help": 0.3, "run to first batch": 5.0}


def cost(code: str, *given: str) -> tuple[float, float]:
    """Return the seconds on the wall and of the processor that a fresh interpreter takes."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *given], capture_output=True, check=False)
    wall, after = time.perf_counter() - began, os.times()
    work = after.children_user + after.children_system
    return wall, work - before.children_user - before.children_system


def main(repeats: int = 5) -> None:
    """Print and write medians."""
    rows = {}
    for name, code in (("--help", HELP), ("run to first batch", FIRST)):
        found = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                found.append(cost(code, f"{folder}/run"))
        walls, works = zip(*found, strict=True)
        wall, work = statistics.median(walls), statistics.median(works)
        rows[name] = {
            "wall_s": wall,
            "wall_low_s": min(walls),
            "wall_high_s": max(walls),
            "processor_s": work,
            "processor_low_s": min(works),
            "processor_high_s": max(works),
            "goal_s": GOALS[name],
        }
        print(
            f"{name:20s} {wall:6.2f} s on the wall ({min(walls):.2f} to {max(walls):.2f}), "
            f"{work:6.2f} s of processor ({min(works):.2f} to {max(works):.2f})"
        )
    write("startup", {"rows": rows, "repeats": repeats})


if __name__ == "__main__":
    main()
