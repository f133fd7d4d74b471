"""What annotators draw, in any format, and the pixels that it covers.

Positions are (row, column) in pixels, counted continuously: the first pixel reaches from 0 to 1, and
its centre lies at 0.5. A pixel belongs to a polygon when its centre lies inside (even-odd rule); on
an edge it belongs to the side below or right, so that polygons that share an edge share no pixel.
`Box` and `RotatedBox` are those of `consilia.weaken`: whole pixels, and positions of their centres.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import ndimage

from consilia.errors import DataError
from consilia.readers.files import Size
from consilia.weaken import Box, Points, RotatedBox, render_box, render_points, render_rotated_box
from consilia.weaken.box import tight_box
from consilia.weaken.regions import Mask
from consilia.weaken.rotated_box import upright
from consilia.weaken.scribble import pen_reach

Point = tuple[float, float]
#: An edge this near to the next pixel, in pixels, does not touch it: rounding, not geometry.
NEAR = 0.01
#: A shape may reach this far beyond its image, in pixels; what does is cut off.
BEYOND = 1.0


@dataclass(frozen=True)
class Polygon:
    """The pixels in any of several rings of corners."""

    rings: tuple[tuple[Point, ...], ...]


@dataclass(frozen=True)
class Line:
    """A stroke along corners, as wide as the scribbles of `consilia.weaken`."""

    points: tuple[Point, ...]


@dataclass(frozen=True)
class Dots:
    """The pixels around some positions; without a radius each is the one pixel that holds it."""

    points: tuple[Point, ...]
    radius: float = 0.0


@dataclass(frozen=True)
class Bitmap:
    """Pixels one by one, in a window that begins at a row and a column; eight to a byte."""

    top: int
    left: int
    size: Size
    packed: bytes

    @classmethod
    def of(cls, pixels: Mask, top: int = 0, left: int = 0) -> Bitmap:
        """Return the pixels that are set, in the smallest window."""
        around = tight_box(pixels) or Box(0, 0, 0, 0)
        inner = pixels[around.top : around.bottom + 1, around.left : around.right + 1]
        return cls(top + around.top, left + around.left, inner.shape, np.packbits(inner).tobytes())

    @property
    def pixels(self) -> Mask:
        """The pixels of the window."""
        bits = np.unpackbits(np.frombuffer(self.packed, np.uint8), count=math.prod(self.size))
        return bits.reshape(self.size).astype(bool)


Shape = Box | RotatedBox | Polygon | Line | Dots | Bitmap
#: How shapes are called in sentences.
NOUNS: dict[type, str] = {
    Box: "box",
    RotatedBox: "rotated box",
    Polygon: "polygon",
    Line: "line",
    Dots: "point",
    Bitmap: "mask",
}


@dataclass(frozen=True)
class Mark:
    """One thing that was drawn.

    Attributes:
        where: The place in the source, for sentences ("boxes.csv of site 'x', line 2,").
        label: Its index from 1; 0 is a background that was marked.
        shapes: What was drawn; several where a format gives the same thing in several ways.
        exact: Whether its positions are whole pixels, so that none may lie outside the image.
    """

    where: str
    label: int
    shapes: tuple[Shape, ...]
    exact: bool = False

    @property
    def shape(self) -> Shape:
        """What was drawn, once one way was chosen."""
        return self.shapes[0]


# ----------------------------------------------------------------------------------------- making


def touched(top: float, left: float, bottom: float, right: float) -> Box:
    """Return the pixels that a rectangle between continuous edges touches."""
    first_row, first_col = math.floor(top + NEAR), math.floor(left + NEAR)
    return Box(
        first_row,
        first_col,
        max(first_row, math.ceil(bottom - NEAR) - 1),
        max(first_col, math.ceil(right - NEAR) - 1),
    )


def turned(top: float, left: float, bottom: float, right: float, degrees: float) -> RotatedBox:
    """Return the rectangle between continuous edges, turned clockwise about its centre."""
    return RotatedBox(
        (top + bottom) / 2 - 0.5,
        (left + right) / 2 - 0.5,
        (bottom - top) / 2,
        (right - left) / 2,
        -math.radians(degrees),
    )


def from_corners(ring: Sequence[Point]) -> RotatedBox | None:
    """Return the rectangle with four corners in order, or `None` where they make none."""
    if len(ring) != 4:
        return None
    corners = np.array(ring)
    across, down = corners[1] - corners[0], corners[3] - corners[0]
    gap = np.abs(corners[0] + corners[2] - corners[1] - corners[3]).max()
    sides = float(np.hypot(*across)), float(np.hypot(*down))
    slack = NEAR * max(1.0, *sides)
    if min(sides) < NEAR or gap > slack or abs(across @ down) > slack * max(sides):
        return None
    row, col = corners.mean(axis=0) - 0.5
    angle = math.atan2(down[1], down[0])
    return RotatedBox(float(row), float(col), sides[1] / 2, sides[0] / 2, angle)


def corners_of(box: RotatedBox) -> tuple[Point, ...]:
    """Return the corners of a rotated box in order, as continuous positions."""
    cos, sin = math.cos(box.angle), math.sin(box.angle)
    down = np.array([cos, sin]) * box.half_first
    across = np.array([-sin, cos]) * box.half_second
    centre = np.array([box.row + 0.5, box.col + 0.5])
    ring = (
        centre - down - across,
        centre - down + across,
        centre + down + across,
        centre + down - across,
    )
    return tuple((float(row), float(col)) for row, col in ring)


# ---------------------------------------------------------------------------------------- checking


def check_inside(mark: Mark, image: str, size: Size) -> None:
    """Refuse a shape that does not lie in its image, which has this height and width.

    Raises:
        DataError: It reaches out of the image, or a rotated box lies outside altogether.
    """
    low, high = _extent(mark.shape)
    slack = 0.0 if mark.exact else BEYOND
    if isinstance(mark.shape, Box):
        box = mark.shape
        if min(low) < -slack or box.bottom >= size[0] + slack or box.right >= size[1] + slack:
            msg = (
                f"{mark.where} has a box of columns {box.left} to {box.right} and rows {box.top} to "
                f"{box.bottom}, but image '{image}' has columns 0 to {size[1] - 1} and rows 0 to "
                f"{size[0] - 1}; give both ends in pixels, counted from 0"
            )
            raise DataError(msg)
    elif min(low) < -slack or high[0] > size[0] + slack or high[1] > size[1] + slack:
        if isinstance(mark.shape, RotatedBox) and render(mark.shape, size).any():
            return  # wide margins around a label at the border can move the centre out
        place = f"in rows {low[0]:.5g} to {high[0]:.5g} and columns {low[1]:.5g} to {high[1]:.5g}"
        if low == high:
            counted = mark.exact and isinstance(mark.shape, Dots)  # in whole pixels
            shift = 0.5 if counted or isinstance(mark.shape, RotatedBox) else 0.0
            place = f"at row {low[0] - shift:.5g} and column {low[1] - shift:.5g}"
        msg = (
            f"{mark.where} has a {NOUNS[type(mark.shape)]} {place}, but image '{image}' has "
            f"{size[0]} rows and {size[1]} columns; give positions in pixels of the stored image"
        )
        raise DataError(msg)


def _extent(shape: Shape) -> tuple[Point, Point]:
    """Return the least and the greatest position of what has to lie in the image."""
    match shape:
        case Box():
            return (shape.top, shape.left), (shape.bottom + 1, shape.right + 1)
        case RotatedBox():  # may reach beyond the image, as one around a label at its border does
            centre = shape.row + 0.5, shape.col + 0.5
            return centre, centre
        case Bitmap():
            height, width = shape.size
            return (shape.top, shape.left), (shape.top + height, shape.left + width)
        case Polygon():
            points = np.concatenate([np.array(ring) for ring in shape.rings])
        case Line() | Dots():
            points = np.array(shape.points)
    (row, col), (last_row, last_col) = points.min(axis=0), points.max(axis=0)
    return (float(row), float(col)), (float(last_row), float(last_col))


# --------------------------------------------------------------------------------------- rendering


def render(shape: Shape, size: Size) -> Mask:
    """Return the pixels that a shape covers in an image of a height and a width."""
    match shape:
        case Box():
            return render_box(clipped(shape, size), size)
        case RotatedBox():
            return render_rotated_box(shape, size)
        case Polygon():
            covered = np.zeros(size, dtype=bool)
            for ring in shape.rings:
                covered |= fill(np.array(ring), size)
            return covered
        case Line():
            return _stroke(shape, size)
        case Dots():
            return _dots(shape, size)
        case Bitmap():
            covered = np.zeros(size, dtype=bool)
            part = shape.pixels[max(0, -shape.top) :, max(0, -shape.left) :]
            window = covered[max(0, shape.top) :, max(0, shape.left) :]
            window = window[: part.shape[0], : part.shape[1]]
            window |= part[: window.shape[0], : window.shape[1]]
            return covered


def clipped(box: Box, size: Size) -> Box:
    """Return the part of a box that lies in the image."""
    return Box(
        max(0, box.top), max(0, box.left), min(size[0] - 1, box.bottom), min(size[1] - 1, box.right)
    )


def fill(ring: np.ndarray, size: Size) -> Mask:
    """Return the pixels whose centres lie in a ring of corners.

    Along each row of centres, every edge that is crossed toggles all pixels to its right.
    """
    height, width = size
    start, end = ring, np.roll(ring, -1, axis=0)
    upward = (start[:, 0] > end[:, 0])[:, None]
    low, high = np.where(upward, end, start), np.where(upward, start, end)
    first = np.clip(np.ceil(low[:, 0] - 0.5), 0, height).astype(int)
    last = np.clip(np.ceil(high[:, 0] - 0.5), 0, height).astype(int)
    counts = last - first
    edge = np.repeat(np.arange(len(ring)), counts)
    begins = np.repeat(counts.cumsum() - counts, counts)
    rows = first[edge] + np.arange(len(edge)) - begins
    slope = (high[edge, 1] - low[edge, 1]) / (high[edge, 0] - low[edge, 0])
    crossing = low[edge, 1] + (rows + 0.5 - low[edge, 0]) * slope
    cols = np.clip(np.ceil(crossing - 0.5), 0, width).astype(int)
    toggles = np.bincount(rows * (width + 1) + cols, minlength=height * (width + 1))
    odd: Mask = toggles.reshape(height, width + 1).cumsum(axis=1)[:, :width] % 2 == 1
    return odd


def _stroke(shape: Line, size: Size) -> Mask:
    from skimage.draw import line

    drawn = np.zeros(size, dtype=bool)
    pixels = _pixels(shape.points, size)
    drawn[tuple(pixels[0])] = True
    for start, end in pairwise(pixels):
        drawn[line(*start.tolist(), *end.tolist())] = True
    wide: Mask = ndimage.binary_dilation(drawn, iterations=pen_reach(drawn))
    return wide


def _dots(shape: Dots, size: Size) -> Mask:
    if not shape.radius:
        covered = np.zeros(size, dtype=bool)
        covered[tuple(_pixels(shape.points, size).T)] = True
        return covered
    rows, cols = (
        np.clip(at, 0, top - 1)
        for at, top in zip(np.array(shape.points).T - 0.5, size, strict=True)
    )
    dots = Points(tuple(rows.tolist()), tuple(cols.tolist()), shape.radius)
    return render_points(dots, np.ones(size, dtype=bool))


def _pixels(points: Sequence[Point], size: Size) -> np.ndarray:
    pixels: np.ndarray = np.clip(np.floor(np.array(points)).astype(int), 0, np.array(size) - 1)
    return pixels


def paint(marks: Sequence[Mark], size: Size, empty: int) -> np.ndarray:
    """Return an index map of all marks; of two in one pixel, the smaller one is seen."""
    covered = [(mark.label, render(mark.shape, size)) for mark in marks]
    painted = np.full(size, empty, dtype=np.uint8)
    for label, pixels in sorted(covered, key=lambda item: -int(item[1].sum())):
        painted[pixels] = label
    return painted


def fit_span(first: int, last: int, stored: int, wanted: int) -> tuple[int, int]:
    """Return the first and the last of `wanted` pixels that these of `stored` pixels touch."""
    return first * wanted // stored, -(-(last + 1) * wanted // stored) - 1


def fit_box(shape: Box | RotatedBox, stored: Size, size: Size) -> Box | RotatedBox:
    """Return a box in pixels of another size; it covers all that it covered."""
    if isinstance(shape, Box):
        box = clipped(shape, stored)
        top, bottom = fit_span(box.top, box.bottom, stored[0], size[0])
        left, right = fit_span(box.left, box.right, stored[1], size[1])
        return Box(top, left, bottom, right)
    if stored == size:
        return shape
    scale = np.array(size) / np.array(stored)
    ring = np.array(corners_of(shape)) * scale
    down = ring[3] - ring[0]
    along = down / np.hypot(*down)
    across = np.array([-along[1], along[0]])
    first, second = ring @ along, ring @ across
    middle = (first.min() + first.max()) / 2 * along + (second.min() + second.max()) / 2 * across
    return RotatedBox(
        float(middle[0]) - 0.5,
        float(middle[1]) - 0.5,
        float(np.ptp(first)) / 2,
        float(np.ptp(second)) / 2,
        math.atan2(along[1], along[0]),
    )


def as_rotated(shape: Box | RotatedBox) -> RotatedBox:
    """Return any box as a rotated one."""
    return upright(shape) if isinstance(shape, Box) else shape
