"""FedNoRo's shares, with distances done by hand."""

import math

import pytest
import torch

from consilia.ops.distance import distance, distance_shares, distances_to_clean


def model(a, b, steps=0):
    return {"a": torch.tensor(a), "b": torch.tensor(b), "steps": torch.tensor(steps)}


def test_distance_is_a_sum_of_lengths():
    assert distance(model([3.0, 4.0], [1.0]), model([0.0, 0.0], [3.0], steps=99)) == pytest.approx(
        7
    )


def test_noisy_sites_are_measured_from_the_nearest_clean_one():
    updates = {
        "a": model([0.0], [0.0]),
        "b": model([1.0], [0.0]),
        "c": model([3.0], [0.0]),
        "d": model([9.0], [0.0]),
    }
    assert distances_to_clean(updates, ("c", "d")) == {"a": 0, "b": 0, "c": 2, "d": 8}
    assert set(distances_to_clean(updates, tuple("abcd")).values()) == {
        0.0
    }  # nobody to measure from
    assert set(distances_to_clean(updates, ()).values()) == {0.0}


def test_shares_fall_with_distance():
    found = distance_shares({"a": 10.0, "b": 20.0}, {"a": 0.0, "b": 4.0})
    assert found == {"a": 10.0, "b": pytest.approx(20 * math.exp(-1))}
    assert distance_shares({"a": 10.0, "b": 20.0}, {"a": 0.0, "b": 0.0}) == {"a": 10.0, "b": 20.0}
