"""Scribbles: a pen stroke inside each part of a label, and a loop around all labels.

What is drawn is the path of the pen, pixel by pixel; what is rendered is the width of the pen,
clipped to the region, so that no stroke ever marks a wrong pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from scipy import ndimage

from consilia.weaken.regions import Depth, Mask, depth, parts, side

Path = Int[np.ndarray, "_ 2"]

#: Share of a label's area that its strokes mark (the FedLPPA authors': 13 to 22 % per site).
SHARE = (0.12, 0.20)
#: Share of the image that the background stroke marks (the authors': 3.7 to 3.9 %).
BACKGROUND_SHARE = (0.036, 0.040)
#: Least gap between labels and background stroke, in image sides; half the space where short.
GAP = 0.06
#: A noisy stroke loses this share of its path (ours: FedLPPA Sec. IV-A gives none), in `GAPS` places.
ERASED = (0.2, 0.4)
GAPS = 2
#: A noisy stroke wobbles by up to this much, in image sides, with this many bends per side.
WOBBLE = 4 / 256
BENDS = 8


@dataclass(frozen=True)
class Scribble:
    """The path of a pen, and how many pixels the pen reaches to each side of it."""

    rows: tuple[int, ...]
    cols: tuple[int, ...]
    pen: int


def pen_reach(region: Mask) -> int:
    """Return the reach of the pen: a line of 3 px up to an image side of 191, then 5 px, ..."""
    return max(1, round(side(region.shape) / 128))


def line_width(pen: int) -> float:
    """Return how many pixels a stroke marks per pixel of its path, as measured on round lines."""
    return 2 * pen + 0.75


def stroke(path: Path, pen: int, region: Mask) -> Mask:
    """Return what a pen marks of a region along a path."""
    marked = np.zeros(region.shape, dtype=bool)
    marked[path[:, 0], path[:, 1]] = True
    marked = ndimage.binary_dilation(marked, iterations=pen)
    clipped: Mask = marked & region
    return clipped


def level_line(depths: Depth, pen: int, wanted: float, shallowest: int) -> Path:
    """Return the line of equal depth whose stroke is nearest to the wanted area."""
    level = np.rint(depths).astype(int)
    areas = np.bincount(level.ravel()) * line_width(pen)
    first = min(shallowest, len(areas) - 1)
    nearest = first + np.abs(areas[first:] - wanted).argmin()
    return np.argwhere(level == nearest)


def without_nearest(path: Path, lost: int, rng: np.random.Generator) -> Path:
    """Return the path without the `lost` points nearest to a random one of it."""
    anchor = path[rng.integers(len(path))]
    order = ((path - anchor) ** 2).sum(axis=1).argsort(kind="stable")
    kept: Path = path[np.sort(order[lost:])]
    return kept


def inner_path(part: Mask, pen: int, share: tuple[float, float], rng: np.random.Generator) -> Path:
    """Return a path in one part of a label: erode, skeletonise, and fit the share.

    A round part has hardly any skeleton: it gets a closed line of equal depth instead. A thin part
    is nearly all skeleton: its path is shortened.
    """
    from skimage.morphology import skeletonize

    area, depths = part.sum(), depth(part)
    core = depths > 0.1 * np.sqrt(area)
    path = np.argwhere(skeletonize(core if core.any() else part))
    wanted, marked = rng.uniform(*share) * area, stroke(path, pen, part).sum()
    if marked < share[0] * area:
        return level_line(depths, pen, wanted, int(0.1 * np.sqrt(area)) + 1)
    if marked > share[1] * area:
        return without_nearest(path, int(len(path) * (1 - wanted / marked)), rng)
    return path


def noisy_path(path: Path, region: Mask, rng: np.random.Generator) -> Path:
    """Return the path after an elastic wobble and the erasure of a few stretches of it.

    Points that leave the region are lost; a path always keeps at least one point.
    """
    bends = rng.uniform(-1, 1, size=(2, BENDS + 1, BENDS + 1)) * WOBBLE * side(region.shape)
    at = (path * (BENDS / np.array(region.shape))).T
    shift = np.stack([ndimage.map_coordinates(axis, at, order=3, mode="nearest") for axis in bends])
    moved = np.unique(path + np.rint(shift.T).astype(int), axis=0)
    moved = moved[((moved >= 0) & (moved < region.shape)).all(axis=1)]
    moved = moved[region[moved[:, 0], moved[:, 1]]]
    kept = moved if len(moved) else path
    lost = int(rng.uniform(*ERASED) * len(kept) / GAPS)
    for _ in range(GAPS):
        kept = without_nearest(kept, lost, rng)
    return kept


def _scribble(path: Path, pen: int, region: Mask, style: str, rng: np.random.Generator) -> Scribble:
    path = noisy_path(path, region, rng) if style == "noisy" else path
    return Scribble(tuple(path[:, 0].tolist()), tuple(path[:, 1].tolist()), pen)


def draw_scribble(
    region: Mask,
    rng: np.random.Generator,
    style: str = "plain",
    share: tuple[float, float] = SHARE,
) -> Scribble | None:
    """Return a stroke in every part of a label, or `None` when it is absent.

    Args:
        region: Where the label is.
        rng: Draws lengths, wobble and gaps.
        style: "plain", or "noisy" for FedLPPA's second scribble.
        share: The least and greatest share of the area to mark, where shapes allow it.
    """
    pen = pen_reach(region)
    paths = [
        inner_path(part, pen, share, rng) + np.array([window[0].start, window[1].start])
        for window, part in parts(region)
    ]
    return _scribble(np.concatenate(paths), pen, region, style, rng) if paths else None


def draw_background_scribble(
    region: Mask,
    rng: np.random.Generator,
    style: str = "plain",
    share: tuple[float, float] = BACKGROUND_SHARE,
) -> Scribble | None:
    """Return a loop around all labels, as far from them as makes it mark the wanted share.

    Without labels the loop goes around the middle of the image.
    """
    if not region.any():
        return None
    pen, inside = pen_reach(region), region
    if region.all():
        inside = region.copy()
        inside[region.shape[0] // 2, region.shape[1] // 2] = region.size == 1
    wanted, depths = rng.uniform(*share) * region.size, depth(inside)
    nearest = min(GAP * side(region.shape), depths.max() / 2)
    path = level_line(depths, pen, wanted, max(1, round(nearest)))
    return _scribble(path, pen, region, style, rng)


def render_scribble(scribble: Scribble, region: Mask) -> Mask:
    """Return the pixels of the region that the pen marks along its path."""
    path = np.stack([scribble.rows, scribble.cols], axis=1)
    return stroke(path, scribble.pen, region)
