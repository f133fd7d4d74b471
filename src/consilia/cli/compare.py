"""`consilia compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilia.cli.options import AsJson, Changes, Data, RoundCount, Study, data_of, spec_of
from consilia.cli.show import err, number, out_json, progress, table
from consilia.errors import UsageError

if TYPE_CHECKING:
    from consilia.runs.compare import Comparison


def compare(
    study: Study,
    methods: Annotated[
        str,
        typer.Option(
            "--methods", help="Names, comma-separated; `fedprox:mu=0.1` changes a setting."
        ),
    ] = "local,fedavg,central",
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, comma-separated.")] = "0,1,2",
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Test every method against this one.")
    ] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="Default dice or auroc.")] = None,
    rounds: RoundCount = None,
    out: Annotated[
        Path, typer.Option("--out", help="Where run folders are, as OUT/STUDY/METHOD-SEED.")
    ] = Path("runs"),
    changes: Changes = None,
    data: Data = None,
    only_collect: Annotated[
        bool, typer.Option("--collect", help="Run nothing: compare what is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run several methods and seeds, or take what is there, and compare them honestly.

    Mean ± standard deviation over seeds; bootstrap intervals and paired tests over test patients with
    seeds averaged; p-values Holm-corrected.
    """
    from consilia.engines.inprocess import run_in_process
    from consilia.runs.compare import compare_runs
    from consilia.runs.store import RunFolder, same_run

    folders: dict[str, list[Path]] = {}
    for variant in (part.strip() for part in methods.split(",") if part.strip()):
        name, *settings = variant.split(":")
        own = [f"method.{setting}" for setting in settings]
        for seed in _seeds(seeds):
            spec = spec_of(study, name, rounds, seed, [*(changes or []), *own])
            path = out / spec.study / f"{variant.replace(':', '+')}-{seed}"
            if (path / "metrics.json").is_file() and same_run(RunFolder.open(path).spec(), spec):
                folders.setdefault(variant, []).append(path)
                continue
            if only_collect:
                err(f"no finished run of {variant} with seed {seed} under '{path}'; left out")
                continue
            with progress(f"{variant} seed {seed}", spec.rounds, quiet=as_json) as bar:
                run_in_process(spec, path, data=data_of(study, data), listeners=(bar,))
            folders.setdefault(variant, []).append(path)
    if not folders:
        msg = "there is nothing to compare; name methods and seeds, or leave out --collect"
        raise UsageError(msg)
    task = spec.federation.task
    chosen = metric or ("dice" if task == "segmentation" else "auroc")
    found = compare_runs(folders, chosen, baseline)
    if as_json:
        out_json(found.to_dict())
    else:
        _print(found)


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        msg = f"--seeds {text}: expected whole numbers, comma-separated, for example 0,1,2"
        raise UsageError(msg) from None


def _print(found: Comparison) -> None:
    sites = list(found.rows[0].sites)
    shown = sites if len(sites) <= 8 else []
    columns = ["method", *shown, found.metric, "± std", "95 % interval"]
    if found.baseline is not None:
        columns += [f"− {found.baseline}", "p (Holm)"]
    rows = []
    for row in found.rows:
        low, high = (row.interval.low, row.interval.high) if row.interval else (None, None)
        line = [
            row.method,
            *(number(row.sites[s]) for s in shown),
            number(row.mean),
            number(row.std),
        ]
        line.append(f"{number(low)} to {number(high)}")
        if found.baseline is not None:
            test = row.test
            line += [f"{test.difference:+.3f}", _p(row.p_holm)] if test else ["–", "–"]
        rows.append(line)
    seeds = ", ".join(map(str, found.rows[0].seeds))
    note = (
        f"selection {found.selection}; {found.rounds} rounds; seeds {seeds}; intervals and tests over test "
        "patients, seeds averaged"
    )
    table(f"{found.study}: {found.metric}", columns, rows, note)


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"
