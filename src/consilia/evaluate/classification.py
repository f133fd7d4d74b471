"""Scores of classifiers: pure functions on a probability per image and label.

Heavy libraries are imported where they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer, UInt8

from consilia.evaluate.metrics import defined_mean

Probability = Float[np.ndarray, "n k"]
Truth = UInt8[np.ndarray, "n k"] | Bool[np.ndarray, "n k"]
Known = Bool[np.ndarray, "n k"]
Score = Float[np.ndarray, "n"]
Positive = Bool[np.ndarray, "n"]
Reference = Float[np.ndarray, "m"]
Weight = Float[np.ndarray, "r n"] | Integer[np.ndarray, "r n"]


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
