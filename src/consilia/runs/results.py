"""What the JSON files of a run hold, so that one of another shape is refused and not stumbled over.

Each names what readers count on; what else a file holds does not matter.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

Scores = dict[str, float | None]  # metric -> value; null where it is not defined
Fingerprints = dict[str, str]  # site -> hash of its images and labels: `data.json`


class Metrics(BaseModel):
    """What every reader of `metrics.json` counts on."""

    study: str
    method: str
    seed: int
    rounds: int
    selection: str
    sites: dict[str, Scores]
    mean: Scores
    seconds: float
    bytes_up: int


class CaseTable(BaseModel):
    """The test cases of one site: a row each, a column for each number."""

    case: list[str]
    group: list[str]
    values: dict[str, list[float | None]]

    @model_validator(mode="after")
    def _columns_have_a_value_for_each_case(self) -> Self:
        lengths = {len(self.case), len(self.group), *map(len, self.values.values())}
        if len(lengths) > 1:
            msg = "a column has more or fewer values than there are cases"
            raise ValueError(msg)
        return self


Cases = dict[str, CaseTable]  # by site


def _rows_are_alike(rows: list[list[float | None]]) -> list[list[float | None]]:
    if len(set(map(len, rows))) > 1 or not all(rows):
        msg = "rows have no numbers, or not equally many"
        raise ValueError(msg)
    return rows


Rows = Annotated[list[list[float | None]], AfterValidator(_rows_are_alike)]


class Findings(BaseModel):
    """What the server learned about the sites: `findings.json`."""

    affinity: dict[str, dict[str, float | None]]
    maps: dict[str, Annotated[Rows, Field(min_length=1)]]


class Portrait(BaseModel):
    """What a site showed of itself: features of images, and histograms of what it follows."""

    points: Rows
    follow: dict[str, Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]]


def _points_are_alike(portraits: dict[str, Portrait]) -> dict[str, Portrait]:
    _rows_are_alike([row for portrait in portraits.values() for row in portrait.points])
    return portraits


Portraits = Annotated[dict[str, Portrait], AfterValidator(_points_are_alike)]  # by site


class Round(BaseModel):
    """A line of `rounds.jsonl`."""

    round: int
    took_part: list[str] = []
    sites: dict[str, dict[str, Any]] | None = None
    shares: dict[str, float | None] | None = None
    events: list[dict[str, Any]] | None = None
    test: dict[str, Scores | None] | None = None
    validation: dict[str, Scores | None] | None = None
    seconds: float | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None


class Sent(BaseModel):
    """A line of `ledger.jsonl`: one field of one message."""

    round: int
    site: str
    direction: str
    message: str
    field: str
    dtype: str
    shape: str
    numbers: int
    bytes: int


#: By name, what each line of a file holds.
LINES: dict[str, type[BaseModel]] = {"rounds.jsonl": Round, "ledger.jsonl": Sent}
