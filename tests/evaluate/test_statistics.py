from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from consilia.evaluate import statistics as s

NAN = float("nan")


def names(codes: np.ndarray) -> list[str]:
    return [f"patient-{code}" for code in codes]


def clustered(rng: np.random.Generator, patients: int, each: int = 4, spread: float = 1.0):
    """Return values per case that vary mostly between patients, and the patients."""
    codes = np.repeat(np.arange(patients), each)
    return rng.normal(0, spread, patients)[codes] + rng.normal(0, 0.1, len(codes)), codes


def draw_classifier(rng: np.random.Generator, n: int, k: int, skill: float):
    truth = (rng.random((n, k)) < 0.4).astype(np.uint8)
    return truth, skill * truth + rng.normal(size=(n, k))


def macro(probability: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean AUROC of scikit-learn over labels with both classes."""
    both = [c for c in range(truth.shape[1]) if 0 < truth[:, c].sum() < len(truth)]
    return float(np.mean([roc_auc_score(truth[:, c], probability[:, c]) for c in both]))


# Over seeds


def test_mean_and_deviation_over_seeds():
    assert s.mean_std([1.0, 2.0, 6.0]) == pytest.approx((3, np.sqrt(7)))
    assert s.mean_std([1.0, NAN, 3.0]) == pytest.approx((2, np.sqrt(2)))
    assert s.mean_std([0.5]) == pytest.approx((0.5, NAN), nan_ok=True)
    assert s.mean_std([]) == pytest.approx((NAN, NAN), nan_ok=True)


# Intervals


def test_the_interval_is_that_of_a_loop_over_drawn_patients():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 7, 30)
    values = rng.normal(size=30)
    draws = np.random.default_rng(5).multinomial(7, [1 / 7] * 7, 200)
    means = [
        np.mean([v for v, c in zip(values, codes, strict=True) for _ in range(row[c])])
        for row in draws
    ]
    found = s.bootstrap_interval(values, names(codes), resamples=200, seed=5, level=0.9)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(means, [5, 95])))
    assert found.value == pytest.approx(values.mean())


def test_any_statistic_can_be_resampled():
    rng = np.random.default_rng(1)
    values, codes = clustered(rng, 9)
    fast = s.bootstrap_interval(values, names(codes), resamples=100)
    slow = s.bootstrap_interval(values, names(codes), lambda x: float(np.mean(x)), resamples=100)
    assert (slow.value, slow.low, slow.high) == pytest.approx((fast.value, fast.low, fast.high))
    middle = s.bootstrap_interval(values, names(codes), lambda x: float(np.median(x)))
    assert middle.low <= middle.value == np.median(values) <= middle.high


def test_images_of_one_patient_do_not_make_us_surer():
    rng = np.random.default_rng(2)
    values, codes = clustered(rng, 10, each=30)
    by_patient = s.bootstrap_interval(values, names(codes))
    by_image = s.bootstrap_interval(values, names(np.arange(len(values))))
    assert by_patient.high - by_patient.low > 3 * (by_image.high - by_image.low)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for seed in range(200):
        values, codes = clustered(rng, 30, each=2)
        found = s.bootstrap_interval(values, names(codes), resamples=300, seed=seed)
        covered += found.low <= 0 <= found.high
    assert 0.88 <= covered / 200 <= 0.98


def test_one_patient_has_a_value_and_no_interval():
    found = s.bootstrap_interval(np.array([1.0, 3.0, NAN]), ["p", "p", "q"])
    assert (found.value, found.low, found.high) == pytest.approx((2, NAN, NAN), nan_ok=True)
    nothing = s.bootstrap_interval(np.array([NAN]), ["p"])
    assert np.isnan([nothing.value, nothing.low, nothing.high]).all()


def test_intervals_do_not_depend_on_the_order_of_cases():
    rng = np.random.default_rng(4)
    values, codes = clustered(rng, 8)
    order = rng.permutation(len(values))
    a = s.bootstrap_interval(values, names(codes), seed=1)
    b = s.bootstrap_interval(values[order], names(codes[order]), seed=1)
    assert (a.low, a.high) == pytest.approx((b.low, b.high))
    assert a == s.bootstrap_interval(values, names(codes), seed=1)
    assert a != s.bootstrap_interval(values, names(codes), seed=2)


def test_the_auroc_interval_is_that_of_a_loop_with_sklearn(monkeypatch):
    rng = np.random.default_rng(6)
    truth, probability = draw_classifier(rng, 40, 3, skill=1)
    probability = np.round(probability, 1)  # ties
    codes = np.repeat(np.arange(10), 4)
    draws = np.random.default_rng(7).multinomial(10, [0.1] * 10, 60)
    repeats = [np.repeat(np.arange(40), row[codes]) for row in draws]
    expected = np.percentile([macro(probability[i], truth[i]) for i in repeats], [2.5, 97.5])
    monkeypatch.setattr(s, "BLOCK", 40 * 7)  # seven resamples at a time
    found = s.bootstrap_auroc_interval(probability, truth, names(codes), resamples=60, seed=7)
    assert found.value == pytest.approx(macro(probability, truth))
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_auroc_of_unknown_or_infinite_entries_is_never_read():
    rng = np.random.default_rng(8)
    truth, probability = draw_classifier(rng, 50, 2, skill=1)
    groups = names(np.arange(50))
    known = rng.random((50, 2)) < 0.8
    hidden = np.where(known, probability, NAN)
    a = s.bootstrap_auroc_interval(probability, truth, groups, known, resamples=50)
    b = s.bootstrap_auroc_interval(hidden, truth, groups, resamples=50)
    assert a == b


def test_auroc_without_both_classes_is_not_defined():
    truth = np.ones((6, 1), np.uint8)
    probability = np.linspace(0, 1, 6)[:, None]
    found = s.bootstrap_auroc_interval(probability, truth, list("abcdef"))
    assert np.isnan([found.value, found.low, found.high]).all()
    tested = s.paired_auroc_test(probability, probability, truth, list("abcdef"))
    assert tested.patients == 0
    assert np.isnan([tested.difference, tested.p]).all()


# Paired tests


def test_the_sign_flip_test_by_hand():
    a, b = np.array([3.0, 2.0, 4.0, 1.0]), np.array([1.0, 1.0, 1.0, 2.0])
    # differences 2, 1, 3, -1 add up to 5; of the 16 sign patterns 6 reach 5 or -5
    found = s.paired_test(a, b, list("pqrs"))
    sums = [abs(np.dot(signs, [2, 1, 3, -1])) for signs in product([1, -1], repeat=4)]
    assert found.p == np.mean([total >= 5 for total in sums]) == 6 / 16
    assert found.difference == pytest.approx(1.25)
    assert found.patients == 4


def test_the_exact_test_is_that_of_scipy():
    rng = np.random.default_rng(9)
    a, b = rng.normal(0.4, 1, (2, 10)) * [[1], [0]]
    found = s.paired_test(a, b, names(np.arange(10)))
    expected = stats.permutation_test(
        (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    assert found.p == pytest.approx(expected.pvalue)
    assert found.wilcoxon == pytest.approx(stats.wilcoxon(a, b).pvalue)


def test_drawn_flips_come_near_the_enumeration(monkeypatch):
    rng = np.random.default_rng(10)
    a, b = rng.normal(0.5, 1, 12), np.zeros(12)
    exact = s.paired_test(a, b, names(np.arange(12))).p
    monkeypatch.setattr(s, "EXACT_PATIENTS", 0)
    drawn = s.paired_test(a, b, names(np.arange(12)), seed=3).p
    assert drawn == pytest.approx(exact, abs=0.015)
    assert drawn == s.paired_test(a, b, names(np.arange(12)), seed=3).p
    assert s.paired_test(a + 9, b, names(np.arange(12)), flips=99).p >= 1 / 100


def test_every_patient_counts_once():
    a = np.array([1.0, 1.0, 1.0, 0.0])
    found = s.paired_test(a, np.zeros(4), ["p", "p", "p", "q"])
    assert found.difference == 0.5
    assert found.patients == 2


def test_cases_not_finite_in_either_method_are_dropped():
    a = np.array([1.0, NAN, 3.0, 4.0, np.inf])
    b = np.array([0.0, 1.0, NAN, 2.0, np.inf])
    found = s.paired_test(a, b, list("pqrst"))
    assert (found.difference, found.patients) == (1.5, 2)
    nothing = s.paired_test(a[1:2], b[1:2], ["q"])
    assert nothing.patients == 0
    assert np.isnan([nothing.difference, nothing.p, nothing.wilcoxon]).all()


def test_equal_methods_do_not_differ():
    a = np.random.default_rng(11).random(20)
    found = s.paired_test(a, a, names(np.arange(20)))
    assert found == s.PairedTest(0.0, 0.0, 0.0, 1.0, 20, 1.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.integers(0, 5))
def test_a_against_b_mirrors_b_against_a(differences, seed):
    a, b = np.array(differences), np.zeros(len(differences))
    groups = names(np.arange(len(a)))
    there, back = s.paired_test(a, b, groups, seed), s.paired_test(b, a, groups, seed)
    assert there.p == back.p
    assert 2 / 2 ** len(a) <= there.p <= 1
    assert there.difference == -back.difference
    ends = (there.low, there.high)
    assert ends == pytest.approx((-back.high, -back.low), nan_ok=True, abs=1e-12)


def rejections(test, runs: int = 400) -> float:
    """Return how often p < 0.05; its own error is 0.011."""
    return float(np.mean([test(np.random.default_rng((7, run))) < 0.05 for run in range(runs)]))


def test_alike_methods_are_told_apart_one_time_in_twenty():
    def null(rng):
        difference, codes = clustered(rng, 16, each=5)
        base = rng.normal(size=len(codes))
        groups = names(codes)
        seed = int(rng.integers(2**31))
        return s.paired_test(base + difference, base, groups, seed, flips=400, resamples=10).p

    assert 0.02 <= rejections(null) <= 0.08


def test_alike_classifiers_on_different_scales_are_told_apart_one_time_in_twenty():
    def null(rng):
        codes = np.repeat(np.arange(20), 3)
        truth = (rng.random((20, 2)) < 0.5)[codes].astype(np.uint8)
        a, b = (
            truth + rng.normal(size=(20, 2))[codes] + rng.normal(size=truth.shape) for _ in "ab"
        )
        groups = names(codes)
        seed = int(rng.integers(2**31))
        return s.paired_auroc_test(a, np.exp(b), truth, groups, seed, flips=400, resamples=10).p

    assert 0.02 <= rejections(null) <= 0.08


def test_a_real_difference_is_found():
    rng = np.random.default_rng(12)
    truth, a = draw_classifier(rng, 120, 3, skill=2.5)
    b = 0.2 * truth + rng.normal(size=truth.shape)
    found = s.paired_auroc_test(a, b, truth, names(np.repeat(np.arange(60), 2)))
    assert found.p < 0.001
    assert 0.2 < found.low < found.difference < found.high
    assert found.difference == pytest.approx(macro(a, truth) - macro(b, truth))


def test_the_auroc_test_swaps_methods_patient_by_patient():
    """A second, plain implementation: swap ranks, compute both AUROCs, for all 64 patterns."""
    rng = np.random.default_rng(13)
    codes = np.repeat(np.arange(6), 3)
    truth, a = draw_classifier(rng, 18, 2, skill=1.5)
    truth[0], truth[-1] = 0, 1
    b = np.round(rng.normal(size=a.shape), 1)
    ranks = [stats.rankdata(each, axis=0) for each in (a, b)]
    found = s.paired_auroc_test(a, b, truth, names(codes), resamples=20)

    def difference(swap):
        swapped = np.array(swap)[codes][:, None]
        return macro(np.where(swapped, *ranks[::-1]), truth) - macro(
            np.where(swapped, *ranks), truth
        )

    patterns = [abs(difference(swap)) for swap in product([False, True], repeat=6)]
    assert found.difference == pytest.approx(difference([False] * 6))
    assert found.p == np.mean([d >= abs(found.difference) - 1e-9 for d in patterns])


def test_the_auroc_test_goes_by_order_only():
    rng = np.random.default_rng(14)
    truth, a = draw_classifier(rng, 60, 2, skill=1)
    b = a + rng.normal(size=a.shape)
    groups = names(np.repeat(np.arange(30), 2))
    there = s.paired_auroc_test(a, b, truth, groups, 1, resamples=50)
    assert s.paired_auroc_test(np.exp(a), 100 * b, truth, groups, 1, resamples=50) == there
    back = s.paired_auroc_test(b, a, truth, groups, 1, resamples=50)
    assert (back.p, back.difference) == pytest.approx((there.p, -there.difference))
    same = s.paired_auroc_test(a, a, truth, groups, 1, resamples=50)
    assert (same.p, same.difference, same.low, same.high) == (1, 0, 0, 0)


def test_the_auroc_test_leaves_out_unknown_labels():
    rng = np.random.default_rng(15)
    truth, a = draw_classifier(rng, 40, 3, skill=1)
    b = rng.normal(size=a.shape)
    known = np.ones(a.shape, bool)
    known[:, 2] = False
    known[:10] = False  # five patients without anything known
    groups = np.array(names(np.repeat(np.arange(20), 2)))
    found = s.paired_auroc_test(a, b, truth, groups, known=known, resamples=50)
    alone = s.paired_auroc_test(a[10:, :2], b[10:, :2], truth[10:, :2], groups[10:], resamples=50)
    assert found == alone
    assert found.patients == 15


# Many comparisons


def test_holm_by_hand():
    found = s.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]
    assert s.holm({}) == {}
    assert s.holm({"a": 0.02, "b": NAN}) == pytest.approx({"a": 0.02, "b": NAN}, nan_ok=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(values):
    p_values = {str(i): p for i, p in enumerate(values)}
    adjusted = s.holm(p_values)
    assert all(p_values[name] <= adjusted[name] <= 1 for name in p_values)
    ordered = sorted(p_values, key=lambda name: p_values[name])
    assert [adjusted[name] for name in ordered] == sorted(adjusted.values())
    for alpha in (0.01, 0.05, 0.2):
        rejected = set()
        for place, name in enumerate(ordered):
            if (len(ordered) - place) * p_values[name] > alpha:
                break
            rejected.add(name)
        assert rejected == {name for name, p in adjusted.items() if p <= alpha}


def test_strata_count_alike_however_many_patients_they_have():
    values = np.array([0.0] * 30 + [1.0, 0.8])
    sites = ["large"] * 30 + ["small"] * 2
    found = s.bootstrap_interval(values, names(np.arange(32)), strata=sites)
    assert found.value == pytest.approx(0.45)
    assert (found.low, found.high) == pytest.approx((0.4, 0.5))
    assert s.bootstrap_interval(values, names(np.arange(32))).value < 0.1


def test_a_paired_difference_of_strata_is_the_mean_of_theirs():
    b = np.full(4, 0.4)
    a = b + np.array([0.1, -0.1, 0.1, 0.05])
    found = s.paired_test(a, b, list("pqrt"), strata=["x", "x", "x", "y"])
    effects = [0.1 / 6, -0.1 / 6, 0.1 / 6, 0.05 / 2]
    assert found.difference == pytest.approx(sum(effects))

    def p_of(parts):
        sums = [
            sum(f * e for f, e in zip(x, parts, strict=True)) for x in product((1, -1), repeat=4)
        ]
        return sum(abs(each) >= abs(sum(parts)) - 1e-9 for each in sums) / len(sums)

    assert found.p == pytest.approx(p_of(effects))
    assert found.p != p_of([0.1, -0.1, 0.1, 0.05])  # all patients alike would say something else


def test_several_models_score_the_mean_of_their_areas_not_that_of_their_mean():
    truth = np.array([[1], [1], [0], [0]], dtype=bool)
    one = np.array([[0.9], [0.1], [0.5], [0.2]])
    two = np.array([[0.1], [0.9], [0.2], [0.5]])
    found = s.bootstrap_auroc_interval(np.stack([one, two]), truth, list("abcd"), resamples=20)
    assert found.value == pytest.approx(0.5)
    assert s.bootstrap_auroc_interval((one + two) / 2, truth, list("abcd")).value == 1.0
    tested = s.paired_auroc_test(np.stack([one, two]), one, truth, list("abcd"), resamples=20)
    assert tested.difference == pytest.approx(0, abs=1e-12)
