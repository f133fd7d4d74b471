from __future__ import annotations

import numpy as np
import pytest

from consilia.evaluate import intervals as s
from consilia.evaluate import resampling
from tests.evaluate.support import NAN, clustered, draw_classifier, macro, names


def test_mean_and_deviation_over_seeds():
    assert s.mean_std([1.0, 2.0, 6.0]) == pytest.approx((3, np.sqrt(7)))
    assert s.mean_std([1.0, NAN, 3.0]) == pytest.approx((2, np.sqrt(2)))
    assert s.mean_std([0.5]) == pytest.approx((0.5, NAN), nan_ok=True)
    assert s.mean_std([]) == pytest.approx((NAN, NAN), nan_ok=True)


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
    monkeypatch.setattr(resampling, "BLOCK", 40 * 7)  # seven resamples at a time
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


def test_strata_count_alike_however_many_patients_they_have():
    values = np.array([0.0] * 30 + [1.0, 0.8])
    sites = ["large"] * 30 + ["small"] * 2
    found = s.bootstrap_interval(values, names(np.arange(32)), strata=sites)
    assert found.value == pytest.approx(0.45)
    assert (found.low, found.high) == pytest.approx((0.4, 0.5))
    assert s.bootstrap_interval(values, names(np.arange(32))).value < 0.1


def test_auroc_without_both_classes_is_not_defined():
    probability = np.linspace(0, 1, 6)[:, None]
    found = s.bootstrap_auroc_interval(probability, np.ones((6, 1), np.uint8), list("abcdef"))
    assert np.isnan([found.value, found.low, found.high]).all()


def test_several_models_score_the_mean_of_their_areas_not_that_of_their_mean():
    truth = np.array([[1], [1], [0], [0]], dtype=bool)
    one = np.array([[0.9], [0.1], [0.5], [0.2]])
    two = np.array([[0.1], [0.9], [0.2], [0.5]])
    found = s.bootstrap_auroc_interval(np.stack([one, two]), truth, list("abcd"), resamples=20)
    assert found.value == pytest.approx(0.5)
    assert s.bootstrap_auroc_interval((one + two) / 2, truth, list("abcd")).value == 1.0
