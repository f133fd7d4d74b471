"""Draw and render the weak labels of one image, form by form.

What is drawn is a dictionary of plain values; what is rendered reads only it and the visible labels
(the truth without the labels that the site does not mark).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from consilia.declare import Supervision
from consilia.weaken.box import Box, draw_box, render_box
from consilia.weaken.convert import Conversion, convert_boxes, draw_conversion
from consilia.weaken.image_tag import ImageTag, draw_image_tag, render_image_tag
from consilia.weaken.recipe import Recipe
from consilia.weaken.regions import BACKGROUND, IndexMap, Mask, Shape
from consilia.weaken.rotated_box import RotatedBox, draw_rotated_box, render_rotated_box, upright
from consilia.weaken.sparse import SPARSE, Streams, draw_sparse, render_sparse

Planes = Bool[np.ndarray, "k h w"]
BOXES = {Supervision.BOX, Supervision.ROTATED_BOX}


@dataclass(frozen=True)
class Rendered:
    """What the annotation of one image says: class values, marked pixels, bounds."""

    target: IndexMap
    known: Mask
    constraint: Planes | None = None


def draw(visible: IndexMap, names: dict[int, str], recipe: Recipe, at: Streams) -> dict[str, Any]:
    """Return what the annotators of one image draw, as plain values.

    Args:
        visible: The index map, without the labels that the site does not mark.
        names: The labels that the site marks, by their index from 1.
        recipe: Which form, and how.
        at: Gives the random numbers of a region.
    """
    if recipe.form in SPARSE:
        return draw_sparse(visible, names, recipe, at)
    if recipe.form in BOXES:
        return _draw_boxes(visible, names, recipe, at)
    return asdict(draw_image_tag(visible)) if recipe.form is Supervision.IMAGE else {}


def render(
    visible: IndexMap, names: dict[int, str], labels: int, recipe: Recipe, drawn: dict[str, Any]
) -> Rendered:
    """Return what was drawn as class values, marked pixels and bounds; `labels` counts them all."""
    if recipe.form in SPARSE:
        known = render_sparse(visible, names, recipe, drawn)
        return Rendered(np.where(known, visible, np.uint8(0)), known)
    if recipe.form in BOXES:
        return _render_boxes(visible.shape, names, labels, recipe, drawn)
    shape = visible.shape
    zeros, nowhere = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=bool)
    if recipe.form is Supervision.NONE:
        return Rendered(zeros, nowhere)
    planes = {index: render_image_tag(ImageTag(**drawn), index, shape) for index in names}
    return Rendered(zeros, nowhere, _bounds(planes, labels, shape))


def _bounds(planes: dict[int, Mask], labels: int, shape: Shape) -> Planes:
    """Return where each label may be; a label without a plane may be anywhere."""
    constraint = np.ones((labels, *shape), dtype=bool)
    for index, plane in planes.items():
        constraint[index - 1] = plane
    return constraint


def _draw_boxes(
    visible: IndexMap, names: dict[int, str], recipe: Recipe, at: Streams
) -> dict[str, Any]:
    draw_one = draw_box if recipe.form is Supervision.BOX else draw_rotated_box
    boxes = {n: draw_one(visible == i, at(n), recipe.margin) for i, n in names.items()}
    return {
        "boxes": {name: None if box is None else asdict(box) for name, box in boxes.items()},
        "conversion": asdict(draw_conversion(recipe.convert, at(BACKGROUND))),
    }


def _render_boxes(
    shape: Shape, names: dict[int, str], labels: int, recipe: Recipe, drawn: dict[str, Any]
) -> Rendered:
    planes: dict[int, Mask] = {}
    frames: dict[int, RotatedBox] = {}
    for index, name in names.items():
        plain = drawn["boxes"][name]
        if plain is None:
            planes[index] = np.zeros(shape, dtype=bool)
        elif recipe.form is Supervision.BOX:
            planes[index] = render_box(Box(**plain), shape)
            frames[index] = upright(Box(**plain))
        else:
            planes[index] = render_rotated_box(RotatedBox(**plain), shape)
            frames[index] = RotatedBox(**plain)
    target, known = convert_boxes(frames, Conversion(**drawn["conversion"]), shape)
    return Rendered(target, known, _bounds(planes, labels, shape))
