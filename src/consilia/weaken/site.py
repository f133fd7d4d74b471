"""The entry: a site's full labels -> the label view that its declaration promises.

| form | target | known pixels | constraint |
|---|---|---|---|
| mask | the marked labels | all (`None`) | none |
| scribble, point, block | at the marked pixels | the marks, background marks included | none |
| box, rotated box | at the converted pixels | in each box, and far from all boxes | boxes |
| image | 0 | no pixel | all or nothing, per label |
| none | 0 | no pixel, and no label | none |

Boxes come in both encodings, because methods differ in what they can use: FedMix multiplies its
predictions with the constraint and must leave the pixels alone, FedLPPA trains on the converted
pixels and ignores the constraint. A label that the site does not mark is unknown, is 0 in the
target and unbounded in the constraint; "background" is whatever shows none of its own labels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from consilia.datasets.contract import Cases
from consilia.declare import SiteDeclaration, Supervision
from consilia.errors import DataError, DeclarationError
from consilia.labels import LabelView, labels_known
from consilia.weaken import segmentation
from consilia.weaken.drop_labels import hide_labels
from consilia.weaken.recipe import Provenance, Recipe, recipe_for
from consilia.weaken.regions import IndexMaps, stream
from consilia.weaken.volumes import draw_objects, render_objects


def weaken(
    cases: Cases,
    labels: tuple[str, ...],
    declaration: SiteDeclaration,
    *,
    seed: int,
    completeness: float | None = None,
    exclusive: bool = True,
    margin: tuple[int, int] = (1, 10),
) -> tuple[LabelView, Provenance]:
    """Return the label view that a site's declaration promises, and what was drawn for it.

    Args:
        cases: Images with their truth.
        labels: The federation's labels.
        declaration: The site's promise.
        seed: Same seed, same view, whatever the order of the cases.
        completeness: Share of objects to keep at a site that declares `complete = false`.
        exclusive: Whether an image has one label only (classification).
        margin: The smallest and largest margin of boxes in pixels: (1, 10) as in FedMix, (0, 0)
            for tight boxes as in FedLPPA.
    """
    recipe = recipe_for(declaration, completeness=completeness, exclusive=exclusive, margin=margin)
    return weaken_by(recipe, cases, labels, site=declaration.name, seed=seed)


def weaken_by(
    recipe: Recipe, cases: Cases, labels: tuple[str, ...], *, site: str, seed: int
) -> tuple[LabelView, Provenance]:
    """Return the label view that a recipe gives, and what was drawn for it."""
    provenance = Provenance(site, labels, seed, recipe)
    visible = _visible(provenance, cases)
    if visible.ndim == 3 and recipe.completeness is not None:
        drawn = draw_objects(
            visible,
            cases,
            _names(provenance),
            recipe.completeness,
            lambda volume, label: stream(seed, site, volume, "objects", label),
        )
        provenance.objects.update(drawn)
    if visible.ndim == 3 and recipe.form is not Supervision.MASK:
        provenance.marks.update(_draw_marks(provenance, cases, visible))
    return replay(provenance, cases), provenance


def replay(provenance: Provenance, cases: Cases) -> LabelView:
    """Return the view again from what was drawn; nothing is random here.

    Raises:
        DataError: The cases are not those for which it was drawn.
    """
    visible = _visible(provenance, cases)
    known = labels_known(
        len(cases), len(provenance.labels), provenance.recipe.annotated(provenance.labels)
    )
    if visible.ndim == 2:
        return _classification(visible, known, provenance.recipe)
    if provenance.objects:
        visible = render_objects(visible, cases, _names(provenance), provenance.objects)
    return _segmentation(provenance, cases, visible, known)


def _visible(provenance: Provenance, cases: Cases) -> np.ndarray:
    """Return the truth that the site's annotators act on: their own labels, nothing else."""
    if cases.truth is None:
        msg = f"site '{provenance.site}' has no full labels to weaken; use its labels as they are"
        raise DataError(msg)
    if len(set(cases.case)) < len(cases.case):
        msg = f"site '{provenance.site}' has two cases of the same name; give each its own name"
        raise DataError(msg)
    count, truth, form = len(provenance.labels), cases.truth, provenance.recipe.form
    if truth.ndim == 3 and truth.max(initial=0) > count:
        msg = (
            f"site '{provenance.site}' has the value {truth.max()} in its masks, but there are "
            f"{count} labels; map the values to 0 to {count}"
        )
        raise DataError(msg)
    if truth.ndim == 2 and form not in {Supervision.IMAGE, Supervision.NONE}:
        msg = (
            f"site '{provenance.site}' declares supervision '{form}' for a classification task; "
            "classification uses 'image' or 'none'"
        )
        raise DeclarationError(msg)
    return hide_labels(truth, provenance.recipe.annotated(provenance.labels))


def _names(provenance: Provenance) -> dict[int, str]:
    """Return the labels that the site marks, by their index from 1."""
    marked = provenance.recipe.annotated(provenance.labels)
    return {index + 1: provenance.labels[index] for index in marked}


def _draw_marks(provenance: Provenance, cases: Cases, visible: IndexMaps) -> dict[str, Any]:
    """Return what the annotators draw on each case."""
    recipe, names = provenance.recipe, _names(provenance)
    return {
        case: segmentation.draw(
            image,
            names,
            recipe,
            partial(stream, provenance.seed, provenance.site, case, recipe.form.value),
        )
        for case, image in zip(cases.case, visible, strict=True)
    }


def _segmentation(
    provenance: Provenance, cases: Cases, visible: IndexMaps, known: np.ndarray
) -> LabelView:
    """Return the view of all images of a segmentation task."""
    names, count, recipe = _names(provenance), len(provenance.labels), provenance.recipe
    if recipe.form is Supervision.MASK:
        return LabelView(visible, known)
    unknown = [case for case in cases.case if case not in provenance.marks]
    if unknown:
        msg = (
            f"nothing was drawn for case '{unknown[0]}' of site '{provenance.site}'; replay the "
            "cases that were weakened"
        )
        raise DataError(msg)
    rendered = [
        segmentation.render(image, names, count, recipe, provenance.marks[case])
        for case, image in zip(cases.case, visible, strict=True)
    ]
    n, h, w = visible.shape
    planes = np.array([r.constraint for r in rendered if r.constraint is not None], dtype=bool)
    return LabelView(
        np.array([r.target for r in rendered], dtype=np.uint8).reshape(n, h, w),
        known,
        np.array([r.known for r in rendered], dtype=bool).reshape(n, h, w),
        planes.reshape(n, count, h, w) if recipe.form.constrains else None,
    )


def _classification(visible: np.ndarray, known: np.ndarray, recipe: Recipe) -> LabelView:
    """Return the view of all images of a classification task.

    Where labels are exclusive, an image with a marked label is known in full; of any other image
    the site knows that it shows none of its labels, and nothing else.
    """
    if recipe.exclusive and recipe.form is Supervision.IMAGE:
        known = known | visible.any(axis=1, keepdims=True)
    return LabelView(visible, known)
