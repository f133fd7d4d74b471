"""Two Gaussians against an EM written out here, votes, and sites that are all alike."""

import numpy as np
import pytest

from consilia.ops.mixture import between_extremes, high_among, upper_part, voted_upper_part


def plain_em(values, steps=500):
    """Expectation and maximization of two one-dimensional Gaussians, from the extremes."""
    mean, variance, share = (
        np.array([values.min(), values.max()]),
        np.ones(2) * values.var(),
        [0.5, 0.5],
    )
    for _ in range(steps):
        density = np.array(
            [
                s / np.sqrt(v) * np.exp(-((values - m) ** 2) / (2 * v))
                for m, v, s in zip(mean, variance, share, strict=True)
            ]
        )
        belongs = density / density.sum(0)
        weight = belongs.sum(1)
        mean = (belongs * values).sum(1) / weight
        variance = (belongs * (values - mean[:, None]) ** 2).sum(1) / weight + 1e-6
        share = weight / len(values)
    return belongs[1] > belongs[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_split_is_that_of_plain_em(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate((rng.normal(0, 0.1, 30), rng.normal(1, 0.2, 12)))
    assert upper_part(values[:, None]).tolist() == plain_em(values).tolist()


def test_the_upper_part_of_several_numbers():
    values = np.array([[0.0, 0.1], [0.1, 0.0], [0.9, 1.0], [1.0, 0.8]])
    assert upper_part(values).tolist() == [False, False, True, True]
    assert voted_upper_part(values).tolist() == [False, False, True, True]


def test_nothing_stands_out_among_equals():
    assert not upper_part(np.full((5, 2), 0.3)).any()
    assert not upper_part(np.array([[1.0]])).any()


def test_columns_are_scaled_and_gaps_filled():
    found = between_extremes(
        np.array([[1.0, np.nan, 7.0, np.nan], [3.0, 4.0, 7.0, np.nan], [2.0, 6.0, 7.0, np.nan]])
    )
    assert found.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0.5, 1, 0, 0]]


def test_names_that_stand_out():
    losses = {"d": (0.5, 3.0), "a": (0.1, 0.2), "c": (0.4, 2.8), "b": (0.12, None)}
    assert high_among(losses, votes=9) == ("c", "d")
    assert high_among({"a": (0.3,), "b": (0.3,)}) == ()
    assert high_among({"a": (0.3,)}) == ()
