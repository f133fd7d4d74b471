"""How sure a score is: mean and deviation over seeds, bootstrap intervals over patients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from consilia.evaluate.classification import Known, Score, Truth
from consilia.evaluate.judged import Judged, Models, judge_strata
from consilia.evaluate.metrics import defined_mean
from consilia.evaluate.resampling import Groups, codes_of, draws, strata_of


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap interval; the bounds are NaN with fewer than two patients."""

    value: float
    low: float
    high: float


def mean_std(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation (n − 1) over seeds; one seed has no deviation (NaN)."""
    kept = np.asarray(values, dtype=np.float64)
    kept = kept[np.isfinite(kept)]
    mean = float(kept.mean()) if len(kept) else float("nan")
    return mean, float(kept.std(ddof=1)) if len(kept) > 1 else float("nan")


def bootstrap_interval(
    values: Score,
    groups: Groups,
    statistic: Callable[[np.ndarray], float] | None = None,
    *,
    strata: Groups | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return a statistic of the cases with its percentile interval from a cluster bootstrap.

    Patients are drawn with replacement and bring all their cases. The mean is Σ sums / Σ counts
    over the drawn patients, so no case is touched again; any other statistic is computed per
    resample, which takes a loop.

    With `strata` it is the mean of the strata's statistics, each drawn again within itself: sites count
    alike, however many patients they have, as in a mean over sites.

    Args:
        values: One per case; cases that are not finite are dropped.
        groups: The patient of each case.
        statistic: `None` is the mean over cases.
        strata: The site of each case, where sites count alike.
        level: Share of the resamples inside the interval.
        resamples: How many times patients are drawn.
        seed: Of the draws.
    """
    finite = np.isfinite(values)
    values, patients = values[finite], np.asarray(groups)[finite]
    if not len(values):
        return Interval(float("nan"), float("nan"), float("nan"))
    found, drawn = [], []
    for number, members in enumerate(strata_of(strata, finite)):
        rng = np.random.default_rng(seed + number)
        value, resampled = _resampled(values[members], patients[members], statistic, resamples, rng)
        found.append(value)
        drawn.append(resampled)
    return _interval(found, drawn, level)


def bootstrap_auroc_interval(
    probability: Models,
    truth: Truth,
    groups: Groups,
    known: Known | None = None,
    *,
    strata: Groups | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the mean AUROC over labels with its percentile interval from a cluster bootstrap.

    Of several models (seeds, or the members of a panel) the AUROC is the mean of theirs, never that
    of their averaged probabilities: an ensemble is another method. A label that loses one of its two
    classes in a resample is left out of that resample.
    """
    parts = judge_strata((probability,), truth, groups, known, strata)
    return auroc_interval(parts, level=level, resamples=resamples, seed=seed)


def auroc_interval(parts: Sequence[Judged], *, level: float, resamples: int, seed: int) -> Interval:
    """Return the mean AUROC over strata with its interval; of two methods, the first's lead."""
    found, drawn = [], []
    for number, judged in enumerate(parts):
        found.append(judged.auroc())
        each = (judged.resampled(draw) for draw in judged.drawn(resamples, seed + number))
        drawn.append(np.concatenate([np.empty(0), *each]))
    return _interval(found, drawn, level)


def _interval(found: Sequence[float], drawn: Sequence[np.ndarray], level: float) -> Interval:
    """Return the mean over strata and the percentile interval of its resamples, where defined."""
    value, values = float(defined_mean(found)), _mean_of_strata(drawn, found)
    values = values[np.isfinite(values)]
    if not len(values):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def _resampled(
    values: np.ndarray,
    groups: np.ndarray,
    statistic: Callable[[np.ndarray], float] | None,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, np.ndarray]:
    """Return a statistic of the cases, and of every resample; none of a single patient."""
    codes = codes_of(groups)
    sums, counts = np.bincount(codes, values), np.bincount(codes)
    drawn = draws(len(counts), len(counts), resamples, rng)
    if statistic is None:
        means = [(draw @ sums) / (draw @ counts) for draw in drawn]
        return float(values.mean()), np.concatenate([np.empty(0), *means])
    others = [
        np.array([statistic(np.repeat(values, row[codes])) for row in draw]) for draw in drawn
    ]
    return float(statistic(values)), np.concatenate([np.empty(0), *others])


def _mean_of_strata(drawn: Sequence[np.ndarray], found: Sequence[float]) -> np.ndarray:
    """Return the mean over strata of each resample; a stratum of one patient is always the same."""
    most = max(len(values) for values in drawn)
    each = [
        values if len(values) else np.full(most, value)
        for values, value in zip(drawn, found, strict=True)
    ]
    return defined_mean(np.stack(each)) if most else np.empty(0)
