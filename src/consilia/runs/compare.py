"""Several methods side by side: mean ± std over seeds, intervals and tests over test patients.

Everything comes from run folders, so that runs made on another machine count like those made here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilia.declare import COMMON
from consilia.errors import UsageError, listing, suggestion
from consilia.evaluate.intervals import (
    Interval,
    bootstrap_auroc_interval,
    bootstrap_interval,
    mean_std,
)
from consilia.evaluate.metrics import MAIN, METRICS, metric_of
from consilia.evaluate.paired import PairedTest, holm, paired_auroc_test, paired_test
from consilia.evaluate.selection import Evaluation, Scores, select
from consilia.runs.cases import MEMBER, PROBABILITY, TRUTH, cases_of
from consilia.runs.published import PublishedTable
from consilia.runs.spec import RunSpec
from consilia.runs.store import RunFolder, plain_json


@dataclass(frozen=True)
class Row:
    """One method: its scores over seeds and patients, and its difference to the baseline.

    Attributes:
        sites: Mean over seeds per site.
        mean: Mean over seeds of the mean over sites.
        std: Standard deviation over seeds of the mean over sites.
        interval: Bootstrap interval over test patients, seeds averaged.
        test: The paired test against the baseline, with the Holm-corrected p.
        published: The paper's mean for this method and setting, in our unit; `None` where there is none.
    """

    method: str
    seeds: tuple[int, ...]
    sites: dict[str, float]
    mean: float
    std: float
    interval: Interval | None
    test: PairedTest | None
    p_holm: float | None
    seconds: float
    bytes_up: float
    published: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A table of methods on one study, with the rule by which rounds were selected.

    Attributes:
        published: The paper's tables of the study's setting, as printed there.
        untested: Why there are no intervals and tests; `None` where there are.
    """

    study: str
    metric: str
    selection: str
    baseline: str | None
    rounds: int
    rows: tuple[Row, ...]
    published: tuple[PublishedTable, ...] = ()
    untested: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON; what is not defined is null."""
        tables = [table.model_dump(mode="json") for table in self.published]
        own = {**asdict(replace(self, published=())), "published": tables}
        return plain_json(own)  # type: ignore[no-any-return]  # JSON


@dataclass(frozen=True)
class _Runs:
    """The finished runs of one method, by seed."""

    metrics: dict[int, Mapping[str, Any]]
    cases: dict[int, Mapping[str, Any]]


def compare_runs(
    folders: Mapping[str, Sequence[Path]],
    metric: str,
    baseline: str | None = None,
    selection: str | None = None,
    published: Sequence[PublishedTable] = (),
) -> Comparison:
    """Return the comparison of finished runs, grouped by method.

    Args:
        folders: Per method, its run folders, one per seed.
        metric: The metric to compare by.
        baseline: The method every other is tested against.
        selection: Another rule than that of the runs, applied to the rounds they were judged in.
        published: A paper's tables to set beside ours.
    """
    metric_of(metric)
    refuse_baseline(baseline, folders)
    runs = {method: _read(paths, selection) for method, paths in folders.items()}
    first = next(iter(next(iter(runs.values())).metrics.values()))
    _refuse_mixture(runs, first)
    if metric not in first["mean"]:
        names = [name for name in first["mean"] if "/" not in name]
        near = suggestion(metric, names)
        msg = (
            f"study '{first['study']}' has no metric '{metric}'{near} (it has: {', '.join(names)})"
        )
        raise UsageError(msg)
    cases = {method: _pooled(found, metric) for method, found in runs.items()}
    tests = {}
    if baseline is not None:
        tests = {m: _test(cases[m], cases[baseline]) for m in runs if m != baseline}
    corrected = holm({m: t.p for m, t in tests.items() if t is not None})
    study = first["study"]
    printed = [table for table in published if table.is_about(study)]
    fitting = [table for table in printed if table.metric == metric]
    rows = [
        replace(
            _row(m, runs[m], cases[m], tests.get(m), corrected.get(m), metric),
            published=next(
                (mean for table in fitting if (mean := table.mean_of(study, m)) is not None), None
            ),
        )
        for m in runs
    ]
    return Comparison(
        study,
        metric,
        first["selection"],
        baseline,
        first["rounds"],
        tuple(rows),
        tuple(table.within(study) for table in printed),
        _why_untested(folders, runs, metric) if not any(cases.values()) else None,
    )


def variant_path(out: Path, spec: RunSpec, variant: str) -> Path:
    """Return where the run of a method, as it was written with its settings, is kept."""
    return out / spec.study / f"{variant.replace(':', '+')}-{spec.seed}"


def refuse_baseline(baseline: str | None, methods: Iterable[str]) -> None:
    """Refuse a baseline that is not compared itself."""
    known = tuple(methods)
    if baseline is not None and baseline not in known:
        near = suggestion(baseline, known) or "; name one of them"
        msg = f"baseline '{baseline}' is not among the compared methods {listing(known)}{near}"
        raise UsageError(msg)


def _read(paths: Sequence[Path], selection: str | None = None) -> _Runs:
    metrics, cases = {}, {}
    for path in paths:
        folder = RunFolder.open(path)
        found = folder.metrics()
        if selection is None or selection == found["selection"]:
            kept = folder.cases()
        else:
            found, kept = _selected_anew(folder, found, selection)
        metrics[found["seed"]] = found
        if kept:
            cases[found["seed"]] = kept
    return _Runs(dict(sorted(metrics.items())), dict(sorted(cases.items())))


def _selected_anew(
    folder: RunFolder, metrics: Mapping[str, Any], selection: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `metrics.json` and `cases.json` would hold under another rule of selection.

    There are no cases where one of the rounds that the rule picks kept none.
    """
    judged = [line for line in folder.lines("rounds.jsonl") if "test" in line]
    history = [
        Evaluation(
            line["round"],
            _scores(line["test"]),
            _scores(line["validation"]) if "validation" in line else None,
        )
        for line in judged
    ]
    metric = MAIN[folder.spec().federation.task]
    chosen = select(history, selection, metric, METRICS[metric].better)
    mean = chosen.sites.get(COMMON, chosen.mean)
    there = [(folder.path / f"cases/round-{n:06d}.json").is_file() for n in chosen.rounds]
    cases = cases_of(folder, chosen.rounds) if all(there) else {}
    return {**metrics, "selection": selection, "sites": chosen.sites, "mean": mean}, cases


def _scores(sites: Mapping[str, Mapping[str, float | None]]) -> Scores:
    """Return scores as they were before JSON, which has no NaN."""
    return {
        site: {name: math.nan if value is None else value for name, value in scores.items()}
        for site, scores in sites.items()
    }


def _refuse_mixture(runs: Mapping[str, _Runs], first: Mapping[str, Any]) -> None:
    """Refuse runs that differ in protocol, in sites, or in the cases they were judged on."""
    judged: Mapping[str, Any] = {}
    for method, found in runs.items():
        for seed, metrics in found.metrics.items():
            for key in ("study", "rounds", "selection"):
                if metrics[key] != first[key]:
                    msg = (
                        f"run '{method}-{seed}' has {key} '{metrics[key]}', others have '{first[key]}'; "
                        "only runs of one protocol can be compared"
                    )
                    raise UsageError(msg)
            if set(metrics["sites"]) != set(first["sites"]):
                msg = (
                    f"run '{method}-{seed}' was judged at {listing(metrics['sites'])}, others at "
                    f"{listing(first['sites'])}; only runs that were judged at the same sites can be "
                    "compared"
                )
                raise UsageError(msg)
        for seed, tables in found.cases.items():
            cases = {site: (table["case"], table["group"]) for site, table in tables.items()}
            judged = judged or cases
            other = [site for site in judged if cases.get(site) != judged[site]]
            if other:
                msg = (
                    f"run '{method}-{seed}' was judged on other test cases of site '{other[0]}' than "
                    "the runs before it; only runs on the same test cases can be compared"
                )
                raise UsageError(msg)


@dataclass(frozen=True)
class _Cases:
    """Per-case numbers of one method, all sites together.

    Attributes:
        values: A metric of each case, averaged over seeds; or, where `truth` is given, the
            probabilities of each model (seeds, members of a panel), case and label.
        truth: Of each case and label, NaN where nobody knows it.
        sites: Where each case was judged; sites count alike, as in the mean over sites.
    """

    groups: np.ndarray
    sites: np.ndarray
    values: np.ndarray  # (n,) or (m, n, k)
    truth: np.ndarray | None = None  # (n, k)


def _pooled(runs: _Runs, metric: str) -> _Cases | None:
    """Return the cases of all sites; `None` where a metric has no cases."""
    if not runs.cases:
        return None
    tables = list(runs.cases.values())
    columns = list(next(iter(tables[0].values()))["values"])
    # A test set that all sites share is what the study is judged on, as in `metrics.json`.
    sites = [COMMON] if COMMON in tables[0] else list(tables[0])
    groups = np.array([f"{site}/{group}" for site in sites for group in tables[0][site]["group"]])
    where = np.array([site for site in sites for _ in tables[0][site]["group"]])

    def read(wanted: Sequence[str], table: Mapping[str, Any]) -> np.ndarray:
        """Return some columns of one seed, (n, columns)."""
        parts = [[_numbers(table[site]["values"][c]) for c in wanted] for site in sites]
        return np.concatenate([np.array(part).T for part in parts])

    models = _models(columns)
    if models and metric == "auroc":
        labels = [c for c in columns if c.startswith(TRUTH)]
        each = [read(model, table) for table in tables for model in models]
        return _Cases(groups, where, np.stack(each), read(labels, tables[0]))
    if metric not in columns:
        return None
    return _Cases(groups, where, np.mean([read([metric], table)[:, 0] for table in tables], axis=0))


def _why_untested(
    folders: Mapping[str, Sequence[Path]], runs: Mapping[str, _Runs], metric: str
) -> str:
    """Return why no method has the numbers per case that intervals and tests take."""
    if any(found.cases for found in runs.values()):
        return f"they take numbers per case, and '{metric}' has none"
    asked = [RunFolder(path).spec().evaluate for paths in folders.values() for path in paths]
    if not all(evaluate.per_case for evaluate in asked):
        return "they take numbers per case (`evaluate.per_case = true`)"
    rule = next(iter(next(iter(runs.values())).metrics.values()))["selection"]
    own = next((e.selection for e in asked if e.selection != rule), None)
    if own is None:
        return "they take numbers per case, and these runs hold none; run them with another --out"
    return (
        f"they take numbers per case, which these runs kept only for {own}, not of all rounds of {rule} "
        f"(`--set evaluate.selection={rule}` and another --out keeps them)"
    )


def _models(columns: Sequence[str]) -> list[list[str]]:
    """Return the columns of each model's probabilities: those of a panel's members, or the only one's."""
    members: dict[str, list[str]] = {}
    for column in columns:
        if column.startswith(MEMBER):
            members.setdefault(column.partition("/")[0], []).append(column)
    only = [column for column in columns if column.startswith(PROBABILITY)]
    return list(members.values()) or ([only] if only else [])


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _interval(cases: _Cases | None) -> Interval | None:
    if cases is None:
        return None
    if cases.truth is None:
        return bootstrap_interval(cases.values, cases.groups, strata=cases.sites)
    known = np.isfinite(cases.truth)
    return bootstrap_auroc_interval(
        cases.values, cases.truth > 0.5, cases.groups, known, strata=cases.sites
    )


def _test(one: _Cases | None, other: _Cases | None) -> PairedTest | None:
    if one is None or other is None:
        return None
    if one.truth is None:
        return paired_test(one.values, other.values, one.groups, strata=one.sites)
    known = np.isfinite(one.truth)
    return paired_auroc_test(
        one.values,
        other.values,
        one.truth > 0.5,
        one.groups,
        known=known,
        strata=one.sites,
    )


def _row(
    method: str,
    runs: _Runs,
    cases: _Cases | None,
    test: PairedTest | None,
    corrected: float | None,
    metric: str,
) -> Row:
    found = list(runs.metrics.values())
    means = _numbers([m["mean"].get(metric) for m in found])
    mean, std = mean_std(means)
    sites = {
        site: mean_std(_numbers([m["sites"][site].get(metric) for m in found]))[0]
        for site in found[0]["sites"]
    }
    return Row(
        method,
        tuple(runs.metrics),
        sites,
        mean,
        std,
        _interval(cases),
        test,
        corrected,
        float(np.mean([m["seconds"] for m in found])),
        float(np.mean([m["bytes_up"] for m in found])),
    )
