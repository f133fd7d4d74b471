"""Two Gaussians over a few numbers: which of them are high (FedCorr, FedNoRo)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float


def upper_part(values: Float[np.ndarray, "n d"], seed: int = 0) -> Bool[np.ndarray, " n"]:
    """Return which points belong to that of two Gaussians whose mean has the larger sum.

    Nothing stands out where all points are alike, or where there is only one.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    if len(np.unique(values.round(12), axis=0)) < 2:
        return np.zeros(len(values), dtype=bool)
    mixture = GaussianMixture(2, random_state=seed, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last step is good enough to split
        which = mixture.fit_predict(values)
    return np.asarray(which == mixture.means_.sum(1).argmax())


def voted_upper_part(values: Float[np.ndarray, "n d"], votes: int = 9) -> Bool[np.ndarray, " n"]:
    """Return the split that most of several starts find; of equally frequent ones, the first."""
    found = [upper_part(values, seed) for seed in range(votes)]
    counts = Counter(tuple(split.tolist()) for split in found)
    return np.array(counts.most_common(1)[0][0], dtype=bool)


def high_among(values: Mapping[str, Sequence[float | None]], votes: int = 1) -> tuple[str, ...]:
    """Return the names whose numbers, each scaled to 0..1, belong to the higher of two Gaussians.

    Args:
        values: The same few numbers for each name; `None` where there is none.
        votes: How many starts vote on the split.
    """
    names = sorted(values)
    table = np.array([values[name] for name in names], dtype=np.float64)  # None becomes NaN
    high = voted_upper_part(between_extremes(table), votes)
    return tuple(name for name, stands_out in zip(names, high, strict=True) if stands_out)


def between_extremes(values: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Return each column scaled to 0..1; one that is the same everywhere is 0; gaps take the least.

    A gap is a NaN: a site that has no pixel of a class.
    """
    filled = np.where(np.isnan(values).all(0), 0.0, values)
    filled = np.where(np.isnan(filled), np.nanmin(filled, axis=0), filled)
    low, high = filled.min(0), filled.max(0)
    return np.where(high > low, (filled - low) / np.where(high > low, high - low, 1.0), 0.0)
