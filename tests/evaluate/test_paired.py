from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from consilia.evaluate import paired as s
from tests.evaluate.support import NAN, clustered, draw_classifier, macro, names


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


def test_without_both_classes_nothing_is_tested():
    probability = np.linspace(0, 1, 6)[:, None]
    truth = np.ones((6, 1), np.uint8)
    tested = s.paired_auroc_test(probability, probability, truth, list("abcdef"))
    assert tested.patients == 0
    assert np.isnan([tested.difference, tested.p]).all()


def test_the_models_of_a_method_are_compared_one_by_one():
    truth = np.array([[1], [1], [0], [0]], dtype=bool)
    one = np.array([[0.9], [0.1], [0.5], [0.2]])
    two = np.array([[0.1], [0.9], [0.2], [0.5]])
    tested = s.paired_auroc_test(np.stack([one, two]), one, truth, list("abcd"), resamples=20)
    assert tested.difference == pytest.approx(0, abs=1e-12)
