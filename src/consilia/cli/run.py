"""`consilia run`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from consilia.cli.options import (
    AsJson,
    Changes,
    Data,
    MethodName,
    RoundCount,
    Seed,
    Study,
    data_of,
    spec_of,
)
from consilia.cli.show import err, metrics_table, out_json, progress

EXAMPLES = (
    "consilia run phantom-mixed --method fedavg --rounds 10",
    "consilia run phantom-mixed@uul --method fedmix",
    "consilia run run.toml --set training.batch=4 --out runs/small-batches",
)


def run(
    study: Study,
    method: MethodName = None,
    rounds: RoundCount = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder; default runs/STUDY/METHOD-SEED.")
    ] = None,
    changes: Changes = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Train a study with one method; a run that was stopped goes on where it was."""
    spec = spec_of(study, method, rounds, seed, changes)
    folder = out or Path("runs") / spec.study / spec.run_name
    from consilia.engines.inprocess import run_in_process
    from consilia.runs.track import trackers

    with (
        progress(f"{spec.study} {spec.method.name}", spec.rounds, quiet=as_json) as bar,
        trackers(spec, folder) as tracked,
    ):
        metrics = run_in_process(spec, folder, data=data_of(study, data), listeners=(bar, *tracked))
    if as_json:
        out_json(metrics)
        return
    metrics_table(metrics)
    typer.echo(f"run      {folder}")
    err(f"`consilia report {quote(str(folder))}` draws it")
