from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.errors import DataError
from consilia.weaken.drop_objects import (
    draw_kept_objects,
    objects,
    objects_kept,
    render_kept_objects,
)


@pytest.mark.parametrize(
    ("count", "completeness", "kept"),
    [(7, 0.4, 3), (1, 0.1, 1), (5, 0.5, 3), (10, 0.3, 3), (3, 0.7, 2)],
)
def test_fact_8_of_fedia(count, completeness, kept):
    assert objects_kept(count, completeness) == kept


def test_half_rounds_up_although_floats_do_not_say_so():
    assert 50 * 0.29 < 14.5
    assert objects_kept(50, 0.29) == 15


def test_nothing_stays_of_nothing():
    assert objects_kept(0, 0.5) == 0


@settings(deadline=None, max_examples=80)
@given(seed=st.integers(0, 10**6), completeness=st.floats(0.05, 1))
def test_exactly_the_rounded_number_of_whole_objects_stays(mask_of, seed, completeness):
    mask = mask_of(seed)
    numbered, count = objects(mask)
    drawn = draw_kept_objects(mask, completeness, np.random.default_rng(seed))
    left = render_kept_objects(drawn, mask)
    assert objects(left)[1] == len(drawn.kept) == objects_kept(count, completeness)
    for number in range(1, count + 1):
        assert left[numbered == number].all() == (number in drawn.kept)
        assert left[numbered == number].any() == (number in drawn.kept)
    assert not (left & ~mask).any()


def test_every_object_is_as_likely_as_the_others():
    mask = np.zeros((1, 7), dtype=bool)
    mask[0, ::2] = True
    rng = np.random.default_rng(0)
    counts = np.zeros(4)
    for _ in range(2000):
        counts[np.array(draw_kept_objects(mask, 0.5, rng).kept) - 1] += 1
    assert (abs(counts - 1000) < 100).all()


def test_corners_connect_in_two_and_in_three_dimensions():
    assert objects(np.eye(3, dtype=bool))[1] == 1
    volume = np.zeros((2, 2, 2), dtype=bool)
    volume[0, 0, 0] = volume[1, 1, 1] = True
    assert objects(volume)[1] == 1


def test_another_mask_is_refused():
    mask = np.eye(3, dtype=bool)
    drawn = draw_kept_objects(mask, 1.0, np.random.default_rng(0))
    with pytest.raises(DataError, match="has 0 objects, but had 1"):
        render_kept_objects(drawn, np.zeros((3, 3), dtype=bool))
