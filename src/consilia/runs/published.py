"""A paper's numbers as data: `published.toml` beside a study, printed beside ours by `consilia compare`.

Values are copied as the paper prints them. They are numbers of another experiment: other images,
often other sizes and always another split; `note` says in what a study of ours differs. ::

    [[table]]
    source = "FedMix (IEEE TMI 2023), Table III"
    what = "Dice in %, five folds"
    note = "..."
    metric = "dice"
    scale = 100
    columns = ["busi", "busis", "udiat", "mean"]
    rows = [
        { setting = "uul", method = "local", called = "LL", values = [65.9, 85.4, 83.4, 78.3] },
    ]
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from consilia.declare.federation import Declared
from consilia.declare.read import read_toml, validate
from consilia.errors import UsageError
from consilia.runs.spec import locate, parse_changes

FILE = "published.toml"
#: The column that our mean (of sites, or of the common test set) is set beside.
MEAN = "mean"
DASHES = ("", "-", "–", "—")


class PublishedRow(Declared):
    """One row of a paper's table.

    Attributes:
        method: Our id of the method, with settings as `compare` takes them (`fedprox:mu=0.1`).
        called: What the paper calls it.
        values: As printed, one for each column; "-" where the paper has none, or none is legible.
        setting: The study's setting it was made under; empty for the study as it is declared.
        variant: What the paper changed of the method, in words. Such a row is set beside one of ours
            only where `method` says the same in settings.
    """

    method: str
    called: str
    values: tuple[float | str, ...]
    setting: str = ""
    variant: str = ""

    @model_validator(mode="after")
    def _settings_have_values(self) -> Self:
        if any("=" not in setting for setting in self.method.split(":")[1:]):
            msg = (
                f"row '{self.called}' has the method '{self.method}'; expected NAME or "
                "NAME:SETTING=VALUE, for example fedprox:mu=0.1"
            )
            raise UsageError(msg)
        split_method(self.method)
        return self

    @property
    def changed(self) -> bool:
        """Whether the paper changed the method in a way that `method` does not say."""
        return bool(self.variant) and ":" not in self.method

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values, NaN where there is none."""
        return tuple(math.nan if isinstance(value, str) else value for value in self.values)


class PublishedTable(Declared):
    """A table of a paper, or what of it belongs to a study.

    Attributes:
        source: Paper and number of the table.
        what: What the values are.
        metric: The metric of ours that they are set beside.
        scale: What our value is multiplied by to be in the paper's unit.
        columns: Sites or labels of the study, and `mean`.
        rows: The methods.
        note: In what the study differs from the paper's, and misprints.
        settings: The study's settings that the table is about, "" for none; empty for all of them.
    """

    source: str
    what: str
    metric: str
    scale: Annotated[float, Field(gt=0)] = 1.0
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    note: str = ""
    settings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _rows_fill_the_columns(self) -> Self:
        for row in self.rows:
            if len(row.values) != len(self.columns):
                msg = (
                    f"row '{row.called}' has {len(row.values)} values; expected {len(self.columns)}"
                )
                raise UsageError(msg)
            odd = [v for v in row.values if isinstance(v, str) and v not in DASHES]
            if odd:
                msg = f"row '{row.called}' has the value '{odd[0]}'; expected a number or '-'"
                raise UsageError(msg)
        return self

    def is_about(self, study: str) -> bool:
        """Tell whether the table belongs to a study's setting."""
        return not self.settings or bool((_settings(study) or {""}) & set(self.settings))

    def within(self, study: str) -> PublishedTable:
        """Return the rows of a study's setting, or all where none is of it."""
        settings = _settings(study)
        own = tuple(row for row in self.rows if row.setting in settings)
        return self.model_copy(update={"rows": own}) if settings and own else self

    def mean_of(self, study: str, method: str) -> float | None:
        """Return the paper's mean for a method of ours, in our unit, where it has one.

        Args:
            study: The study, with its settings.
            method: The method, with its settings in any order (`fedmix:lam=1:beta=2`).
        """
        if MEAN not in self.columns:
            return None
        wanted, asked = _settings(study) or {""}, split_method(method)
        for row in self.rows:
            if row.setting in wanted and not row.changed and split_method(row.method) == asked:
                value = row.numbers[self.columns.index(MEAN)] / self.scale
                return value if math.isfinite(value) else None
        return None


class Published(Declared):
    """Everything in a `published.toml`."""

    table: tuple[PublishedTable, ...]


def read_published(study: str) -> tuple[PublishedTable, ...]:
    """Return the tables beside a study's run file; none where there is no such file."""
    path = locate(study.partition("@")[0]).parent / FILE
    return published_in(path) if path.is_file() else ()


def published_in(path: Path) -> tuple[PublishedTable, ...]:
    """Return the tables of a file."""
    table: dict[str, Any] = read_toml(path, UsageError)
    where = f"{path.resolve().parent.name}/{path.name}"
    return validate(Published, table, where, UsageError).table


def split_method(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a method as `compare` takes it."""
    name, *settings = text.split(":")
    return name, parse_changes(settings)


def _settings(study: str) -> set[str]:
    """Return the settings that a study is run under, as it names them."""
    _, _, settings = study.partition("@")
    return set(settings.split("+")) - {""}
