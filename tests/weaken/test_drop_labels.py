from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.errors import UsageError
from consilia.weaken.drop_labels import FEDPSL_A, FEDPSL_B, deal_labels, hide_labels


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), labels=st.integers(1, 14), sites=st.integers(1, 8))
def test_every_label_has_an_owner_and_every_site_its_number(seed, labels, sites):
    names, places = tuple(f"l{i}" for i in range(labels)), tuple(f"s{i}" for i in range(sites))
    least = -(-labels // sites)
    per_site = least + seed % (labels - least + 1)
    dealt = deal_labels(names, places, per_site, np.random.default_rng(seed))
    assert {label for mine in dealt.values() for label in mine} == set(names)
    assert all(len(set(mine)) == len(mine) == per_site for mine in dealt.values())
    assert dealt == deal_labels(names, places, per_site, np.random.default_rng(seed))
    assert all(list(mine) == sorted(mine, key=names.index) for mine in dealt.values())


@pytest.mark.parametrize("per_site", [1, 4])
def test_what_cannot_be_dealt_is_refused(per_site):
    with pytest.raises(UsageError, match="from 2 to 3 labels per site"):
        deal_labels(("a", "b", "c"), ("x", "y"), per_site, np.random.default_rng(0))


def test_hidden_labels_are_zero_and_others_stay():
    maps = np.array([[[0, 1, 2, 3]]], dtype=np.uint8)
    assert hide_labels(maps, (0, 2)).tolist() == [[[0, 1, 0, 3]]]
    columns = np.array([[1, 1, 0], [0, 1, 1]], dtype=np.uint8)
    assert hide_labels(columns, (0, 2)).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert hide_labels(columns, ()).sum() == 0


def test_the_label_sets_of_fedpsl():
    assert [len(mine) for mine in FEDPSL_A] == [3, 3, 3, 3]
    assert len({label for mine in FEDPSL_A for label in mine}) == 6
    assert len({label for mine in FEDPSL_B for label in mine}) == 8
    assert [len(mine) for mine in FEDPSL_B[4:]] == [1, 1]
