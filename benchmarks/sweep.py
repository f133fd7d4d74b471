"""Run many studies, methods and seeds side by side, several at a time on one machine.

Small networks do not fill a GPU, so runs share it::

    python -m benchmarks.sweep --out runs --workers 12 phantom-mixed@uul/local,fedst,fedmix/0,1,2

Each job is STUDY/METHODS/SEEDS; runs that are there already are not made again. What comes out are
run folders, which `consilia compare STUDY --collect --out runs` reads on any machine. On a machine that is
lent for a while, `--minutes` ends the sweep in time, and `@FILE` reads jobs and options from a file, so that
what matters most comes first (`benchmarks/queues`)::

    MPS=1 benchmarks/lease.sh python3 -m benchmarks.sweep --minutes 8 @benchmarks/queues/lesions.txt

A run in which something happened to a site (it failed, was dropped or did not answer) is a failed run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from consilia.runs.compare import variant_path
from consilia.runs.spec import RunSpec, parse_changes, read_spec

#: Seconds after which an archive is written anew.
EVERY = 60


class TimeIsUpError(Exception):
    """A run would outlast the sweep."""


class SiteError(Exception):
    """Something happened to a site."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    study: str
    variant: str
    seed: int
    changes: tuple[str, ...]

    def spec(self) -> RunSpec:
        """Return what to run."""
        name, *settings = self.variant.split(":")
        given = {
            "method.name": name,
            "seed": self.seed,
            "engine.threads": 1,
            "engine.checkpoint_every": 100_000,
        }
        own = parse_changes([*self.changes, *(f"method.{setting}" for setting in settings)])
        return read_spec(self.study, {**given, **own})


def make(job: Job, out: str, data: str, until: float) -> tuple[str, float, str]:
    """Make one run; return its folder, its seconds and what went wrong, if anything did."""
    from consilia.engines.inprocess import run_in_process

    spec = job.spec()
    path = variant_path(Path(out), spec, job.variant)
    began = time.perf_counter()

    def watch(line: dict[str, Any]) -> None:
        if line["events"]:
            message = "; ".join(f"{event['site']} {event['event']}" for event in line["events"])
            raise SiteError(message)
        if time.time() > until and line["round"] < spec.rounds:
            message = f"after round {line['round']} of {spec.rounds}"
            raise TimeIsUpError(message)

    if time.time() > until:
        return str(path), 0.0, "TimeIsUpError: before it began"
    try:
        run_in_process(spec, path, data=Path(data), listeners=(watch,))
    except Exception as error:  # a sweep reports a failed run and goes on
        return str(path), time.perf_counter() - began, f"{type(error).__name__}: {error}"
    shutil.rmtree(path / "checkpoints", ignore_errors=True)
    shutil.rmtree(path / "selected", ignore_errors=True)
    return str(path), time.perf_counter() - began, ""


def pack(out: Path, target: Path) -> None:
    """Put the JSON and TOML files of every finished run into one archive; no weights, no pictures."""
    unfinished = target.with_name(f"{target.name}.part")
    with tarfile.open(unfinished, "w:xz") as archive:
        for finished in sorted(out.rglob("metrics.json")):
            for path in sorted(finished.parent.iterdir()):
                if path.suffix in {".json", ".jsonl", ".toml"} and path.name != "ledger.jsonl":
                    archive.add(path, path.relative_to(out))
    unfinished.replace(target)


class Arguments(argparse.ArgumentParser):
    """Reads `@FILE` as words of the command line, with comments."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Return the words of a line."""
        return shlex.split(arg_line, comments=True)


def asked(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line, or these words, ask for; `jobs` as a list of them."""
    parser = Arguments(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("jobs", nargs="+")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--data", default=os.environ.get("CONSILIA_DATA", "."))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--archive", type=Path, help="put the finished runs' JSON and TOML here")
    given = parser.parse_args(words)
    given.jobs = [
        Job(study, variant, int(seed), tuple(given.changes))
        for study, variants, seeds in (text.split("/") for text in given.jobs)
        for variant in variants.split(",")
        for seed in seeds.split(",")
    ]
    return given


def main() -> None:
    """Make every run of the jobs on the command line."""
    given, began = asked(), time.perf_counter()
    until = time.time() + 60 * given.minutes
    packed = began
    try:
        with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
            places = (given.out, given.data, until)
            for done in as_completed([pool.submit(make, job, *places) for job in given.jobs]):
                path, seconds, wrong = done.result()
                now = time.perf_counter()
                print(f"{now - began:6.0f} s  {seconds:6.1f} s  {path}  {wrong}", flush=True)
                if given.archive and now - packed > EVERY:  # whatever happens later comes back
                    pack(Path(given.out), given.archive)
                    packed = time.perf_counter()
    finally:
        if given.archive:
            pack(Path(given.out), given.archive)


if __name__ == "__main__":
    main()
