"""A run folder as the report reads it: whatever is there, and nothing that is not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from consilia.declare import COMMON, POOLED, Federation
from consilia.evaluate.metrics import MAIN, METRICS
from consilia.evaluate.selection import Evaluation, Selected, select
from consilia.methods import METHODS, Entry
from consilia.runs.spec import RunSpec
from consilia.runs.store import RunFolder

NAMED = 12  # so many sites have a color of their own; the rest are drawn together


@dataclass(frozen=True)
class Record:
    """Everything a report is made from."""

    path: Path
    spec: RunSpec
    rounds: list[dict[str, Any]]
    ledger: list[dict[str, Any]]
    metrics: dict[str, Any] | None
    cases: dict[str, Any]
    findings: dict[str, Any]
    portraits: dict[str, Any]
    environment: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a run folder; only `spec.toml` has to be there."""
        folder = RunFolder.open(path)
        return cls(
            path=path,
            spec=folder.spec(),
            rounds=folder.lines("rounds.jsonl"),
            ledger=folder.lines("ledger.jsonl"),
            metrics=folder.metrics() if folder.finished else None,
            cases=folder.cases(),
            findings=folder.findings(),
            portraits=folder.portraits(),
            environment=folder.environment(),
        )

    @property
    def federation(self) -> Federation:
        """The declared federation."""
        return self.spec.federation

    @property
    def segments(self) -> bool:
        """Whether the study is about pixels rather than whole images."""
        return self.federation.task == "segmentation"

    @property
    def main(self) -> str:
        """The metric a run is known by."""
        return MAIN[self.federation.task]

    @property
    def entry(self) -> Entry | None:
        """The method, where this installation knows it."""
        return METHODS.get(self.spec.method.name)

    @property
    def pooled(self) -> bool:
        """Whether all images were brought to one place."""
        return any(POOLED in line.get("took_part", ()) for line in self.rounds) or (
            self.entry is not None and self.entry.method.data == "pooled"
        )

    @cached_property
    def selected(self) -> Selected | None:
        """What the selection rule picks from the rounds so far."""
        history = [
            Evaluation(
                line["round"], _scores(line["test"]), _scores(line.get("validation")) or None
            )
            for line in self.rounds
            if line.get("test")
        ]
        rule = self.spec.evaluate.selection
        if not history:
            return None
        if rule == "best_validation" and not any(self._validated(e) for e in history):
            rule = "last_round"
        return select(history, rule, self.main, METRICS[self.main].better)

    def _validated(self, evaluation: Evaluation) -> bool:
        found = (evaluation.validation or {}).values()
        return any(not math.isnan(scores.get(self.main, math.nan)) for scores in found)

    @property
    def site_scores(self) -> dict[str, dict[str, Any]]:
        """Scores per site: final ones, or those of the run so far."""
        if self.metrics is not None:
            return dict(self.metrics.get("sites") or {})
        return dict(self.selected.sites) if self.selected else {}

    @property
    def mean_scores(self) -> dict[str, Any]:
        """Mean scores over sites: final ones, or those of the run so far."""
        if self.metrics is not None:
            return dict(self.metrics.get("mean") or {})
        return self.selected.mean if self.selected else {}

    def slot(self, site: str) -> str:
        """Return the name of a site's color, the same in every figure and table."""
        if site in (POOLED, COMMON):
            return "ink"
        index = self._index.get(site, NAMED)
        return f"s{index}" if index < NAMED else "rest"

    @cached_property
    def _index(self) -> dict[str, int]:
        return {site: index for index, site in enumerate(self.federation.sites)}


def finite(value: Any) -> float:
    """Return a JSON number, or NaN for whatever is not one."""
    return float(value) if isinstance(value, int | float) else math.nan


def _scores(sites: Any) -> dict[str, dict[str, float]]:
    return {
        site: {name: finite(value) for name, value in (scores or {}).items()}
        for site, scores in (sites or {}).items()
    }
