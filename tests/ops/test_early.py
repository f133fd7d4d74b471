"""ADELE's curve against SciPy's own fit, its slope by differences, its divergence in a loop."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import curve_fit

from consilia.ops.early import (
    fit_saturation,
    has_slowed,
    pooled_overlap,
    saturation,
    scale_disagreement,
    slowdown,
)


def curve(t, a=0.7, b=0.8, c=3.0):
    return a * (1 - np.exp(-(t**b) / c))


def test_the_fit_finds_the_curve_it_came_from():
    values = curve(np.arange(1.0, 13)).tolist()
    assert fit_saturation(values) == pytest.approx((0.7, 0.8, 3.0), rel=1e-3)
    assert fit_saturation(values[:2]) is None


def test_the_fit_is_that_of_the_authors():
    noise = np.random.default_rng(0).normal(0, 0.02, 10)
    t = np.arange(1.0, 11)
    values = curve(t) + noise
    expected, _ = curve_fit(
        curve,
        t,
        values,
        p0=(1, 1, 1),
        method="trf",
        sigma=np.geomspace(1, 0.1, 10),
        absolute_sigma=True,
        bounds=([0, 0, 0], [1, 1, np.inf]),
    )
    found = fit_saturation(values.tolist())
    np.testing.assert_allclose(saturation(t, *found), curve(t, *expected), atol=1e-4)


@pytest.mark.parametrize("t", [1.0, 2.0, 5.0, 20.0])
def test_the_slope_by_differences(t):
    step = 1e-5
    slope = [(curve(x + step) - curve(x - step)) / (2 * step) for x in (1.0, t)]
    assert slowdown(t, 0.8, 3.0) == pytest.approx((slope[0] - slope[1]) / slope[0], abs=1e-6)
    assert slowdown(50.0, 1.0, 1e-6) == 1  # a slope that has vanished, without underflow


def test_fitting_slows_down_when_the_curve_is_flat():
    rising = curve(np.arange(1.0, 5), 1.0, 1.0, 40.0).tolist()
    assert not has_slowed(rising, 0.8)
    flat = curve(np.arange(1.0, 13), 0.6, 1.0, 1.5).tolist()
    assert has_slowed(flat, 0.8)
    assert not has_slowed(flat, 1.0)  # a slope cannot fall by more than all of it
    when = [has_slowed(flat[:n], 0.8) for n in range(1, 12)]
    assert when == sorted(when)  # once slow, it stays slow
    exact = 1 + 1.5 * math.log(5)  # exp(-(t - 1) / c) < 1 - r
    assert when.index(True) + 1 == math.ceil(exact)


def test_time_begins_when_something_is_predicted():
    assert not has_slowed([0.0] * 20, 0.8)
    flat = curve(np.arange(1.0, 13), 0.6, 1.0, 1.5).tolist()
    assert has_slowed([0.0, 0.0, *flat[:4]], 0.8) == has_slowed(flat[:4], 0.8)


def test_overlap_is_pooled():
    predicted = torch.tensor([[[True, True]], [[False, False]]])
    target = torch.tensor([[[True, False]], [[True, False]]])
    assert pooled_overlap(predicted, target) == pytest.approx(1 / 3)
    nothing = torch.zeros(1, 1, 1, dtype=torch.bool)
    assert pooled_overlap(nothing, nothing) == 0


def two(p):
    p = torch.tensor(p).reshape(-1, 1, 1, 2)
    return torch.cat((1 - p, p), 1)


def test_disagreement_of_scales_in_a_loop():
    scales = [[0.9, 0.2, 0.6, 0.5], [0.8, 0.4, 0.5, 0.5], [0.7, 0.3, 0.4, 0.5]]
    found = float(scale_disagreement([two(p) for p in scales], 0.8))
    total = 0.0
    for pixel in range(2):  # of the second image no average reaches 0.8
        q = sum(p[pixel] for p in scales) / 3
        for p in (s[pixel] for s in scales):
            total += (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))) / 3
    assert found == pytest.approx(total / 4, rel=1e-5)
    assert float(scale_disagreement([two(scales[0])] * 3, 0.0)) == pytest.approx(0, abs=1e-6)


def test_an_image_may_be_sure_of_background_alone():
    scales = [[0.10, 0.20], [0.05, 0.30], [0.10, 0.10]]  # the label reaches 0.2 at most
    found = float(scale_disagreement([two(p) for p in scales], 0.8))
    assert found == pytest.approx(float(scale_disagreement([two(p) for p in scales], 0.0)))
    assert found > 0
    assert float(scale_disagreement([two(p) for p in scales], 0.95)) == 0


def test_unknown_pixels_neither_disagree_nor_convince():
    scales = [two([0.9, 0.2]), two([0.8, 0.4]), two([0.7, 0.3])]
    second = torch.tensor([[[False, True]]])
    assert float(scale_disagreement(scales, 0.75, second)) == 0  # 0.8 is at the pixel not known
    kept = float(scale_disagreement(scales, 0.6, second))
    one = [s[..., 1:] for s in scales]
    assert kept == pytest.approx(float(scale_disagreement(one, 0.6)))
