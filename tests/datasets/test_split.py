"""Who is tested on and who goes where: whole groups, exact where it can be, by name alone."""

from collections import Counter

import pytest

from consilia.datasets.split import (
    FOLD,
    SHARD,
    choose_fold,
    choose_some,
    choose_test,
    deal,
    shuffled,
)

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
    assert SHARD.fullmatch("3-of-8").groups() == ("3", "8", None)
    assert SHARD.fullmatch("3-of-8-n100").groups() == ("3", "8", "100")
    assert not SHARD.fullmatch("3-of-8-n0")
    assert not SHARD.fullmatch("0-of-8")
    assert not SHARD.fullmatch("3of8")


def test_fold_names():
    assert FOLD.fullmatch("busi/fold-2-of-5").groups() == ("busi", "2", "5")
    assert not FOLD.fullmatch("fold-2-of-5")
    assert not FOLD.fullmatch("busi/fold-0-of-5")


def test_folds_share_no_group_and_leave_none_out():
    folds = [choose_fold(GROUPS, fold, 5, "x") for fold in range(1, 6)]
    assert [len(fold) for fold in folds] == [20] * 5
    assert set.union(*folds) == set(GROUPS)


def test_some_images_are_of_as_many_groups_as_possible_and_nested():
    names = [f"i{n}" for n in range(300)]
    of = dict(zip(names, GROUPS, strict=True))
    chosen = {count: choose_some(names, GROUPS, count, "x") for count in (60, 100, 150, 900)}
    assert {count: len(some) for count, some in chosen.items()} == {
        60: 60,
        100: 100,
        150: 150,
        900: 300,
    }
    assert [len({of[name] for name in chosen[count]}) for count in (60, 100, 150)] == [60, 100, 100]
    assert chosen[60] < chosen[100] < chosen[150]
    assert choose_some(names[::-1], GROUPS[::-1], 60, "x") == chosen[60]
    assert choose_some(names, GROUPS, 60, "y") != chosen[60]
