"""Rotated boxes: the rectangle of least area around a label, and coordinates inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from consilia.weaken.box import Box
from consilia.weaken.regions import Depth, Mask, Shape

#: Pixel centres this far outside (in half sides) still count as inside: rounding, not geometry.
TOLERANCE = 1e-9
HALF_ROW = np.array([0.5, 0.0])


@dataclass(frozen=True)
class RotatedBox:
    """A rectangle by its centre, its half sides along its own two axes and its angle.

    The first axis points along (cos angle, sin angle) in (row, column); angles are in radians.
    """

    row: float
    col: float
    half_first: float
    half_second: float
    angle: float

    @property
    def area(self) -> float:
        """The area in pixels."""
        return 4 * self.half_first * self.half_second


def upright(box: Box) -> RotatedBox:
    """Return a box as a rotated one with angle 0, covering the same pixels."""
    return RotatedBox(
        (box.top + box.bottom) / 2,
        (box.left + box.right) / 2,
        (box.bottom - box.top + 1) / 2,
        (box.right - box.left + 1) / 2,
        0.0,
    )


def _corners(mask: Mask) -> np.ndarray:
    """Return the corner points of the outermost pixels of each row."""
    rows = np.flatnonzero(mask.any(axis=1))
    first = mask[rows].argmax(axis=1) - 0.5
    last = mask.shape[1] - mask[rows, ::-1].argmax(axis=1) - 0.5
    both = np.concatenate([np.stack([rows, first], axis=1), np.stack([rows, last], axis=1)])
    return np.concatenate([both - HALF_ROW, both + HALF_ROW])


def _extent(hull: np.ndarray, angle: float) -> tuple[float, float, float, float]:
    """Return the least and greatest coordinate of the hull along the two axes of an angle."""
    first = hull @ [math.cos(angle), math.sin(angle)]
    second = hull @ [-math.sin(angle), math.cos(angle)]
    return first.min(), first.max(), second.min(), second.max()


def _cost(hull: np.ndarray, angle: float) -> tuple[float, float]:
    low, high, left, right = _extent(hull, angle)
    return round((high - low) * (right - left), 6), angle


def least_area_angle(hull: np.ndarray) -> float:
    """Return the angle of the smallest enclosing rectangle, from 0 to a right angle.

    One side of it lies on an edge of the hull (rotating calipers), so only those angles are tried.
    """
    edges = np.roll(hull, -1, axis=0) - hull
    angles = np.unique(np.round(np.arctan2(edges[:, 1], edges[:, 0]) % (math.pi / 2), 9))
    return min((float(angle) for angle in angles), key=lambda angle: _cost(hull, angle))


def draw_rotated_box(
    mask: Mask, rng: np.random.Generator, margin: tuple[int, int] = (1, 10)
) -> RotatedBox | None:
    """Return the rectangle of least area around a label with four random margins, or `None`.

    Args:
        mask: Where the label is.
        rng: Draws the four margins.
        margin: The smallest and the largest margin in pixels, both possible.
    """
    if not mask.any():
        return None
    from scipy.spatial import ConvexHull

    corners = _corners(mask)
    hull = corners[ConvexHull(corners).vertices]
    angle = least_area_angle(hull)
    low, high, left, right = np.array(_extent(hull, angle)) + (
        rng.integers(*margin, size=4, endpoint=True) * [-1, 1, -1, 1]
    )
    first, second = (low + high) / 2, (left + right) / 2
    return RotatedBox(
        float(first * math.cos(angle) - second * math.sin(angle)),
        float(first * math.sin(angle) + second * math.cos(angle)),
        float(high - low) / 2,
        float(right - left) / 2,
        angle,
    )


def coordinates(box: RotatedBox, shape: Shape) -> tuple[Depth, Depth]:
    """Return each pixel's position along the two axes of a box, in half sides from its centre.

    A pixel is in the box when both are within ±1, and in the inscribed ellipse when their squares
    add up to at most 1.
    """
    rows = np.arange(shape[0])[:, None] - box.row
    cols = np.arange(shape[1])[None, :] - box.col
    cos, sin = math.cos(box.angle), math.sin(box.angle)
    return (rows * cos + cols * sin) / box.half_first, (cols * cos - rows * sin) / box.half_second


def render_rotated_box(box: RotatedBox, shape: Shape) -> Mask:
    """Return the pixels whose centre lies in a box."""
    first, second = coordinates(box, shape)
    inside: Mask = np.maximum(np.abs(first), np.abs(second)) <= 1 + TOLERANCE
    return inside
