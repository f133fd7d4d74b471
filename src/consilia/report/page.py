"""`report.html`: one page per run, with everything in it and nothing fetched."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

import consilia
from consilia.atomic import write_whole
from consilia.declare import COMMON
from consilia.errors import UsageError, reason
from consilia.evaluate.selection import RULES
from consilia.report import figures, ledger, overlays, personal, plan, tables, words
from consilia.report.record import NAMED, Record, finite
from consilia.report.tables import cases_table

__all__ = ["cases_table", "write_report"]


def write_report(run: Path) -> Path:
    """Write a run's `report.html` from its folder, whole or not at all, and return its path."""
    record = Record.read(Path(run))
    html = _template().render(**_context(record))
    page = record.path / "report.html"
    try:
        write_whole(page, html)
    except OSError as error:
        msg = f"page '{page}' cannot be written: {reason(error)}; copy the run folder elsewhere"
        raise UsageError(msg) from None
    return page


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("consilia.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": words.size, "count": words.count, "number": words.number}
    environment.globals |= {"plural": words.plural}
    return environment.get_template("template.html.j2")


def _context(record: Record) -> dict[str, Any]:
    return {
        "record": record,
        "spec": record.spec,
        "named": NAMED,
        "version": consilia.__version__,
        **_headline(record),
        **_results(record),
        **_declared(record),
        **_curves(record),
        **personal.section(record),
        **_examples(record),
        **_left(record),
        **_asked(record),
    }


def _headline(record: Record) -> dict[str, Any]:
    metrics = record.metrics or {}
    scores = {
        site: finite(values.get(record.main))
        for site, values in record.site_scores.items()
        if site != COMMON and math.isfinite(finite(values.get(record.main)))
    }
    ranked = sorted(scores, key=lambda site: scores[site])
    seconds = metrics.get("seconds", sum(finite(r.get("seconds", 0)) for r in record.rounds))
    return {
        "title": tables.TITLES[record.main],
        "mean": words.number(record.mean_scores.get(record.main)),
        "mean_over": tables.mean_over(record),
        "lowest": (ranked[0], words.number(scores[ranked[0]])) if len(ranked) > 1 else None,
        "highest": (ranked[-1], words.number(scores[ranked[-1]])) if len(ranked) > 1 else None,
        "done": record.rounds[-1]["round"] if record.rounds else 0,
        "rule": RULES[record.spec.evaluate.selection],
        "reported": words.spans(record.selected.rounds) if record.selected else "",
        "duration": words.duration(seconds),
        "summary": record.entry.card.summary if record.entry else "",
    }


def _results(record: Record) -> dict[str, Any]:
    columns, rows = tables.score_table(record)
    label_columns, label_rows = tables.label_table(record)
    hard_columns, hard_rows, scored = tables.hardest(record)
    return {
        "columns": columns,
        "rows": rows,
        "label_columns": label_columns,
        "label_rows": label_rows,
        "hard_columns": hard_columns,
        "hard_rows": hard_rows,
        "scored": len(scored),
        "case_figure": figures.case_figure(record),
    }


def _declared(record: Record) -> dict[str, Any]:
    return {"sites": tables.site_table(record), "events": tables.events(record)}


def _curves(record: Record) -> dict[str, Any]:
    title = tables.TITLES[record.main]
    return {
        "loss_figure": figures.loss_figure(record),
        "score_figure": figures.score_figure(record, f"Test {title} per evaluated round"),
        "validated": any(line.get("validation") for line in record.rounds),
        "share_figure": figures.share_figure(record),
        "traffic_figure": figures.traffic_figure(record),
        "totals": ledger.totals(record),
        "counted": tables.count_table(record),
        "labels": record.federation.labels,
    }


def _examples(record: Record) -> dict[str, Any]:
    evaluated = [line["round"] for line in record.rounds if line.get("test")]
    labels = zip(record.federation.labels, overlays.LABEL_COLORS * 32, strict=False)
    verdicts = dict(overlays.VERDICTS)
    if len(record.federation.labels) == 1:
        del verdicts["wrong label"]
    return {
        "galleries": overlays.galleries(record),
        "galleries_left_out": overlays.left_out(record),
        "pictured": evaluated[-1] if evaluated else None,
        "label_colors": list(labels),
        "verdicts": verdicts,
        "score_name": "Dice" if record.segments else "score",
    }


def _left(record: Record) -> dict[str, Any]:
    return {
        "statement": ledger.statement(record),
        "sent": ledger.sent_fields(record),
        "told": ledger.descriptions(record),
    }


def _asked(record: Record) -> dict[str, Any]:
    return {
        "settings": plan.settings(record),
        "hypers": plan.hypers(record),
        "environment": plan.environment(record),
        "citations": plan.citations(record),
    }
