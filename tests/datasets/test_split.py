"""Who is tested on and who goes where: whole groups, exact where it can be, by name alone."""

from collections import Counter

import pytest

from consilia.datasets.split import SHARD, choose_test, deal, shuffled

GROUPS = [f"p{n // 3}" for n in range(300)]  # 100 patients of three images


def test_order_of_names_does_not_matter():
    assert shuffled(GROUPS, "x", 0) == shuffled(reversed(GROUPS), "x", 0)
    assert shuffled(GROUPS, "x", 0) != shuffled(GROUPS, "x", 1)
    assert deal(GROUPS, 4, "x") == deal(GROUPS[::-1], 4, "x")


def test_a_share_is_of_groups_at_least_one_and_never_all():
    assert len(choose_test(GROUPS, 0.2, "x")) == 20
    assert len(choose_test(["a", "b"], 0.01, "x")) == 1
    assert len(choose_test(["a", "b"], 0.99, "x")) == 1
    assert choose_test(["a"], 0.5, "x") == set()


def test_a_number_of_images_is_reached_exactly_where_groups_allow_it():
    uneven = [f"p{n}" for n in range(40) for _ in range(1 + n % 5)]
    chosen = choose_test(uneven, 50, "x")
    assert sum(group in chosen for group in uneven) == 50


@pytest.mark.parametrize("sites", [1, 4, 7])
def test_dealing_keeps_groups_whole_and_sites_equal(sites):
    dealt = deal(GROUPS, sites, "x")
    images = Counter(dealt[group] for group in GROUPS)
    assert set(images) == set(range(sites))
    assert max(images.values()) - min(images.values()) <= 3


def test_shard_names():
    assert SHARD.fullmatch("3-of-8").groups() == ("3", "8")
    assert not SHARD.fullmatch("0-of-8")
    assert not SHARD.fullmatch("3of8")
