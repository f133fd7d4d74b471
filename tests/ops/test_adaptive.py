"""FedMix's shares: METHODS 1.9 and the edge cases of 1.4."""

import pytest

from consilia.ops.adaptive import adaptive_shares

COUNTS = {"1": 50.0, "2": 100.0, "3": 130.0}
LOSSES = {"1": 0.2, "2": 0.1, "3": 0.4}


def shares(counts=None, losses=None, lam=10.0, beta=1.5):
    found = adaptive_shares(counts or COUNTS, losses or LOSSES, lam, beta).values()
    total = sum(found) or 1.0
    return [share / total for share in found]


def test_shares_grow_with_count_and_loss():  # fact 1
    assert shares() == pytest.approx([0.233617, 0.109324, 0.657059], abs=1e-6)


def test_without_lambda_only_counts_matter():  # fact 2
    assert shares(lam=0.0) == [50 / 280, 100 / 280, 130 / 280]


def test_equal_losses():  # fact 3
    equal = dict.fromkeys("123", 0.3)
    assert shares(losses=equal) == pytest.approx([0.319264, 0.335498, 0.345238], abs=1e-6)


def test_a_site_that_selected_nothing_counts_nothing():  # fact 4
    found = shares({"1": 0.0, "2": 80.0, "3": 130.0}, {"1": 0.0, "2": 0.1, "3": 0.4})
    assert found == pytest.approx([0, 0.135642, 0.864358], abs=1e-6)


def test_the_scale_of_losses_does_not_matter():  # fact 10
    assert shares(losses={k: 7 * v for k, v in LOSSES.items()}) == pytest.approx(shares())


def test_all_losses_zero_leaves_the_counts():
    assert shares(losses=dict.fromkeys("123", 0.0)) == pytest.approx(
        [50 / 280, 100 / 280, 130 / 280]
    )


def test_a_loss_that_is_not_finite_drops_its_site():
    found = shares(losses={"1": float("nan"), "2": 0.1, "3": 0.4})
    assert found[0] == 0
    assert sum(found) == pytest.approx(1)


def test_nobody_selected_anything():
    assert shares(counts=dict.fromkeys("123", 0.0)) == [0, 0, 0]
