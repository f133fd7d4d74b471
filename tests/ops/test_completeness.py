"""FedIA's formulas: METHODS 4.9 and the edge cases of 4.4."""

import numpy as np
import pytest
import torch

from consilia.ops.completeness import (
    completeness,
    completeness_shares,
    correct_missing,
    count_objects,
    fit_of,
    line,
    overlap,
)


def test_completeness_is_a_ratio_of_sums():  # fact 1
    assert completeness([3, 2, 4, 1], [5, 4, 4, 2]) == pytest.approx(10 / 15)
    assert completeness([3], [2]) == 1  # the model misses what was marked
    assert completeness([0, 0], [5, 1]) == 0
    assert completeness([1], [5000]) == 1e-3
    assert completeness([3], [0]) is None
    assert completeness([0], [0]) == 0  # nothing marked says nothing of the model


def test_shares():  # fact 2
    a = dict(zip("abcd", (0.4, 0.6, 0.8, 1.0), strict=True))
    losses = dict(zip("abcd", (0.5, 0.45, 0.4, 0.35), strict=True))
    found = list(completeness_shares(a, losses).values())
    assert found == pytest.approx([0.072211, 0.123091, 0.239749, 0.564949], abs=1e-6)


def test_a_tiny_loss_does_not_overflow():  # fact 4
    a = dict.fromkeys("abcd", 1.0)
    found = completeness_shares(a, {"a": 0.5, "b": 0.5, "c": 0.5, "d": 1e-3})
    assert list(found.values()) == pytest.approx([0, 0, 0, 1])
    assert list(completeness_shares(a, dict.fromkeys("abcd", 0.2)).values()) == pytest.approx(
        [0.25] * 4
    )
    perfect = completeness_shares({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.5})
    assert list(perfect.values()) == pytest.approx([1, 0])
    dropped = completeness_shares(a, {"a": float("nan"), "b": 0.2, "c": 0.2, "d": 0.2})
    assert list(dropped.values()) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


def test_a_bound_on_the_ratio_of_shares():
    a = dict(zip("abcd", (0.4, 0.6, 0.8, 1.0), strict=True))
    losses = dict(zip("abcd", (0.5, 0.45, 0.4, 0.35), strict=True))
    found = np.array(list(completeness_shares(a, losses, ratio=4.0).values()))
    free = np.exp([0.8, 4 / 3, 2, 1 / 0.35])
    expected = np.maximum(free, free.max() / 4)
    np.testing.assert_allclose(found, expected / expected.sum())
    assert found[0] == found[1] == found[3] / 4
    assert completeness_shares(a, losses, ratio=0.0) == completeness_shares(a, losses)
    even = completeness_shares(a, losses, ratio=1.0)
    assert list(even.values()) == pytest.approx([0.25] * 4)


def test_without_any_finite_loss_nobody_counts():
    assert completeness_shares({"a": 1.0}, {"a": float("nan")}) == {"a": 0}


def test_line_and_gap():  # fact 6
    history = list(enumerate([0.30, 0.34, 0.38, 0.42, 0.46], start=1))
    slope, intercept = line(history)
    assert (slope, intercept) == pytest.approx((0.04, 0.26))
    at_seven = slope * 7 + intercept
    assert at_seven == pytest.approx(0.54)
    assert at_seven - 0.50 > 0.03
    assert not at_seven - 0.52 > 0.03
    assert line(history[:1]) is None


def test_correction():  # fact 7
    p = torch.tensor([[[0.95, 0.85, 0.75], [0.10, 0.81, 0.80], [0.99, 0.2, 0.6]]])
    y = torch.tensor([[[0, 0, 0], [1, 0, 0], [1, 1, 0]]], dtype=torch.uint8)
    assert correct_missing(y, p, 0.8).tolist() == [[[1, 1, 0], [1, 1, 0], [1, 1, 0]]]


def test_a_slice_that_would_be_too_full_keeps_its_labels():
    p = torch.tensor([[[0.9, 0.9, 0.9, 0.1]], [[0.9, 0.9, 0.1, 0.1]]])
    y = torch.tensor([[[0, 0, 0, 1]], [[1, 0, 0, 0]]], dtype=torch.uint8)
    assert correct_missing(y, p, 0.8).tolist() == [[[1, 1, 1, 1]], [[1, 1, 0, 0]]]
    assert correct_missing(y, p, 0.8, most=0.5).tolist() == [[[0, 0, 0, 1]], [[1, 1, 0, 0]]]
    assert correct_missing(y, p, 0.8, most=0.4).tolist() == y.tolist()


def test_objects_touch_at_corners():
    assert count_objects(np.eye(4, dtype=bool)) == 1
    apart = np.zeros((5, 5), bool)
    apart[0, 0] = apart[4, 4] = True
    assert count_objects(apart) == 2
    assert count_objects(np.zeros((3, 3), bool)) == 0


def test_overlap_of_dice():  # fact 5: IoU = (1 - l) / (1 + l)
    pairs = ((4, 1, 0.25, 0.6), (5, 2, 0.4, 0.428571), (4, 2, 0.5, 0.333333))
    for length, apart, loss, expected in pairs:
        predicted = torch.zeros(1, 1, 8, dtype=torch.bool)
        target = torch.zeros(1, 1, 8, dtype=torch.bool)
        predicted[..., :length], target[..., apart : apart + length] = True, True
        found = overlap(predicted, target).item()
        assert fit_of(predicted.float(), target) == pytest.approx((loss, found), abs=1e-4)
        assert found == pytest.approx((1 - loss) / (1 + loss))
        assert found == pytest.approx(expected, abs=1e-6)
