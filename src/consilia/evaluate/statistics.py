"""How sure a comparison is: intervals and paired tests that go by patient, not by image.

Images of one patient are not independent, so patients are what is drawn again and what is swapped.
Everything is deterministic given a seed. Group names must tell patients of different sites apart
("oslo/17", not "17"), or they are taken for the same patient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

from consilia.evaluate.metrics import (
    Known,
    Probability,
    Score,
    Truth,
    auroc_per_label,
    defined_mean,
    placements,
    weighted_auroc,
)

Groups = Sequence[str] | np.ndarray
#: The probabilities of one model, or of several.
Models = Probability | Float[np.ndarray, "m n k"]

EXACT_PATIENTS = 13  # up to here all 2^n sign patterns are fewer than the flips we would draw
BLOCK = 2**21  # numbers held at once while resampling


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap interval; the bounds are NaN with fewer than two patients."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedTest:
    """The difference a − b between two methods on the same patients.

    Attributes:
        difference: Positive when a's values are higher.
        low: Lower end of the bootstrap interval of the difference.
        high: Its upper end.
        p: Two-sided p of the sign-flip (permutation) test.
        patients: How many patients had something to compare.
        wilcoxon: Two-sided p of the signed-rank test on patient means; NaN for AUROC, which has
            no value per patient.
    """

    difference: float
    low: float
    high: float
    p: float
    patients: int
    wilcoxon: float = float("nan")


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
    for number, members in enumerate(_strata(strata, finite)):
        rng = np.random.default_rng(seed + number)
        value, resampled = _resampled(values[members], patients[members], statistic, resamples, rng)
        found.append(value)
        drawn.append(resampled)
    return _interval(float(np.mean(found)), iter([_mean_of_strata(drawn, found)]), level)


def _strata(strata: Groups | None, kept: np.ndarray) -> list[np.ndarray]:
    """Return per stratum, in the order of names, where its kept cases are; all of them without strata."""
    if strata is None:
        return [np.arange(int(kept.sum()))]
    codes = _codes(np.asarray(strata)[kept])
    return [np.flatnonzero(codes == code) for code in range(codes.max() + 1)]


def _resampled(
    values: np.ndarray,
    groups: np.ndarray,
    statistic: Callable[[np.ndarray], float] | None,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, np.ndarray]:
    """Return a statistic of the cases, and of every resample; none of a single patient."""
    codes = _codes(groups)
    sums, counts = np.bincount(codes, values), np.bincount(codes)
    draws = _draws(len(counts), len(counts), resamples, rng)
    if statistic is None:
        means = [(draw @ sums) / (draw @ counts) for draw in draws]
        return float(values.mean()), np.concatenate([np.empty(0), *means])
    others = [
        np.array([statistic(np.repeat(values, row[codes])) for row in draw]) for draw in draws
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
    found, drawn = [], []
    for number, judged in enumerate(_judge_strata((probability,), truth, groups, known, strata)):
        found.append(judged.auroc(0))
        draws = judged.draws(resamples, seed + number)
        drawn.append(np.concatenate([np.empty(0), *(judged.resampled(0, d) for d in draws)]))
    value = float(defined_mean(np.array(found)))
    return _interval(value, iter([_mean_of_strata(drawn, found)]), level)


def paired_test(
    a: Score,
    b: Score,
    groups: Groups,
    seed: int = 0,
    *,
    strata: Groups | None = None,
    flips: int = 10_000,
    level: float = 0.95,
    resamples: int = 2000,
) -> PairedTest:
    """Return whether two methods differ on the same cases, every patient of a site counting once.

    If the methods are alike, a patient's mean difference is as likely to be −d as d. p is the
    share of sign patterns whose mean is at least as far from 0 as the one found: of all patterns
    up to 13 patients, of `flips` drawn ones beyond (then (count + 1) / (flips + 1)). With five
    patients no p below 1/16 exists, whatever the difference.

    Args:
        a: Values of one method per case, averaged over seeds.
        b: Values of the other, on the same cases; a case where either is not finite is dropped.
        groups: The patient of each case.
        seed: Of the drawn sign patterns and of the bootstrap.
        strata: The site of each case, where sites count alike; else all patients do.
        flips: Sign patterns drawn when there are too many to enumerate.
        level: Of the bootstrap interval.
        resamples: Of the bootstrap.
    """
    finite = np.isfinite(a) & np.isfinite(b)
    codes = _codes(np.asarray(groups)[finite])
    each = np.bincount(codes, a[finite] - b[finite]) / np.bincount(codes)  # (patients,)
    sites = np.zeros(len(each), dtype=np.int64)
    if strata is not None:
        sites[codes] = _codes(np.asarray(strata)[finite])
    around = bootstrap_interval(
        each,
        np.arange(len(each)),
        strata=None if strata is None else sites,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    p = _sign_flip(each / np.bincount(sites)[sites], flips, np.random.default_rng(seed))
    return PairedTest(around.value, around.low, around.high, p, len(each), _wilcoxon(each))


def paired_auroc_test(
    probability_a: Models,
    probability_b: Models,
    truth: Truth,
    groups: Groups,
    seed: int = 0,
    known: Known | None = None,
    *,
    strata: Groups | None = None,
    flips: int = 10_000,
    level: float = 0.95,
    resamples: int = 2000,
) -> PairedTest:
    """Return whether two methods differ in mean AUROC, by swapping them patient by patient.

    Scores are first replaced by their ranks within each method (Venkatraman and Begg, 1996), so
    that methods on different scales can be swapped. The difference after any swap is then a sum
    Σ ±c over patients (`_swap_effect`), so this is the sign-flip test of `paired_test` on c. Of several
    models, c is the mean over all pairs of one's and the other's.

    Args:
        probability_a: One method's probabilities, of one model or of several (seeds).
        probability_b: The other's, on the same images.
        truth: 1 where an image has a label.
        groups: The patient of each image.
        seed: Of the drawn swaps and of the bootstrap.
        known: Where the truth is known; entries where either method is not finite are dropped too.
        strata: The site of each image, where sites count alike.
        flips: Swaps drawn when there are too many to enumerate.
        level: Of the bootstrap interval.
        resamples: Of the bootstrap.
    """
    parts = _judge_strata((probability_a, probability_b), truth, groups, known, strata)
    found, drawn = [], []
    for number, judged in enumerate(parts):
        found.append(judged.auroc(0) - judged.auroc(1))
        each = [
            judged.resampled(0, draw) - judged.resampled(1, draw)
            for draw in judged.draws(resamples, seed + number)
        ]
        drawn.append(np.concatenate([np.empty(0), *each]))
    value = float(defined_mean(np.array(found)))
    around = _interval(value, iter([_mean_of_strata(drawn, found)]), level)
    effects = np.concatenate([judged.swap_effects() for judged in parts])
    p = _sign_flip(effects, flips, np.random.default_rng(seed))
    patients = sum(judged.patients for judged in parts)
    return PairedTest(around.value, around.low, around.high, p, patients)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for their number by Holm's step-down rule.

    In ascending order the i-th of m becomes max(the one before, (m − i + 1) p), at most 1. A NaN
    was never tested: it stays NaN and does not count.
    """
    tested = sorted((p, name) for name, p in p_values.items() if not np.isnan(p))
    adjusted, floor = dict.fromkeys(p_values, float("nan")), 0.0
    for place, (p, name) in enumerate(tested):
        floor = max(floor, min(1.0, (len(tested) - place) * p))
        adjusted[name] = floor
    return adjusted


@dataclass(frozen=True)
class _Judged:
    """Methods on the images and labels that AUROC is defined for."""

    methods: tuple[np.ndarray, ...]  # (m, n, k) probabilities of the m models of each
    positive: np.ndarray  # (n, k)
    usable: np.ndarray  # (n, k)
    codes: np.ndarray  # (n,)

    @property
    def patients(self) -> int:
        return len(np.unique(self.codes))

    def labels(self, model: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield per label the usable images, and a model's scores and the truth on them."""
        columns = zip(self.usable.T, model.T, self.positive.T, strict=True)
        return ((seen, score[seen], positive[seen]) for seen, score, positive in columns)

    def auroc(self, method: int) -> float:
        each = [
            defined_mean(auroc_per_label(model, self.positive, self.usable))
            for model in self.methods[method]
        ]
        return float(np.mean(each))

    def draws(self, resamples: int, seed: int) -> Iterator[np.ndarray]:
        """Yield how often each image occurs, in blocks of resamples."""
        rng = np.random.default_rng(seed)
        for draw in _draws(self.patients, len(self.codes), resamples, rng):
            yield draw[:, self.codes]

    def resampled(self, method: int, weight: np.ndarray) -> np.ndarray:
        """Return the mean AUROC over labels under each weighting of the images."""
        each = [
            defined_mean(
                np.stack(
                    [weighted_auroc(s, y, weight[:, seen]) for seen, s, y in self.labels(model)]
                )
            )
            for model in self.methods[method]
        ]
        return np.asarray(np.mean(each, axis=0))

    def swap_effects(self) -> np.ndarray:
        """Return per patient what its predictions contribute to the difference in AUROC."""
        effect = np.zeros(self.usable.shape)
        pairs = list(product(*self.methods))
        for one, other in pairs:
            both = zip(self.labels(one), self.labels(other), strict=True)
            for column, ((seen, a, positive), (_, b, _)) in enumerate(both):
                effect[seen, column] += _swap_effect(a, b, positive) / len(pairs)
        return np.bincount(self.codes, effect.mean(axis=1)) if effect.size else np.empty(0)


def _judge_strata(
    methods: tuple[np.ndarray, ...],
    truth: np.ndarray,
    groups: Groups,
    known: np.ndarray | None,
    strata: Groups | None,
) -> list[_Judged]:
    """Return what can be judged of each stratum, in the order of their names."""
    names = np.asarray(groups)
    return [
        _judge(
            tuple(method[..., members, :] for method in methods),
            truth[members],
            names[members],
            None if known is None else known[members],
        )
        for members in _strata(strata, np.ones(len(truth), dtype=bool))
    ]


def _judge(
    methods: tuple[np.ndarray, ...], truth: np.ndarray, groups: Groups, known: np.ndarray | None
) -> _Judged:
    """Return what can be judged: labels with both classes, images with a usable label."""
    positive = truth.astype(bool)
    stacks = [method if method.ndim == 3 else method[None] for method in methods]
    usable = np.isfinite(np.concatenate(stacks)).all(axis=0) & (known is None or known)
    labels = (usable & positive).any(axis=0) & (usable & ~positive).any(axis=0)
    images = usable[:, labels].any(axis=1)
    kept = np.ix_(images, labels)
    codes = _codes(np.asarray(groups)[images])
    chosen = tuple(np.stack([model[kept] for model in stack]) for stack in stacks)
    return _Judged(chosen, positive[kept], usable[kept], codes)


def _swap_effect(a: np.ndarray, b: np.ndarray, positive: np.ndarray) -> np.ndarray:
    r"""Return per image :math:`c_i` such that swapping two methods' scores flips its sign.

    The AUROC after some swaps is a sum over pairs, so quadratic in the choices; between the two
    methods the quadratic parts cancel, and the difference is :math:`\sum_i \pm c_i`. A positive's
    c is how much higher a places it than b among the negatives of both, over the number of
    positives; a negative's is the same with the roles exchanged, and minus.
    """
    a, b = placements(a, a), placements(b, b)  # ranks: only the order within a method counts
    effect = np.empty(len(positive))
    for side, sign in ((positive, 1), (~positive, -1)):
        pooled = np.concatenate([a[~side], b[~side]])
        lift = placements(a[side], pooled) - placements(b[side], pooled)
        effect[side] = sign * lift / side.sum()
    return effect


def _sign_flip(effects: np.ndarray, flips: int, rng: np.random.Generator) -> float:
    """Return how often random signs bring a sum at least as far from 0 as all signs plus do."""
    patients = len(effects)
    if not patients:
        return float("nan")
    reached = abs(effects.sum()) - 1e-12 * np.abs(effects).sum()  # equal up to rounding is equal
    if patients <= EXACT_PATIENTS:
        signs = 1 - 2 * ((np.arange(2**patients)[:, None] >> np.arange(patients)) & 1)
        return float((np.abs(signs @ effects) >= reached).mean())
    count = 0
    for size in _blocks(flips, patients):
        signs = 1 - 2 * rng.integers(0, 2, (size, patients), dtype=np.int8)
        count += int((np.abs(signs @ effects) >= reached).sum())
    return (count + 1) / (flips + 1)


def _wilcoxon(differences: np.ndarray) -> float:
    """Return the two-sided signed-rank p, zeros dropped; 1 when nothing differs."""
    if not len(differences):
        return float("nan")
    if not differences.any():
        return 1.0
    from scipy.stats import wilcoxon

    return float(wilcoxon(differences[differences != 0]).pvalue)


def _interval(value: float, drawn: Iterator[np.ndarray], level: float) -> Interval:
    """Return the percentile interval of what the resamples gave, where it is defined."""
    values = np.concatenate([np.empty(0), *drawn])
    values = values[np.isfinite(values)]
    if not len(values):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def _draws(
    patients: int, width: int, resamples: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield how often each patient is drawn, (r, patients) at a time; nothing for one patient."""
    if patients > 1:
        for size in _blocks(resamples, width):
            yield rng.multinomial(patients, np.full(patients, 1 / patients), size)


def _blocks(total: int, width: int) -> Iterator[int]:
    """Yield row counts that add up to a total, so that no block of rows exceeds `BLOCK`."""
    rows = max(1, BLOCK // width)
    for start in range(0, total, rows):
        yield min(rows, total - start)


def _codes(groups: np.ndarray) -> np.ndarray:
    """Return patients as numbers from 0, in the order of their names and not of the cases."""
    return np.unique(groups, return_inverse=True)[1]
