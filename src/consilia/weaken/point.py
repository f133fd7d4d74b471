"""Points: four dots in a label and four around all labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilia.weaken.box import Box, tight_box
from consilia.weaken.regions import Mask, Shape, depth, side

#: Radius of a dot in image sides: 2.8 px at 256, so that four dots are 0.15 % of the image.
RADIUS = 2.8 / 256
#: How far the dots lie from the centre of the largest inscribed rectangle, in its half sides.
SHRINK = (0.4, 0.6)
#: Gap between labels and background dots, in image sides.
GAP = (0.04, 0.07)
#: Cells per side of the grid on which the largest rectangle is searched.
CELLS = 32


@dataclass(frozen=True)
class Points:
    """Dots by their centres and their common radius in pixels."""

    rows: tuple[float, ...]
    cols: tuple[float, ...]
    radius: float


def largest_rectangle(cells: Mask) -> Box | None:
    """Return the largest upright rectangle that fits in a mask, or `None` when it is empty."""
    best, area = None, 0
    heights = [0] * (cells.shape[1] + 1)  # the last one is a sentinel that closes all rectangles
    for row, line in enumerate(cells.tolist()):
        heights[:-1] = [height + 1 if on else 0 for height, on in zip(heights, line, strict=False)]
        open_at: list[int] = []
        for col, height in enumerate(heights):
            while open_at and heights[open_at[-1]] >= height:
                tall = heights[open_at.pop()]
                left = open_at[-1] + 1 if open_at else 0
                if tall * (col - left) > area:
                    best, area = Box(row - tall + 1, left, row, col - 1), tall * (col - left)
            open_at.append(col)
    return best


def inscribed_box(region: Mask) -> Box | None:
    """Return a largest rectangle inside a region; a region over 32 px is searched in small cells.

    A region too thin for any full cell is searched pixel by pixel.
    """
    around = tight_box(region)
    if around is None:
        return None
    view = region[around.top : around.bottom + 1, around.left : around.right + 1]
    step = -(-max(view.shape) // CELLS)
    rows, cols = (size // step for size in view.shape)
    cells = view[: rows * step, : cols * step].reshape(rows, step, cols, step).all(axis=(1, 3))
    if not cells.any():
        step, cells = 1, view
    box = largest_rectangle(np.asarray(cells))
    assert box is not None  # some cell is full
    return Box(
        around.top + box.top * step,
        around.left + box.left * step,
        around.top + (box.bottom + 1) * step - 1,
        around.left + (box.right + 1) * step - 1,
    )


def side_midpoints(box: Box, scale: float, shape: Shape) -> Points:
    """Return dots at the midpoints of the sides of a box scaled about its centre."""
    row, col = (box.top + box.bottom) / 2, (box.left + box.right) / 2
    up, out = scale * (box.bottom - box.top) / 2, scale * (box.right - box.left) / 2
    return Points(
        (row - up, row + up, row, row), (col, col, col - out, col + out), RADIUS * side(shape)
    )


def draw_points(
    region: Mask, rng: np.random.Generator, shrink: tuple[float, float] = SHRINK
) -> Points | None:
    """Return four dots: the side midpoints of the shrunken largest inscribed rectangle."""
    box = inscribed_box(region)
    return None if box is None else side_midpoints(box, rng.uniform(*shrink), region.shape)


def draw_background_points(
    region: Mask, rng: np.random.Generator, gap: tuple[float, float] = GAP
) -> Points | None:
    """Return up to four dots above, below, left and right of all labels.

    Where labels touch the border there is no dot beyond; where none is possible, one dot marks the
    pixel farthest from every label. Without labels the dots are those of `draw_points`.
    """
    labels = tight_box(~region)
    if labels is None:
        return draw_points(region, rng)
    if not region.any():
        return None
    height, width = region.shape
    up, out = (max(1.0, float(g)) for g in rng.uniform(*gap, size=2) * side(region.shape))
    row, col = (labels.top + labels.bottom) / 2, (labels.left + labels.right) / 2
    dots = [
        (max(0.0, labels.top - up), col),
        (min(height - 1.0, labels.bottom + up), col),
        (row, max(0.0, labels.left - out)),
        (row, min(width - 1.0, labels.right + out)),
    ]
    dots = [(r, c) for r, c in dots if region[int(r), int(c)]]
    if not dots:
        r, c = divmod(int(depth(region).argmax()), width)
        dots = [(float(r), float(c))]
    rows, cols = zip(*dots, strict=True)
    return Points(rows, cols, RADIUS * side(region.shape))


def render_points(points: Points, region: Mask) -> Mask:
    """Return the pixels of the region under the dots; each dot marks its own at least."""
    rows, cols = np.ogrid[: region.shape[0], : region.shape[1]]
    marked = np.zeros(region.shape, dtype=bool)
    for row, col in zip(points.rows, points.cols, strict=True):
        marked |= (rows - row) ** 2 + (cols - col) ** 2 <= points.radius**2
        marked[int(row), int(col)] = True
    clipped: Mask = marked & region
    return clipped
