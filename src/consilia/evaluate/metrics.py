"""Scores of predictions: pure functions on arrays, one number per case or per label.

A score that is not defined (the sensitivity for a structure that is not there, the AUROC of a label
nobody has) is NaN. NaN always means "left out of means", never "zero". Heavy libraries are imported
where they are called, so that asking for the names of the metrics costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8

from consilia.errors import UsageError, suggestion

Better = Literal["higher", "lower"]
Region = tuple[int, ...]

IndexMap = UInt8[np.ndarray, "*pixels"]
IndexMaps = UInt8[np.ndarray, "n h w"]
Mask = Bool[np.ndarray, "*pixels"]
Probability = Float[np.ndarray, "n k"]
Truth = UInt8[np.ndarray, "n k"] | Bool[np.ndarray, "n k"]
Known = Bool[np.ndarray, "n k"]
Score = Float[np.ndarray, "n"]
Positive = Bool[np.ndarray, "n"]
Reference = Float[np.ndarray, "m"]
Weight = Float[np.ndarray, "r n"] | Integer[np.ndarray, "r n"]


@dataclass(frozen=True)
class Metric:
    """What a score is called, which way is better, and what it says."""

    name: str
    task: Literal["segmentation", "classification", "both"]
    better: Better
    unit: str
    meaning: str


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric(
                "dice",
                "segmentation",
                "higher",
                "share",
                "twice the overlap, divided by the sum of both sizes; 1 when both are empty",
            ),
            Metric(
                "iou",
                "segmentation",
                "higher",
                "share",
                "the overlap, divided by the union; 1 when both are empty",
            ),
            Metric(
                "hd95",
                "segmentation",
                "lower",
                "pixels or mm",
                "95th percentile of the distance between the two surfaces; half the image diagonal "
                "when one of the two is empty, 0 when both are",
            ),
            Metric(
                "sensitivity",
                "segmentation",
                "higher",
                "share",
                "the part of the true pixels that was found; not defined where there are none",
            ),
            Metric(
                "precision",
                "both",
                "higher",
                "share",
                "the part of what was predicted that is true: pixels of a region, or images of a "
                "label (mean over labels); not defined where nothing was predicted",
            ),
            Metric(
                "auroc",
                "classification",
                "higher",
                "share",
                "chance that an image with the label scores above one without it, one label "
                "against the rest, mean over labels that have both",
            ),
            Metric(
                "average_precision",
                "classification",
                "higher",
                "share",
                "area under the precision-recall steps, mean over labels that have both classes",
            ),
            Metric(
                "accuracy",
                "classification",
                "higher",
                "share",
                "images whose most probable label is right; with several labels per image, "
                "decisions at 0.5 that are right, mean over labels",
            ),
            Metric(
                "macro_f1",
                "classification",
                "higher",
                "share",
                "harmonic mean of precision and recall, mean over labels present or predicted",
            ),
            Metric(
                "recall",
                "classification",
                "higher",
                "share",
                "the part of a label's images that was found, mean over labels that have any",
            ),
        )
    }
)


#: The metric a study is known by, and that a validation rule selects on.
MAIN: Mapping[str, str] = MappingProxyType({"segmentation": "dice", "classification": "auroc"})


def metric_of(key: str) -> Metric:
    """Return the metric behind a key such as "dice" or "dice/disc"."""
    name = key.split("/", 1)[0]
    if name not in METRICS:
        raise UsageError(_unknown("metric", name, METRICS))
    return METRICS[name]


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> str:
    return f"no {kind} named '{name}'{suggestion(name, known)} (known: {', '.join(known)})"


def defined_mean(values: Sequence[float] | np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the mean along an axis of what is not NaN; NaN where nothing is left."""
    values = np.asarray(values, dtype=np.float64)
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(defined, values, 0.0).sum(axis) / defined.sum(axis))


# Segmentation: index maps of any number of dimensions, and the classes whose union is scored.


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
        score = _segmentation_metric(name)
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


def _segmentation_metric(name: str) -> Callable[[np.ndarray, np.ndarray, Region], float]:
    if name not in SEGMENTATION:
        raise UsageError(_unknown("segmentation metric", name, SEGMENTATION))
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


# Classification: a probability per image and label.


def classification_scores(
    probability: Probability,
    truth: Truth,
    labels: Sequence[str],
    exclusive: bool,
    known: Known | None = None,
) -> dict[str, float]:
    """Return the scores of a classifier, and "auroc/LABEL" for each label.

    Means over labels leave out labels that are not defined: AUROC and average precision need both
    classes, precision a positive decision, recall a positive image; F1 needs either of the last
    two and is then 0 at worst. Decisions are the most probable label (exclusive) or `p >= 0.5`.
    A model with a probability that is not finite has diverged: all its scores are NaN.

    Args:
        probability: Per image and label.
        truth: 1 where an image has a label.
        labels: Names of the columns.
        exclusive: Whether an image has exactly one label.
        known: Where the truth is known. With exclusive labels an image is decided on when its one
            positive is known, because that settles all other labels too.
    """
    known = np.ones(truth.shape, dtype=bool) if known is None else known
    positive = truth.astype(bool)
    if not np.isfinite(probability).all():
        probability = np.full_like(probability, np.nan)
    area = auroc_per_label(probability, positive, known)
    ranked = _per_label(_average_precision, probability, positive, known)
    return {
        "auroc": float(defined_mean(area)),
        **{f"auroc/{label}": float(value) for label, value in zip(labels, area, strict=True)},
        "average_precision": float(defined_mean(ranked)),
        **_decision_scores(probability, positive, exclusive, known),
    }


def auroc(score: Score, positive: Positive) -> float:
    """Return the area under the ROC curve: P(s⁺ > s⁻) + P(s⁺ = s⁻) / 2.

    By ranks (Mann-Whitney), so n log n. NaN without both classes, or when a score is NaN.
    """
    if positive.all() or not positive.any() or np.isnan(score).any():
        return float("nan")
    return float(placements(score[positive], score[~positive]).mean())


def auroc_per_label(probability: Probability, truth: Truth, known: Known) -> np.ndarray:
    """Return the AUROC of each label against the rest, over the images where it is known."""
    return _per_label(auroc, probability, truth.astype(bool), known)


def placements(score: Score, reference: Reference) -> np.ndarray:
    """Return for each score the share of a reference sample below it, ties counting half."""
    ordered = np.sort(reference)
    below, up_to = (np.searchsorted(ordered, score, side) for side in ("left", "right"))
    return (below + up_to) / (2 * len(ordered))


def weighted_auroc(score: Score, positive: Positive, weight: Weight) -> np.ndarray:
    r"""Return the AUROC under each of `r` weightings of the same images, after one sort.

    .. math:: \frac{\sum_{i \in +} w_i \bigl(W^-_{<i} + \tfrac12 W^-_{=i}\bigr)}{W^+ W^-}

    With whole weights this is the AUROC of the sample in which image `i` occurs :math:`w_i` times,
    which is what a bootstrap asks for thousands of times. NaN where a class has no weight.
    """
    order = np.argsort(score, kind="stable")
    score, positive, weight = score[order], positive[order], weight[:, order]
    first = np.flatnonzero(np.diff(score, prepend=-np.inf))  # where each distinct score begins
    above = np.add.reduceat(weight * positive, first, axis=1)  # (r, distinct)
    below = np.add.reduceat(weight * ~positive, first, axis=1)
    won = (above * (np.cumsum(below, axis=1) - 0.5 * below)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(won / (above.sum(axis=1) * below.sum(axis=1)))


def _per_label(
    score: Callable[[np.ndarray, np.ndarray], float],
    probability: np.ndarray,
    positive: np.ndarray,
    known: np.ndarray,
) -> np.ndarray:
    columns = zip(probability.T, positive.T, known.T, strict=True)
    return np.array([score(p[seen], y[seen]) for p, y, seen in columns])


def _average_precision(score: Score, positive: Positive) -> float:
    """Return Σ (R_n − R_{n−1}) P_n over the thresholds; NaN like `auroc`."""
    if positive.all() or not positive.any() or np.isnan(score).any():
        return float("nan")
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(positive, score))


def _decision_scores(
    probability: np.ndarray, positive: np.ndarray, exclusive: bool, known: np.ndarray
) -> dict[str, float]:
    """Return accuracy, macro F1, precision and recall of the decisions."""
    if exclusive:
        known = np.broadcast_to((positive & known).any(axis=1, keepdims=True), known.shape)
        decided = np.arange(known.shape[1]) == probability.argmax(axis=1)[:, None]
        accuracy = defined_mean((decided & positive).any(axis=1)[known.any(axis=1)])
    else:
        decided = probability >= 0.5
        accuracy = defined_mean(_divide((known & (decided == positive)).sum(0), known.sum(0)))
    hits = (known & decided & positive).sum(axis=0)
    found, there = (known & decided).sum(axis=0), (known & positive).sum(axis=0)
    scores = {
        "accuracy": float(accuracy),
        "macro_f1": float(defined_mean(_divide(2 * hits, found + there))),
        "precision": float(defined_mean(_divide(hits, found))),
        "recall": float(defined_mean(_divide(hits, there))),
    }
    return dict.fromkeys(scores, float("nan")) if np.isnan(probability).any() else scores


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole, NaN where the whole is nothing."""
    with np.errstate(invalid="ignore"):
        return np.asarray(part / whole)
