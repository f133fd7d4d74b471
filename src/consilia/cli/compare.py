"""`consilia compare`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilia.cli.options import (
    AsJson,
    Changes,
    Data,
    RoundCount,
    Study,
    data_of,
    said_again,
    spec_of,
)
from consilia.cli.show import err, number, out_json, plural, progress, table
from consilia.errors import UsageError

if TYPE_CHECKING:
    from consilia.runs.compare import Comparison
    from consilia.runs.published import PublishedTable
    from consilia.runs.spec import RunSpec

EXAMPLES = (
    "consilia compare phantom-mixed --methods local,fedavg --baseline local",
    "consilia compare phantom-mixed --methods fedavg,fedprox:mu=0.1 --seeds 0,1",
    "consilia compare phantom-mixed --collect --metric hd95",
)


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
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="Compare by this; default dice, or auroc in classification."),
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            "--selection",
            help="Report by another rule than the study's: last_round, last_ten or best_validation.",
        ),
    ] = None,
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

    Mean ± standard deviation over seeds; bootstrap intervals and paired tests
    over test patients with seeds averaged; p-values Holm-corrected. The paper's
    table is printed beside, where a study has one.
    """
    from consilia.engines.inprocess import run_in_process
    from consilia.methods import make_method, refuse_unfit
    from consilia.runs.compare import compare_runs, variant_path
    from consilia.runs.published import read_published

    tables = read_published(study)
    specs = _specs(study, methods, _seeds(seeds), rounds, changes or [])
    chosen = _metric(metric, next(iter(specs.values())), baseline, {v for v, _ in specs})
    _refuse_rule(selection, next(iter(specs.values())))
    for spec in specs.values():  # all is refused before anything trains
        method = make_method(spec.method.name, spec.method.settings)
        refuse_unfit(spec.method.name, method, spec.federation, spec.training)
    folders: dict[str, list[Path]] = {}
    for (variant, seed), spec in specs.items():
        path = variant_path(out, spec, variant)
        if not _is_there(path, spec):
            if only_collect:
                err(
                    f"no finished run of '{variant}' with seed {seed} and these settings in '{path}'; "
                    "left out"
                )
                continue
            with progress(f"{variant} seed {seed}", spec.rounds, quiet=as_json) as bar:
                run_in_process(spec, path, data=data_of(study, data), listeners=(bar,))
        folders.setdefault(variant, []).append(path)
    if not folders:
        msg = f"there is no finished run in '{out}' to compare; leave out --collect to make them"
        raise UsageError(msg)
    found = compare_runs(folders, chosen, baseline, selection, tables)
    if as_json:
        out_json(found.to_dict())
    else:
        _print(found)


def _specs(
    study: str, methods: str, seeds: list[int], rounds: int | None, changes: list[str]
) -> dict[tuple[str, int], RunSpec]:
    """Return what to run for each method, as it was written, and seed."""
    from consilia.runs.spec import parse_changes

    variants = [part.strip() for part in methods.split(",") if part.strip()]
    if not variants:
        msg = "--methods is empty; name at least one, for example --methods local,fedavg"
        raise UsageError(msg)
    changed = parse_changes(changes)
    for key, option in (("method.name", "--methods"), ("seed", "--seeds")):
        for change in said_again(key, changed):
            msg = f"--set {change}: a comparison takes '{key}' from {option}; name it there"
            raise UsageError(msg)
    specs = {}
    for variant in variants:
        name, *settings = variant.split(":")
        keys = [setting.partition("=")[0].strip() for setting in settings if "=" in setting]
        if len(keys) < len(settings) or "name" in keys:
            msg = f"--methods {variant}: expected NAME or NAME:SETTING=VALUE, for example fedprox:mu=0.1"
            raise UsageError(msg)
        for key in keys:
            if keys.count(key) > 1:
                msg = f"--methods {variant} says more than once what '{key}' is; say it once"
                raise UsageError(msg)
            for change in said_again(f"method.{key}", changed):
                msg = (
                    f"--set {change} and --methods {variant} both say what '{key}' is; leave out one "
                    "of them"
                )
                raise UsageError(msg)
        own = [f"method.{setting}" for setting in settings]
        for seed in seeds:
            specs[variant, seed] = spec_of(study, name, rounds, seed, [*changes, *own])
    return specs


def _metric(metric: str | None, spec: RunSpec, baseline: str | None, methods: set[str]) -> str:
    """Return what to compare by, and refuse what would only be found out after hours of training."""
    from consilia.evaluate.metrics import MAIN, METRICS, metric_of
    from consilia.runs.compare import refuse_baseline

    refuse_baseline(baseline, sorted(methods))
    task = spec.federation.task
    if metric is None:
        return MAIN[task]
    if metric_of(metric).task not in {task, "both"}:
        fitting = ", ".join(name for name, known in METRICS.items() if known.task in {task, "both"})
        msg = f"metric '{metric}' does not fit a {task} task; choose one of {fitting}"
        raise UsageError(msg)
    return metric


def _refuse_rule(selection: str | None, spec: RunSpec) -> None:
    """Refuse a rule that the runs could not be reported by."""
    from consilia.evaluate.selection import refuse_unknown

    if selection is None:
        return
    refuse_unknown(selection)
    if selection == "best_validation" and not spec.evaluate.validation:
        msg = (
            f"--selection best_validation needs images to select on, but study '{spec.study}' holds none "
            "out; give --set evaluate.validation=0.15 as well, and another --out"
        )
        raise UsageError(msg)


def _is_there(path: Path, spec: RunSpec) -> bool:
    from consilia.runs.store import RunFolder, refuse_unreachable, same_run

    refuse_unreachable(path)
    return RunFolder(path).finished and same_run(RunFolder.open(path).spec(), spec)


def _seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        msg = f"--seeds {text}: expected whole numbers, comma-separated, for example 0,1,2"
        raise UsageError(msg)
    return list(dict.fromkeys(found))  # a seed that is named twice is one run


def _print(found: Comparison) -> None:
    sites = list(found.rows[0].sites)
    columns = ["method", *sites, f"{found.metric} ± std", "95 % interval"]
    beside = any(row.published is not None for row in found.rows)
    if beside:
        columns.append("paper")
    if found.baseline is not None:
        columns += [f"− {found.baseline}", "p (Holm)"]
    rows = []
    for row in found.rows:
        low, high = (row.interval.low, row.interval.high) if row.interval else (None, None)
        line = [row.method, *(number(row.sites[site]) for site in sites)]
        line += [f"{number(row.mean)} ± {number(row.std)}", f"{number(low)} to {number(high)}"]
        line += [number(row.published)] if beside else []
        if found.baseline is not None:
            line += [f"{row.test.difference:+.3f}", _p(row.p_holm)] if row.test else ["–", "–"]
        rows.append(line)
    said = seeds_told({row.method: row.seeds for row in found.rows})
    what = "intervals" if found.baseline is None else "intervals and tests"
    tested = f"{what} over test patients, seeds averaged"
    if all(row.interval is None for row in found.rows):
        tested = f"no intervals and tests: {found.untested}"
    note = f"selection {found.selection}; {plural(found.rounds, 'round')}; {said}; {tested}"
    spare = sites if len(sites) > 1 else ()
    table(f"{found.study}: {found.metric}", columns, rows, note, spare)
    tables = [printed for printed in found.published if printed.metric == found.metric]
    ablations = [printed for printed in tables if all(row.variant for row in printed.rows)]
    for printed in tables:
        if printed not in ablations:
            _print_published(printed)
    if ablations:
        err(f"--json also has the paper's ablations: {'; '.join(t.what for t in ablations)}")


def seeds_told(seeds: Mapping[str, Sequence[int]]) -> str:
    """Say the seeds that most methods have, and which methods have others."""
    own = {method: ", ".join(map(str, each)) for method, each in seeds.items()}
    most = Counter(own.values()).most_common(1)[0][0]
    others = "".join(f"; of {method} {each}" for method, each in own.items() if each != most)
    return f"seeds {most}{others}"


def _print_published(printed: PublishedTable) -> None:
    """Print a paper's table as the paper has it."""
    from consilia.runs.published import MEAN

    several = len({row.setting for row in printed.rows}) > 1
    numbers = [value for row in printed.rows for value in row.numbers if math.isfinite(value)]
    digits = max((len(f"{value:g}".partition(".")[2]) for value in numbers), default=0)
    rows = []
    for row in printed.rows:
        name = f"{row.called}, {row.variant}" if row.variant else f"{row.called} ({row.method})"
        line = [name, row.setting or "as declared"] if several else [name]
        rows.append([*line, *(number(value, digits) for value in row.numbers)])
    columns = ["in the paper", *(["setting"] if several else []), *printed.columns]
    spare = [column for column in printed.columns if column != MEAN]
    note = printed.note.removesuffix(".") or None
    table(f"{printed.source}: {printed.what}", columns, rows, note, spare)


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"
