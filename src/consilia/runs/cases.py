"""What is kept of test cases: a table for each round that may be reported, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilia.runs.store import RunFolder

#: How columns of image-level labels begin; of a panel's members there is a column of each besides.
PROBABILITY, MEMBER, TRUTH = "probability/", "probability-", "truth/"


def cases_of(folder: RunFolder, rounds: Sequence[int]) -> dict[str, Any]:
    """Return the per-case tables of some rounds, averaged, site by site; empty where there is none.

    Args:
        folder: A run folder.
        rounds: The rounds that are reported. A site may miss some of them.
    """
    tables = [
        folder.cases(f"cases/round-{number:06d}.json")
        for number in rounds
        if (folder.path / f"cases/round-{number:06d}.json").is_file()
    ]
    merged = {site: dict(table) for tables_of in tables for site, table in tables_of.items()}
    for site, table in merged.items():
        held = [t[site]["values"] for t in tables if site in t]
        table["values"] = {
            column: [_mean(row) for row in zip(*(values[column] for values in held), strict=True)]
            for column in table["values"]
        }
    return merged


def _mean(values: tuple[float | None, ...]) -> float | None:
    """Return the mean of what is defined."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
