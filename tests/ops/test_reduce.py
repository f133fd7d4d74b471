"""The reducer against a plain sum, its fallbacks, and METHODS' numbers."""

import numpy as np
import pytest
import torch

from consilia.ops.reduce import mixtures, normalise, reduce, reduce_whole

GROUPS = {"body": ("w", "n"), "head": ("rows",)}


def site(value, rows, count=1):
    return {
        "w": torch.full((2, 2), float(value)),
        "n": torch.tensor(count),
        "rows": torch.tensor(rows, dtype=torch.float32),
    }


PREVIOUS = site(-1, [7.0, 8.0, 9.0], 0)
UPDATES = {
    "b": site(2, [2.0, 4.0, 6.0], 4),
    "a": site(1, [1.0, 2.0, 3.0], 9),
    "c": site(3, [3.0, 6.0, 9.0], 2),
}


def test_a_mean_is_the_weighted_sum_and_counters_are_never_averaged():
    shares = {"a": 626, "b": 591, "c": 570}
    result = reduce(PREVIOUS, UPDATES, {"body": shares, "head": shares}, GROUPS)
    total = sum(shares.values())
    expected = sum(shares[s] / total * float(UPDATES[s]["w"][0, 0]) for s in shares)
    assert torch.allclose(result["w"], torch.full((2, 2), expected))
    assert result["n"] == 9
    assert result["n"].dtype == torch.int64
    assert result["w"].dtype == torch.float32


def test_fedavg_shares_of_fedia():  # METHODS 4.9 fact 9
    shares = normalise({"1": 626, "2": 591, "3": 570, "4": 646})
    assert [float(shares[k]) for k in "1234"] == pytest.approx(
        [0.257296, 0.242910, 0.234279, 0.265516], abs=1e-6
    )


def test_rows_go_by_label():  # METHODS 2.9 fact 4
    q = {"a": np.array([10, 0, 5]), "b": np.array([30, 20, 0]), "c": np.array([0, 20, 5])}
    result = reduce(PREVIOUS, UPDATES, {"head": q}, GROUPS)
    assert result["rows"].tolist() == pytest.approx([1.75, 5, 6])
    assert torch.equal(result["w"], PREVIOUS["w"])


def test_a_row_nobody_teaches_keeps_its_value():
    q = {"a": np.array([1, 0, 1]), "b": np.array([1, 0, 0]), "c": np.array([0, 0, 1])}
    result = reduce(PREVIOUS, UPDATES, {"head": q}, GROUPS)
    assert result["rows"][1] == PREVIOUS["rows"][1]
    assert result["rows"].tolist() == pytest.approx([1.5, 8, 6])


@pytest.mark.parametrize("shares", [{"a": 0, "b": 0, "c": 0}, {"a": float("nan"), "b": 0, "c": -1}])
def test_without_any_share_the_previous_value_stays(shares):
    result = reduce(PREVIOUS, UPDATES, {"body": shares}, GROUPS)
    assert torch.equal(result["w"], PREVIOUS["w"])


def test_equal_rows_are_the_mean_to_the_bit():
    rng = torch.Generator().manual_seed(0)
    updates = {s: {"w": torch.randn(5, 7, generator=rng)} for s in "abcd"}
    previous = {"w": torch.zeros(5, 7)}
    counts = {"a": 48.0, "b": 24.0, "c": 31.0, "d": 7.0}
    mean = reduce(previous, updates, {"g": counts}, {"g": ("w",)})
    rows = reduce(
        previous, updates, {"g": {s: np.full(5, n) for s, n in counts.items()}}, {"g": ("w",)}
    )
    assert torch.equal(mean["w"], rows["w"])


def test_the_order_of_sites_does_not_matter():
    turned = dict(reversed(UPDATES.items()))
    shares = {"a": 1 / 3, "b": 0.2, "c": 0.7}
    one = reduce(PREVIOUS, UPDATES, {"body": shares}, GROUPS)
    other = reduce(PREVIOUS, turned, {"body": dict(reversed(shares.items()))}, GROUPS)
    assert torch.equal(one["w"], other["w"])


def test_sums_are_made_in_double_precision():
    big = {
        "a": {"w": torch.tensor([1e8])},
        "b": {"w": torch.tensor([1.0])},
        "c": {"w": torch.tensor([-1e8])},
    }
    result = reduce({"w": torch.zeros(1)}, big, {"g": dict.fromkeys("abc", 1)}, {"g": ("w",)})
    assert float(result["w"]) == pytest.approx(1 / 3, abs=1e-7)


def test_shares_that_sum_to_one_are_left_alone():
    counts = np.array([48.0, 31.0, 24.0])
    c = counts / counts.sum()
    normal = normalise(dict(zip("abc", c, strict=True)))
    assert [float(normal[k]) for k in "abc"] == c.tolist()


def test_each_site_can_have_its_own_mixture():  # METHODS 3.9 fact 1
    decoders = {k: {"w": torch.tensor([v])} for k, v in zip("abc", (1.0, 2.0, 4.0), strict=True)}
    matrix = {
        "a": {"a": 0.75, "b": 0.25, "c": 0},
        "b": {"a": 0.25, "b": 0.75, "c": 0},
        "c": {"a": 0, "b": 0, "c": 1},
    }
    mixed = mixtures(decoders, matrix, decoders, ("w",))
    assert [float(mixed[k]["w"]) for k in "abc"] == pytest.approx([1.25, 1.75, 4])


def test_whole_models_by_one_share_per_site():
    updates = {"a": {"x": torch.tensor([0.0])}, "b": {"x": torch.tensor([4.0])}}
    groups = {"body": ("x",)}
    previous = {"x": torch.tensor([9.0])}
    weights, parts = reduce_whole(previous, updates, {"a": 3.0, "b": 1.0}, groups)
    assert weights["x"].item() == 1
    assert parts == {"a": 0.75, "b": 0.25}
    kept, parts = reduce_whole(previous, updates, {"a": 0.0, "b": 0.0}, groups)
    assert kept["x"].item() == 9
    assert parts == {"a": 0.0, "b": 0.0}
