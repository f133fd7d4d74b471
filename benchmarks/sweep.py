"""Run many studies, methods and seeds side by side, several at a time on one machine.

Small networks do not fill a GPU, so runs share it::

    python -m benchmarks.sweep --out runs --workers 12 phantom-mixed@uul/local,fedst,fedmix/0,1,2

Each job is STUDY/METHODS/SEEDS; runs that are there already are not made again. What comes out are
run folders, which `consilia compare STUDY --collect --out runs` reads on any machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from consilia.runs.compare import variant_path
from consilia.runs.spec import parse_changes, read_spec


def job(
    study: str, variant: str, seed: int, out: str, data: str, changes: list[str]
) -> tuple[str, float, str]:
    """Make one run; return its folder, its seconds and what went wrong, if anything did."""
    from consilia.engines.inprocess import run_in_process

    name, *settings = variant.split(":")
    given = {
        "method.name": name,
        "seed": seed,
        "engine.threads": 1,
        "engine.checkpoint_every": 100_000,
    }
    own = parse_changes([*changes, *(f"method.{setting}" for setting in settings)])
    spec = read_spec(study, {**given, **own})
    path = variant_path(Path(out), spec, variant)
    began = time.perf_counter()
    try:
        run_in_process(spec, path, data=Path(data))
    except Exception as error:  # a sweep reports a failed run and goes on
        return str(path), time.perf_counter() - began, f"{type(error).__name__}: {error}"
    shutil.rmtree(path / "checkpoints", ignore_errors=True)
    shutil.rmtree(path / "selected", ignore_errors=True)
    return str(path), time.perf_counter() - began, ""


def pack(out: Path, target: Path) -> None:
    """Put every JSON, TOML and text file of the run folders into one archive; no weights, no pictures."""
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            if (
                path.suffix in {".json", ".jsonl", ".toml"}
                and path.name != "ledger.jsonl"
                and "cases/" not in str(path)
            ):
                archive.add(path, path.relative_to(out))


def main() -> None:
    """Make every run of the jobs on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="+")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--data", default=os.environ.get("CONSILIA_DATA", "."))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    parser.add_argument("--archive", type=Path)
    given = parser.parse_args()
    jobs = [
        (study, variant, int(seed), given.out, given.data, given.changes)
        for study, variants, seeds in (text.split("/") for text in given.jobs)
        for variant in variants.split(",")
        for seed in seeds.split(",")
    ]
    began = time.perf_counter()
    try:
        with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(job, *one) for one in jobs]):
                path, seconds, wrong = done.result()
                print(
                    f"{time.perf_counter() - began:6.0f} s  {seconds:6.1f} s  {path}  {wrong}",
                    flush=True,
                )
    finally:
        if given.archive:
            pack(Path(given.out), given.archive)


if __name__ == "__main__":
    main()
