from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.weaken.regions import depth, parts, side, stream


def test_a_stream_depends_on_every_name_and_on_the_seed_only():
    first = stream(1, "site", "case").integers(1 << 40)
    assert first == stream(1, "site", "case").integers(1 << 40)
    others = [stream(2, "site", "case"), stream(1, "sitec", "ase"), stream(1, "site", "case", "x")]
    assert all(first != other.integers(1 << 40) for other in others)


def test_a_stream_is_the_same_on_every_machine():
    assert stream(7, "a", "b").integers(1000, size=3).tolist() == [823, 257, 939]


def test_depth_counts_pixels_to_the_outside_and_not_to_the_border():
    region = np.zeros((5, 5), dtype=bool)
    region[:, 2:] = True
    assert depth(region)[2].tolist() == [0, 0, 1, 2, 3]


def test_depth_of_a_full_image_is_counted_from_its_border():
    assert depth(np.ones((3, 3), dtype=bool)).tolist() == [[1, 1, 1], [1, 2, 1], [1, 1, 1]]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_parts_put_together_are_the_region(mask_of, seed):
    region = mask_of(seed)
    again = np.zeros(region.shape, dtype=int)
    for window, part in parts(region):
        again[window] += part
    assert (again == region).all()


def test_side_is_that_of_a_square():
    assert side((32, 128)) == 64
