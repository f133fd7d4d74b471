"""Boxes: the tight rectangle around a label, each side moved out by its own random margin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilia.weaken.regions import Mask, Shape


@dataclass(frozen=True)
class Box:
    """Rows `top` to `bottom` and columns `left` to `right`, both ends included."""

    top: int
    left: int
    bottom: int
    right: int


def tight_box(mask: Mask) -> Box | None:
    """Return the smallest box around all pixels of a mask, or `None` when it is empty."""
    rows, cols = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    return Box(int(rows[0]), int(cols[0]), int(rows[-1]), int(cols[-1]))


def widen_box(box: Box, margins: tuple[int, int, int, int], shape: Shape) -> Box:
    """Return the box moved out by margins (top, left, bottom, right), inside the image."""
    top, left, bottom, right = margins
    return Box(
        max(0, box.top - top),
        max(0, box.left - left),
        min(shape[0] - 1, box.bottom + bottom),
        min(shape[1] - 1, box.right + right),
    )


def draw_box(mask: Mask, rng: np.random.Generator, margin: tuple[int, int] = (1, 10)) -> Box | None:
    """Return one box around a label, or `None` when the label is absent.

    One box per label and image, not per object (FedMix).

    Args:
        mask: Where the label is.
        rng: Draws the four margins.
        margin: The smallest and the largest margin in pixels, both possible.
    """
    box = tight_box(mask)
    if box is None:
        return None
    top, left, bottom, right = (int(m) for m in rng.integers(*margin, size=4, endpoint=True))
    return widen_box(box, (top, left, bottom, right), mask.shape)


def render_box(box: Box, shape: Shape) -> Mask:
    """Return the pixels inside a box."""
    inside = np.zeros(shape, dtype=bool)
    inside[box.top : box.bottom + 1, box.left : box.right + 1] = True
    return inside
