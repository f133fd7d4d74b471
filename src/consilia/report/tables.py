"""The rows of a report's tables: scores, declarations, events, cases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilia.declare import COMMON, POOLED, Supervision
from consilia.evaluate.metrics import METRICS
from consilia.report.record import Record, finite
from consilia.report.words import DASH, between, number, spans

TITLES = {
    "dice": "Dice",
    "iou": "IoU",
    "hd95": "HD95",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "macro_f1": "macro F1",
}
FORMS = {
    Supervision.MASK: "every pixel",
    Supervision.BLOCK: "pixels in blocks",
    Supervision.ROTATED_BOX: "rotated boxes",
    Supervision.BOX: "boxes",
    Supervision.SCRIBBLE: "strokes",
    Supervision.POINT: "points",
    Supervision.IMAGE: "tags of whole images",
    Supervision.NONE: "nothing",
}
EVENTS = 200


@dataclass(frozen=True)
class Column:
    """A metric as a table's heading explains it."""

    key: str
    title: str
    unit: str
    better: str
    meaning: str
    digits: int

    @classmethod
    def of(cls, key: str) -> Column:
        """Return the column of a metric; one that is not known here explains nothing."""
        title = TITLES.get(key, key.replace("_", " "))
        metric = METRICS.get(key)
        if metric is None:
            return cls(key, title, "", "", "", 3)
        unit = "" if metric.unit == "share" else metric.unit
        return cls(key, title, unit, metric.better, metric.meaning, 1 if unit else 3)


@dataclass(frozen=True)
class ScoreRow:
    """One line of a score table; `fill` is how far the bar behind the first score reaches."""

    site: str
    slot: str
    label: str
    values: tuple[str, ...]
    fill: float


def score_table(record: Record) -> tuple[list[Column], list[ScoreRow]]:
    """Return the metrics of every site, the main one first, and their mean in the last row."""
    keys = _main_first(record, {k for s in _rows(record).values() for k in s if "/" not in k})
    columns = [Column.of(key) for key in keys]
    rows = [
        ScoreRow(site, record.slot(site), "", _shown(scores, columns), _fill(scores, record.main))
        for site, scores in record.site_scores.items()
    ]
    if len(rows) > 1:
        mean = record.mean_scores
        rows.append(ScoreRow("mean", "", "", _shown(mean, columns), _fill(mean, record.main)))
    return columns, rows


def label_table(record: Record) -> tuple[list[Column], list[ScoreRow]]:
    """Return the metrics that sites report label by label; empty where there is one label only."""
    keys = _main_first(
        record, {k.split("/")[0] for s in _rows(record).values() for k in s if "/" in k}
    )
    columns = [Column.of(key) for key in keys]
    rows = []
    for site, scores in _rows(record).items():
        labels = dict.fromkeys(key.split("/", 1)[1] for key in scores if "/" in key)
        for label in labels:
            own = {key: scores.get(f"{key}/{label}") for key in keys}
            slot = record.slot(site) if site in record.site_scores else ""
            rows.append(ScoreRow(site, slot, label, _shown(own, columns), _fill(own, record.main)))
    return columns, rows


@dataclass(frozen=True)
class CountRow:
    """The images a site took to show each label; with each, whether the site itself marks the label."""

    site: str
    slot: str
    values: tuple[tuple[int, bool], ...]


def count_table(record: Record) -> list[CountRow]:
    """Return what each site counted per label in the last round; empty where the method counts nothing."""
    told = record.rounds[-1].get("counts", {}) if record.rounds else {}
    rows = []
    for site in record.federation.sites:
        if site in told:
            marked = record.federation.annotated_by(site)
            labels = record.federation.labels
            values = tuple((told[site].get(label, 0), label in marked) for label in labels)
            rows.append(CountRow(site, record.slot(site), values))
    return rows


def _rows(record: Record) -> dict[str, dict[str, Any]]:
    rows = record.site_scores
    return {**rows, "mean": record.mean_scores} if len(rows) > 1 else rows


def _main_first(record: Record, keys: set[str]) -> list[str]:
    known = [key for key in METRICS if key in keys]
    return sorted([*known, *sorted(keys - set(known))], key=lambda key: key != record.main)


def _shown(scores: dict[str, Any], columns: list[Column]) -> tuple[str, ...]:
    return tuple(number(scores.get(column.key), column.digits) for column in columns)


def _fill(scores: dict[str, Any], key: str) -> float:
    value = finite(scores.get(key))
    return 0.0 if math.isnan(value) else min(1.0, max(0.0, value))


@dataclass(frozen=True)
class SiteRow:
    """What a site declared and how it took part."""

    site: str
    slot: str
    form: str
    marks: str
    annotates: str
    leaves_out: str
    complete: str
    images: str
    took_part: int


def site_table(record: Record) -> list[SiteRow]:
    """Return a row per declared site, and one for the pool where all images were united."""
    federation = record.federation
    images: dict[str, set[int]] = {}
    taken: dict[str, int] = {}
    for line in record.rounds:
        for site in line.get("took_part", ()):
            taken[site] = taken.get(site, 0) + 1
        for site, told in (line.get("sites") or {}).items():
            if isinstance(told.get("images"), int):
                images.setdefault(site, set()).add(told["images"])
    rows = []
    for name in federation.sites:
        site, marked = federation[name], federation.annotated_by(name)
        missing = [label for label in federation.labels if label not in marked]
        style = ", noisy" if site.style == "noisy" else ""
        row = SiteRow(
            site=name,
            slot=record.slot(name),
            form=str(site.supervision),
            marks=FORMS[site.supervision] + style,
            annotates=_marked(marked, federation.labels),
            leaves_out=", ".join(missing) or DASH,
            complete="yes" if site.complete else "may miss objects",
            images=between(images.get(name, ())),
            took_part=taken.get(name, 0),
        )
        rows.append(row)
    if POOLED in taken:
        pool = between(images.get(POOLED, ()))
        rows.append(
            SiteRow(POOLED, "ink", "", "all sites together", "", "", "", pool, taken[POOLED])
        )
    return rows


def _marked(marked: tuple[str, ...], labels: tuple[str, ...]) -> str:
    if marked == labels and len(labels) > 1:
        return f"all {len(labels)} labels"
    return ", ".join(marked) or "nothing"


def events(record: Record) -> list[tuple[str, str, str]]:
    """Return (site, what happened, in which rounds): planned absences first, then as they came."""
    rules = record.spec.participation
    found: dict[tuple[str, str], list[int]] = {}
    for site, rounds in rules.absent.items():
        found.setdefault((site, "absent, as planned in the run file"), []).extend(rounds)
    for line in record.rounds:
        for event in line.get("events") or ():
            key = (str(event.get("site", "")), str(event.get("event", "")))
            found.setdefault(key, []).append(line["round"])
    return [(site, what, spans(rounds)) for (site, what), rounds in found.items()][:EVENTS]


def cases_table(run: Path) -> list[dict[str, Any]]:
    """Return one row per test case of a run: site, case, group, and each of its numbers.

    A number that is not defined is `None`. Empty where the run kept no `cases.json`.
    """
    return case_rows(Record.read(run))


def case_rows(record: Record) -> list[dict[str, Any]]:
    """Return the rows of `cases_table` for a record that has been read."""
    rows = []
    for site, table in record.cases.items():
        columns = table.get("values") or {}
        groups = table.get("group") or [""] * len(table.get("case", ()))
        for i, (case, group) in enumerate(zip(table.get("case", ()), groups, strict=False)):
            numbers = {
                name: column[i] if i < len(column) else None for name, column in columns.items()
            }
            rows.append({"site": site, "case": case, "group": group, **numbers})
    return rows


def hardest(record: Record, most: int = 6) -> tuple[list[Column], list[ScoreRow], list[str]]:
    """Return the test cases with the lowest main metric, over all sites, and their names."""
    scored = [r for r in case_rows(record) if not math.isnan(finite(r.get(record.main)))]
    scored.sort(key=lambda row: finite(row[record.main]))
    if not scored:
        return [], [], []
    columns = [Column.of(k) for k in _main_first(record, {k for k in scored[0] if k in METRICS})]
    rows = [
        ScoreRow(
            r["site"], record.slot(r["site"]), r["case"], _shown(r, columns), _fill(r, record.main)
        )
        for r in scored[:most]
    ]
    return columns, rows, [str(row["case"]) for row in scored]


def mean_over(record: Record) -> str:
    """Return over what the mean score was taken, in words."""
    sites = [site for site in record.site_scores if site != COMMON]
    names = "1 site" if len(sites) == 1 else f"{len(sites)} sites"
    return f"{names} and the common test set" if COMMON in record.site_scores else names
