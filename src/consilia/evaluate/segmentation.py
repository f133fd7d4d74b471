"""Scores of segmentations: pure functions on index maps, one number per case.

Maps have any number of dimensions; what is scored is the union of the classes of a region. Heavy
libraries are imported where they are called, so that asking for the names costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float, UInt8

from consilia.errors import UsageError, unknown
from consilia.evaluate.metrics import defined_mean

Region = tuple[int, ...]

IndexMap = UInt8[np.ndarray, "*pixels"]
IndexMaps = UInt8[np.ndarray, "n h w"]
Mask = Bool[np.ndarray, "*pixels"]


def dice(predicted: IndexMap, truth: IndexMap, region: Region) -> float:
    """Return 2 |P ∩ T| / (|P| + |T|); 1 when both are empty, 0 when one of them is."""
    p, t = _masks(predicted, truth, region)
    return _ratio(2 * _size(p & t), _size(p) + _size(t), empty=1.0)


def iou(predicted: IndexMap, truth: IndexMap, region: Region) -> float:
    """Return |P ∩ T| / (|P| + |T| − |P ∩ T|); 1 when both are empty, 0 when one of them is."""
    p, t = _masks(predicted, truth, region)
    return _ratio(_size(p & t), _size(p | t), empty=1.0)


def sensitivity(predicted: IndexMap, truth: IndexMap, region: Region) -> float:
    """Return |P ∩ T| / |T|; without a true pixel 1 if none is predicted either, else NaN."""
    p, t = _masks(predicted, truth, region)
    return _ratio(_size(p & t), _size(t), empty=np.nan if p.any() else 1.0)


def precision(predicted: IndexMap, truth: IndexMap, region: Region) -> float:
    """Return |P ∩ T| / |P|; without a predicted pixel 1 if none is true either, else NaN.

    An empty prediction of something that is there is thus *left out* of mean precision: read it
    beside sensitivity, where the same case counts 0.
    """
    return sensitivity(truth, predicted, region)


def hd95(
    predicted: IndexMap,
    truth: IndexMap,
    region: Region,
    spacing: Sequence[float] | Float[np.ndarray, " d"] | None = None,
) -> float:
    r"""Return the symmetric 95th percentile Hausdorff distance, in pixels or in units of `spacing`.

    .. math:: \max\Bigl(Q_{95}\{d(x, \partial T) : x \in \partial P\},
                        Q_{95}\{d(x, \partial P) : x \in \partial T\}\Bigr)

    The surface ∂P is what one erosion (4 neighbours in 2-D, 6 in 3-D) removes, so a mask that
    touches the image border has a surface there. Half the image diagonal when one of the two is
    empty (a very bad prediction can score worse than that), 0 when both are.
    """
    p, t = _masks(predicted, truth, region)
    steps = np.ones(p.ndim) if spacing is None else np.asarray(spacing, dtype=np.float64)
    either = p | t
    if not either.any():
        return 0.0
    if not (p.any() and t.any()):
        return 0.5 * float(np.linalg.norm(np.multiply(p.shape, steps)))
    box = _bounding_box(either)
    ours, theirs = _surface(p[box]) * steps, _surface(t[box]) * steps
    return max(_directed(ours, theirs), _directed(theirs, ours))


SEGMENTATION: Mapping[str, Callable[[np.ndarray, np.ndarray, Region], float]] = MappingProxyType(
    {"dice": dice, "iou": iou, "hd95": hd95, "sensitivity": sensitivity, "precision": precision}
)


def segmentation_scores(
    predicted: IndexMaps,
    truth: IndexMaps,
    regions: Mapping[str, Region],
    metrics: Sequence[str] = ("dice", "hd95"),
    *,
    volume: Sequence[str] | None = None,
    spacing: Float[np.ndarray, "n 3"] | None = None,
) -> dict[str, np.ndarray]:
    """Return each metric per case: the mean over regions, and "METRIC/REGION" if there are several.

    A region that is not defined for a case is left out of that case's mean.

    Args:
        predicted: Predicted class of every pixel; 0 is background.
        truth: True class of every pixel.
        regions: Per region, the classes (from 1) whose union is scored.
        metrics: Names out of `SEGMENTATION`.
        volume: The volume each image is a slice of. Scores are then per volume, in order of first
            appearance, and HD95 is in 3-D, slices stacked as they come.
        spacing: The millimetres from one plane, row and column of each image to the next; without
            it HD95 is in pixels.
    """
    if not regions:
        message = "no region to score; name at least one, such as {'lesion': (1,)}"
        raise UsageError(message)
    units = range(len(truth)) if volume is None else _slices(volume)
    scores: dict[str, np.ndarray] = {}
    for name in metrics:
        score = _metric(name)
        if name == "hd95" and spacing is not None:
            rows = [
                [hd95(predicted[u], truth[u], c, _steps(spacing, u)) for u in units]
                for c in regions.values()
            ]
        else:
            rows = [[score(predicted[u], truth[u], c) for u in units] for c in regions.values()]
        table = np.array(rows)  # (regions, units)
        scores[name] = defined_mean(table)
        if len(regions) > 1:
            scores |= {f"{name}/{region}": row for region, row in zip(regions, table, strict=True)}
    return scores


def _steps(spacing: np.ndarray, unit: int | np.ndarray) -> np.ndarray:
    """Return the spacing of an image (rows, columns) or of a volume (planes as well)."""
    return np.asarray(spacing[unit[0]] if isinstance(unit, np.ndarray) else spacing[unit][1:])


def _metric(name: str) -> Callable[[np.ndarray, np.ndarray, Region], float]:
    if name not in SEGMENTATION:
        raise UsageError(unknown("segmentation metric", name, SEGMENTATION))
    return SEGMENTATION[name]


def _slices(volume: Sequence[str]) -> list[np.ndarray]:
    """Return per volume, in order of first appearance, the indices of its slices."""
    members: dict[str, list[int]] = {}
    for index, name in enumerate(volume):
        members.setdefault(name, []).append(index)
    return [np.array(indices) for indices in members.values()]


def _masks(predicted: np.ndarray, truth: np.ndarray, region: Region) -> tuple[Mask, Mask]:
    """Return where each of two index maps is in a region."""
    if predicted.shape != truth.shape:
        message = f"a prediction of shape {predicted.shape} cannot be scored on {truth.shape} truth"
        raise UsageError(message)
    if not region or min(region) < 1:
        message = f"a region unites classes from 1 (0 is background), but this one is {region}"
        raise UsageError(message)
    inside = np.zeros(256, dtype=bool)
    inside[list(region)] = True
    return inside[predicted], inside[truth]


def _size(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def _ratio(part: int, whole: int, empty: float) -> float:
    return part / whole if whole else empty


def _bounding_box(mask: Mask) -> tuple[slice, ...]:
    """Return the smallest box around a mask that is not empty."""
    box = []
    for axis in range(mask.ndim):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        filled = np.flatnonzero(mask.any(others))
        box.append(slice(int(filled[0]), int(filled[-1]) + 1))
    return tuple(box)


def _surface(mask: Mask) -> np.ndarray:
    """Return the coordinates of the pixels that one erosion removes."""
    from scipy.ndimage import binary_erosion

    return np.argwhere(mask & ~binary_erosion(mask))


def _directed(points: np.ndarray, surface: np.ndarray) -> float:
    """Return the 95th percentile of the distances from points to the nearest surface point.

    A tree over the surface, not a distance map of the image: a single stray voxel would stretch
    the map over the whole volume.
    """
    from scipy.spatial import KDTree

    return float(np.percentile(KDTree(surface, leafsize=32).query(points)[0], 95))
