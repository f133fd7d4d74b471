"""What the JSON files of a run hold, so that one of another shape is refused and not stumbled over."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, model_validator

Scores = dict[str, float | None]  # metric -> value; null where it is not defined


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
