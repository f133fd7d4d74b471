"""Boxes -> sparse pixels, so that methods which need marked pixels can use boxes (FedLPPA).

Only the drawn boxes are read, never the truth: as at a real site, some of the marked pixels may be
wrong. A label whose box holds another label's box (disc and cup) is taken to be a ring around it.
There is one box per label, so this suits labels of one compact object. Around scattered lesions
nearly all pixels it marks as label are wrong (97 % on MS slices): use the constraint there.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Literal

import numpy as np

from consilia.weaken.regions import Depth, IndexMap, Mask, Shape, side
from consilia.weaken.rotated_box import RotatedBox, coordinates, render_rotated_box

#: Size of the inner ellipse in half sides of the box: marks 18 to 20 % of the FAZ, as the authors'.
SCALE = (0.38, 0.44)
#: A ring's block reaches from the first to the second of these, from the inner box to the outer.
RING = (1 / 3, 2 / 3)
#: Size of the closed stroke in half sides of the box.
STROKE = 0.5
#: Gap between boxes and background in image sides, or half the space where short; on FAZ images
#: it leaves 74 to 84 %, as the authors' does.
GAP = 0.1
#: Width of strokes, in image sides: 3 px at 128.
WIDTH = 3 / 128


@dataclass(frozen=True)
class Conversion:
    """What boxes are turned into, and how large the inner ellipse is in half sides of the box."""

    kind: Literal["block", "scribble"]
    scale: float


def draw_conversion(
    kind: Literal["block", "scribble"],
    rng: np.random.Generator,
    scale: tuple[float, float] = SCALE,
) -> Conversion:
    """Return the conversion of the boxes of one image."""
    return Conversion(kind, float(rng.uniform(*scale)) if kind == "block" else STROKE)


def between(inner: RotatedBox, outer: RotatedBox, step: float) -> RotatedBox:
    """Return the box that is part of the way from an inner to an outer box."""
    mixed = (1 - step) * np.array(astuple(inner)) + step * np.array(astuple(outer))
    return replace(RotatedBox(*mixed.tolist()), angle=outer.angle)


def _radius(box: RotatedBox, shape: Shape) -> Depth:
    """Return the size of the ellipse through each pixel, in half sides of the box."""
    first, second = coordinates(box, shape)
    radius: Depth = np.hypot(first, second)
    return radius


def _distance(box: RotatedBox, shape: Shape) -> Depth:
    """Return how many pixels each pixel lies outside a box; negative inside."""
    first, second = coordinates(box, shape)
    outside: Depth = np.maximum(
        (np.abs(first) - 1) * box.half_first, (np.abs(second) - 1) * box.half_second
    )
    return outside


def _line(box: RotatedBox, scale: float, shape: Shape) -> Mask:
    """Return a closed line along the ellipse of a box; small boxes have it filled."""
    away = np.abs(_radius(box, shape) - scale) * min(box.half_first, box.half_second)
    line: Mask = away <= WIDTH * side(shape) / 2
    return line


def _holds(outer: RotatedBox, inner: RotatedBox) -> bool:
    """Tell whether an inner box lies in an outer one, but for a tenth of its sides."""
    turn = inner.angle - outer.angle
    cos, sin = abs(np.cos(turn)), abs(np.sin(turn))
    reach_first = inner.half_first * cos + inner.half_second * sin
    reach_second = inner.half_first * sin + inner.half_second * cos
    rows, cols = inner.row - outer.row, inner.col - outer.col
    first = rows * np.cos(outer.angle) + cols * np.sin(outer.angle)
    second = cols * np.cos(outer.angle) - rows * np.sin(outer.angle)
    return bool(
        outer.area > inner.area
        and abs(first) + reach_first <= 1.1 * outer.half_first
        and abs(second) + reach_second <= 1.1 * outer.half_second
    )


def _foreground(
    box: RotatedBox, others: list[RotatedBox], conversion: Conversion, shape: Shape
) -> Mask:
    """Return the pixels taken to show the label of a box."""
    held = max((o for o in others if _holds(box, o)), key=lambda o: o.area, default=None)
    if conversion.kind == "scribble":
        if held is not None:
            return _line(between(held, box, 0.5), 1.0, shape)
        return _line(box, conversion.scale, shape)
    if held is not None:
        low, high = (_radius(between(held, box, step), shape) for step in RING)
        return (low > 1) & (high <= 1)
    radius = _radius(box, shape)
    filled: Mask = radius <= max(conversion.scale, radius.min())  # one pixel at least
    return filled


def _background(boxes: list[RotatedBox], conversion: Conversion, shape: Shape) -> Mask:
    """Return the pixels outside all boxes that are taken to show none of the labels."""
    distance = np.min([_distance(box, shape) for box in boxes], axis=0)
    gap = min(GAP * side(shape), distance.max() / 2)
    if conversion.kind == "scribble":
        away: Mask = np.abs(distance - gap) <= WIDTH * side(shape) / 2
    else:
        away = distance > max(0, gap)
    for box in boxes:  # pixels on the very edge are inside, however that is rounded
        away &= ~render_rotated_box(box, shape)
    return away


def convert_boxes(
    boxes: dict[int, RotatedBox], conversion: Conversion, shape: Shape
) -> tuple[IndexMap, Mask]:
    """Return the index map and the known pixels that stand for the boxes of one image.

    Args:
        boxes: A box for each label that is present, by its index from 1.
        conversion: Block or scribble, and its size.
        shape: Of the image.
    """
    target = np.zeros(shape, dtype=np.uint8)
    if not boxes:
        return target, np.ones(shape, dtype=bool)
    known = _background(list(boxes.values()), conversion, shape)
    for label, box in sorted(boxes.items(), key=lambda item: -item[1].area):
        others = [other for name, other in boxes.items() if name != label]
        marked = _foreground(box, others, conversion, shape)
        target[marked] = label
        known |= marked
    return target, known
