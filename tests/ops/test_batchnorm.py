"""FedAP's affinity: distances and shares by hand."""

import numpy as np
import pytest
import torch

from consilia.ops.batchnorm import affinity_shares, feature_distance


def row(*values):
    return torch.tensor([float(value) for value in values])


MEANS = {
    "a": {"x": row(0, 0), "y": row(1)},
    "b": {"x": row(3, 4), "y": row(1)},
    "c": {"x": row(0, 1), "y": row(3)},
}
SPREADS = {
    "a": {"x": row(1, 1), "y": row(2)},
    "b": {"x": row(1, 1), "y": row(4)},
    "c": {"x": row(1, 1), "y": row(2)},
}


def distance(i, j):
    return feature_distance(MEANS[i], SPREADS[i], MEANS[j], SPREADS[j])


def test_the_distance_sums_layers_after_the_root():
    assert distance("a", "b") == pytest.approx(5 + 2)
    assert distance("a", "c") == pytest.approx(1 + 2)
    assert distance("b", "c") == pytest.approx(np.sqrt(9 + 9) + np.sqrt(4 + 4))
    assert distance("b", "a") == distance("a", "b")


def test_shares_are_momentum_and_nearness():
    shares = affinity_shares(MEANS, SPREADS, 0.5)
    near = 1 / 7 + 1 / 3
    assert shares["a"] == pytest.approx({"a": 0.5, "b": 0.5 / 7 / near, "c": 0.5 / 3 / near})
    assert all(sum(row.values()) == pytest.approx(1) for row in shares.values())
    assert affinity_shares(MEANS, SPREADS, 1.0)["b"] == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_equal_features_take_all_and_a_site_alone_takes_itself():
    means, spreads = {**MEANS, "d": MEANS["a"]}, {**SPREADS, "d": SPREADS["a"]}
    shares = affinity_shares(means, spreads, 0.5)
    assert shares["a"]["d"] == pytest.approx(0.5)
    assert affinity_shares({"a": MEANS["a"]}, {"a": SPREADS["a"]}, 0.5) == {"a": {"a": 1.0}}
    assert affinity_shares({}, {}, 0.5) == {}
