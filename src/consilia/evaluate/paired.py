"""Whether two methods differ: paired tests that swap them patient by patient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from consilia.evaluate.classification import Known, Score, Truth, placements
from consilia.evaluate.intervals import auroc_interval, bootstrap_interval
from consilia.evaluate.judged import Judged, Models, judge_strata
from consilia.evaluate.resampling import Groups, blocks, codes_of

EXACT_PATIENTS = 13  # up to here all 2^n sign patterns are fewer than the flips we would draw


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
    codes = codes_of(np.asarray(groups)[finite])
    each = np.bincount(codes, a[finite] - b[finite]) / np.bincount(codes)  # (patients,)
    sites = np.zeros(len(each), dtype=np.int64)
    if strata is not None:
        sites[codes] = codes_of(np.asarray(strata)[finite])
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
    parts = judge_strata((probability_a, probability_b), truth, groups, known, strata)
    around = auroc_interval(parts, level=level, resamples=resamples, seed=seed)
    effects = np.concatenate([_swap_effects(judged) for judged in parts])
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


def _swap_effects(judged: Judged) -> np.ndarray:
    """Return per patient what its predictions contribute to the difference in AUROC."""
    effect = np.zeros(judged.usable.shape)
    pairs = list(product(*judged.methods))
    for one, other in pairs:
        both = zip(judged.labels(one), judged.labels(other), strict=True)
        for column, ((seen, a, positive), (_, b, _)) in enumerate(both):
            effect[seen, column] += _swap_effect(a, b, positive) / len(pairs)
    return np.bincount(judged.codes, effect.mean(axis=1)) if effect.size else np.empty(0)


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
    for size in blocks(flips, patients):
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
