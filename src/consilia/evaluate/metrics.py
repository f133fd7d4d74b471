"""The table of scores: what each is called, which way is better, and what it says.

A score that is not defined (the sensitivity for a structure that is not there, the AUROC of a label
nobody has) is NaN. NaN always means "left out of means", never "zero".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from consilia.errors import UsageError, unknown

Better = Literal["higher", "lower"]


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
        raise UsageError(unknown("metric", name, METRICS))
    return METRICS[name]


def defined_mean(values: Sequence[float] | np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the mean along an axis of what is not NaN; NaN where nothing is left."""
    values = np.asarray(values, dtype=np.float64)
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(defined, values, 0.0).sum(axis) / defined.sum(axis))
