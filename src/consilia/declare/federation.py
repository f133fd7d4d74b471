"""What sites declare, and the contradictions that are refused: a `Federation` that exists is valid."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from consilia.declare.supervision import DEFAULT_SPARSITY, Sparsity, Supervision
from consilia.errors import DeclarationError, listing, suggestion

Task = Literal["segmentation", "classification"]
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
#: Labels and regions are columns of tables and parts of a metric's name (`dice/tumour`).
PLAIN = re.compile(r"[^\s/,]([^/,]{0,61}[^\s/,])?")
RESERVED = {
    "background": "is implied where nothing else is marked",
    "image": "is the name of the first column of labels.csv",
}

#: How a reference to a dataset begins, where `data` is not a folder.
DATASET = "dataset:"
#: The name a pooled method's single, united site goes by; no real site may take it.
POOLED = "pooled"
#: The name under which a test set that all sites share is scored; no real site may take it.
COMMON = "common"


def plain(name: str, what: str) -> str:
    """Return a name, or refuse one that a table, a metric or a line on a screen cannot have."""
    if not PLAIN.fullmatch(name) or not name.isprintable():
        msg = (
            f"{what} '{name}' must be 1 to 63 characters without '/' and ',' and without "
            "space at its ends; rename it"
        )
        raise DeclarationError(msg)
    return name


def _inside(path: str, what: str) -> str:
    """Return where data is, or refuse a place that is empty or above its folder."""
    if not path.strip():
        msg = f"{what} is empty; name a folder, or a dataset as 'dataset:NAME/SITE'"
        raise DeclarationError(msg)
    if ".." in PurePosixPath(path).parts:
        msg = f"{what} is '{path}', which leaves its folder; give a path without '..'"
        raise DeclarationError(msg)
    return path


class Declared(BaseModel):
    """A frozen table of a declaration file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class ImageShape(Declared):
    """The size every image is brought to before training."""

    size: tuple[Annotated[int, Field(ge=8, le=4096)], Annotated[int, Field(ge=8, le=4096)]]
    channels: Annotated[int, Field(ge=1, le=16)] = 1


class SiteDeclaration(Declared):
    """A site's promise about its annotations: form, label set and completeness."""

    name: str
    data: str
    supervision: Supervision = Supervision.MASK
    annotates: tuple[str, ...] | None = None
    complete: bool = True
    style: Literal["plain", "noisy"] = "plain"
    sparsity: Sparsity | None = None
    empty_slices: Literal["auto", "keep", "drop"] = "auto"

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            msg = (
                f"site name '{name}' must be 1 to 63 lower-case letters, digits, '-' or '_' and "
                "begin with a letter or digit"
            )
            raise DeclarationError(msg)
        if name in {POOLED, COMMON}:
            msg = f"site name '{name}' is reserved; choose another name"
            raise DeclarationError(msg)
        return name

    @field_validator("data")
    @classmethod
    def _data_stays_inside(cls, data: str, info: ValidationInfo) -> str:
        return _inside(data, f"`data` of site '{info.data.get('name', '')}'")

    @property
    def density(self) -> Sparsity:
        """The declared sparsity, or the one its form usually has."""
        return self.sparsity or DEFAULT_SPARSITY[self.supervision]


class Federation(Declared):
    """The sites that take part and the labels they study together."""

    name: str
    task: Task
    labels: tuple[str, ...]
    exclusive: bool = True
    image: ImageShape
    site: tuple[SiteDeclaration, ...]
    regions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    test: str | None = None

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str) -> str:
        return plain(name, "federation name")

    @field_validator("test")
    @classmethod
    def _test_stays_inside(cls, test: str | None) -> str | None:
        return None if test is None else _inside(test, "the common `test` set")

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        self._check_labels()
        self._check_sites()
        return self

    def _check_labels(self) -> None:
        if not self.labels:
            msg = f"federation '{self.name}' has no labels; list at least one in `labels`"
            raise DeclarationError(msg)
        twice = [label for label, count in Counter(self.labels).items() if count > 1]
        if twice:
            msg = f"federation '{self.name}' lists the label {listing(twice)} more than once; list each once"
            raise DeclarationError(msg)
        for label in self.labels:
            plain(label, "label")
            if label in RESERVED:
                msg = f"label '{label}' {RESERVED[label]}; remove or rename it"
                raise DeclarationError(msg)
        if self.task == "segmentation" and not self.exclusive:
            msg = (
                f"federation '{self.name}' segments labels that may overlap (`exclusive = false`); "
                "segmentation needs exclusive labels: name the overlap as a label of its own and "
                "unite it again under [regions]"
            )
            raise DeclarationError(msg)
        if self.task == "classification" and self.exclusive and len(self.labels) < 2:
            msg = (
                f"federation '{self.name}' has the single exclusive label '{self.labels[0]}'; add "
                "the other labels or set `exclusive = false`"
            )
            raise DeclarationError(msg)
        for region, members in self.regions.items():
            plain(region, "region")
            unknown = [label for label in members if label not in self.labels]
            if unknown or not members:
                near = (
                    suggestion(unknown[0] if unknown else "", self.labels) or "; correct [regions]"
                )
                msg = (
                    f"region '{region}' unites {listing(unknown) or 'nothing'}, but the "
                    f"federation's labels are {listing(self.labels)}{near}"
                )
                raise DeclarationError(msg)
            if region in self.labels and region not in members:
                msg = (
                    f"region '{region}' has the name of a label that it does not unite; rename it, "
                    f"or add '{region}' to it"
                )
                raise DeclarationError(msg)

    def _check_sites(self) -> None:
        if not self.site:
            msg = f"federation '{self.name}' has no sites; add at least one [[site]] table"
            raise DeclarationError(msg)
        twice = [name for name, count in Counter(s.name for s in self.site).items() if count > 1]
        if twice:
            msg = f"two sites are named {listing(twice)}; give each site its own name"
            raise DeclarationError(msg)
        for site in self.site:
            self._check_site(site)

    def _check_site(self, site: SiteDeclaration) -> None:
        if site.annotates is not None:
            unknown = [label for label in site.annotates if label not in self.labels]
            if unknown:
                near = suggestion(unknown[0], self.labels) or "; add what is missing to `labels`"
                msg = (
                    f"site '{site.name}' annotates {listing(unknown)}, but the federation's labels "
                    f"are {listing(self.labels)}{near}"
                )
                raise DeclarationError(msg)
            if not site.annotates and site.supervision is not Supervision.NONE:
                msg = (
                    f"site '{site.name}' has supervision '{site.supervision}' but annotates no "
                    "label; list its labels or declare supervision 'none'"
                )
                raise DeclarationError(msg)
            if len(set(site.annotates)) < len(site.annotates):
                msg = f"site '{site.name}' lists a label twice in `annotates`; list each once"
                raise DeclarationError(msg)
        if self.task == "classification" and site.supervision not in {
            Supervision.IMAGE,
            Supervision.NONE,
        }:
            msg = (
                f"site '{site.name}' declares supervision '{site.supervision}' for a classification "
                "task; classification uses 'image' or 'none'"
            )
            raise DeclarationError(msg)
        if not site.complete and (
            self.task != "segmentation" or site.supervision is not Supervision.MASK
        ):
            msg = (
                f"site '{site.name}' declares `complete = false` with supervision "
                f"'{site.supervision}'; only masks of a segmentation task can miss objects: set "
                "`complete = true`, or leave labels out of `annotates`"
            )
            raise DeclarationError(msg)
        if site.style == "noisy" and site.supervision is not Supervision.SCRIBBLE:
            msg = (
                f"site '{site.name}' declares style 'noisy' with supervision '{site.supervision}'; "
                'only scribbles have a noisy style: set `style = "plain"`'
            )
            raise DeclarationError(msg)

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted, so that the order in the file changes nothing."""
        return tuple(sorted(site.name for site in self.site))

    def __getitem__(self, name: str) -> SiteDeclaration:
        """Return a site's declaration by name."""
        return next(site for site in self.site if site.name == name)

    def annotated_by(self, name: str) -> tuple[str, ...]:
        """Return the labels a site marks, in the order of the federation's labels."""
        site = self[name]
        if site.supervision is Supervision.NONE:
            return ()
        if site.annotates is None:
            return self.labels
        return tuple(label for label in self.labels if label in site.annotates)

    def without_full_labels(self) -> tuple[str, ...]:
        """Return the sites whose folder holds less than every label in full; datasets hold all."""
        full = Supervision.MASK if self.task == "segmentation" else Supervision.IMAGE
        return tuple(
            site.name
            for site in self.site
            if not site.data.startswith(DATASET)
            and (
                site.supervision is not full
                or not site.complete
                or self.annotated_by(site.name) != self.labels
            )
        )

    def with_full_labels(self) -> Federation:
        """Return the same federation as if every site had marked everything (the oracle's view)."""
        form = Supervision.MASK if self.task == "segmentation" else Supervision.IMAGE
        full = {"supervision": form, "annotates": None, "complete": True, "style": "plain"}
        return self.model_copy(update={"site": tuple(s.model_copy(update=full) for s in self.site)})
