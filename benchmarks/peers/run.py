"""The same FedAvg under other frameworks: `python -m benchmarks.peers.run` (makes their environments).

Each framework gets an environment of its own under `benchmarks/.peers`, which borrows PyTorch from the
project's: nothing of theirs is installed in ours. They take turns; a round is timed on the wall and by
what all processes of a run have worked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import write
from benchmarks.peers.work import MARKER

ROOT = Path(__file__).parent.parent.parent
HOMES = ROOT / "benchmarks" / ".peers"
#: The framework's module here, and what to install for it; nothing for what runs in our environment.
PEERS: dict[str, tuple[str, str | None]] = {
    "bare PyTorch": ("bare", None),
    "consilia": ("ours", None),
    "pfl": ("pfl_", "pfl==0.6.0"),
    "nvflare": ("nvflare_", "nvflare==2.9.0"),
    "flower": ("flower", "flwr[simulation]==1.41.0"),
}

#: What glibc keeps of freed memory, for all alike; our engine asks for the same where nobody has.
KEPT = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


def python_of(name: str, package: str | None) -> Path:
    """Return the interpreter of a framework's environment, making it where there is none."""
    if package is None:
        return Path(sys.executable)
    home = HOMES / name
    python = home / "bin" / "python"
    if not (home / ".made").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pinned = (
            HOMES / "constraints.txt"
        )  # our torch and numpy, which it borrows; the rest is its own
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        pinned.write_text("".join(f"{p}\n" for p in pins if p.startswith(("torch==", "numpy=="))))
        install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(pinned), package]
        subprocess.run(install, cwd=ROOT, check=True)
        (folder,) = home.glob("lib/python*/site-packages")
        (folder / "zz_borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        (home / ".made").touch()
    return python


def rounds_of(name: str, noop: bool, limit: float) -> list[tuple[float, float]]:
    """Return the wall and processor seconds of a framework's rounds; raise where it fails."""
    module, package = PEERS[name]
    command = [str(python_of(name, package)), "-m", f"benchmarks.peers.{module}"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        **KEPT,
        MARKER: f"{os.getpid()}-{time.monotonic_ns()}",
    }
    done = subprocess.run(
        [*command, *(["--noop"] if noop else [])],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit,
        check=True,
    )
    told: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return list(zip(told["seconds"], told["processor"], strict=True))


def main() -> None:
    """Print and write the time of a round under each framework."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noop", action="store_true", help="nobody trains: the framework alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one run")
    parser.add_argument("--only", choices=tuple(PEERS), nargs="+", default=list(PEERS))
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in given.only}
    failed: dict[str, str] = {}
    for _ in range(given.repeats):
        for name in given.only:
            try:
                found[name] += rounds_of(name, given.noop, given.limit)
            except (subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
                failed[name] = f"{type(error).__name__}: {error}"[:300]
    rows: dict[str, Any] = {}
    for name, each in found.items():
        if not each:
            print(f"{name:14s} not measured: {failed.get(name, 'no rounds')}")
            continue
        wall, work = zip(*each, strict=True)
        rows[name] = {
            "wall_s": statistics.median(wall),
            "wall_low_s": min(wall),
            "wall_high_s": max(wall),
            "processor_s": statistics.median(work),
            "processor_low_s": min(work),
            "processor_high_s": max(work),
        }
        middle, low, high = (1000 * f(work) for f in (statistics.median, min, max))
        busy = f", {middle:.0f} ms of processor ({low:.0f} to {high:.0f})"
        print(
            f"{name:14s} {1000 * rows[name]['wall_s']:8.0f} ms a round ({1000 * min(wall):.0f} to "
            f"{1000 * max(wall):.0f}, {len(each)} rounds){busy}"
        )
    result = {"rows": rows, "failed": failed, "trains": not given.noop, "repeats": given.repeats}
    write("peers-noop" if given.noop else "peers", result)


if __name__ == "__main__":
    main()
