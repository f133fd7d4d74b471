"""A recipe says how a site's full labels become weak; a provenance says what was drawn for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from consilia.declare import SiteDeclaration, Sparsity, Supervision
from consilia.errors import DeclarationError


@dataclass(frozen=True)
class Recipe:
    """How full labels become those that a site declares.

    Attributes:
        form: What the site's annotators draw.
        annotates: The labels they mark; `None` means all.
        style: "noisy" is FedLPPA's second scribble.
        completeness: Share of objects that masks show; `None` means all.
        margin: The smallest and largest margin of boxes in pixels.
        convert: What boxes become for methods that need marked pixels.
        exclusive: Whether an image has one label only (classification).
    """

    form: Supervision
    annotates: tuple[str, ...] | None = None
    style: Literal["plain", "noisy"] = "plain"
    completeness: float | None = None
    margin: tuple[int, int] = (1, 10)
    convert: Literal["block", "scribble"] = "block"
    exclusive: bool = True

    def __post_init__(self) -> None:
        if self.completeness is None:
            return
        if not 0 < self.completeness <= 1:
            msg = f"completeness {self.completeness} is not in (0, 1]; give the share of objects"
            raise DeclarationError(msg)
        if self.form is not Supervision.MASK:
            msg = f"only masks can miss objects, but the form is '{self.form}'; use masks"
            raise DeclarationError(msg)

    def annotated(self, labels: tuple[str, ...]) -> tuple[int, ...]:
        """Return the indices from 0 of the labels that are marked."""
        if self.form is Supervision.NONE:
            return ()
        marked = labels if self.annotates is None else self.annotates
        return tuple(index for index, label in enumerate(labels) if label in marked)


def recipe_for(
    site: SiteDeclaration,
    *,
    completeness: float | None = None,
    exclusive: bool = True,
    margin: tuple[int, int] = (1, 10),
) -> Recipe:
    """Return the recipe that keeps a site's promise.

    Boxes of a site that declares medium sparsity are converted to scribbles, others to blocks.

    Raises:
        DeclarationError: Objects are to be left out at a site that declares complete masks.
    """
    if site.complete and completeness is not None and completeness < 1:
        msg = (
            f"site '{site.name}' declares complete masks, but is to show {completeness:.0%} of its "
            "objects; declare `complete = false`"
        )
        raise DeclarationError(msg)
    return Recipe(
        form=site.supervision,
        annotates=site.annotates,
        style=site.style,
        completeness=None if site.complete else completeness,
        margin=margin,
        convert="scribble" if site.density is Sparsity.MEDIUM else "block",
        exclusive=exclusive,
    )


@dataclass(frozen=True)
class Provenance:
    """Everything that was drawn for a site; with the full labels it gives the same view again.

    Attributes:
        site: The name of the site.
        labels: The federation's labels.
        seed: From which all was drawn.
        recipe: How.
        objects: Per volume (or single image) and label, the objects that were kept.
        marks: Per case, what the annotators drew, as plain values.
    """

    site: str
    labels: tuple[str, ...]
    seed: int
    recipe: Recipe
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    marks: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return the record as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Provenance:
        """Return the record from what `to_plain` gave, also after a way through JSON."""
        values = _tuples(plain)
        recipe = {**values["recipe"], "form": Supervision(values["recipe"]["form"])}
        return cls(**{**values, "recipe": Recipe(**recipe)})


def _tuples(value: Any) -> Any:
    """Return the value with each list as a tuple, as it was before JSON."""
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
