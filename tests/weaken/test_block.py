from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.weaken.block import draw_background_block, draw_block, render_block


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 10**6))
def test_a_block_lies_in_its_region_and_marks_something(mask_of, seed):
    for draw in (draw_block, draw_background_block):
        region = mask_of(seed)
        block = draw(region, np.random.default_rng(seed))
        if block is None:
            assert not region.any()
            continue
        marked = render_block(block, region)
        assert marked.any()
        assert not (marked & ~region).any()


def disk() -> np.ndarray:
    rows, cols = np.ogrid[:128, :128]
    return np.hypot(rows - 60, cols - 70) < 17


def test_a_block_keeps_the_share_it_was_asked_for():
    for seed in range(20):
        marked = render_block(draw_block(disk(), np.random.default_rng(seed)), disk())
        assert 0.27 < marked.sum() / disk().sum() < 0.53


def test_the_background_block_leaves_a_gap():
    marked = render_block(draw_background_block(~disk(), np.random.default_rng(0)), ~disk())
    assert 0.79 < marked.mean() < 0.89


def test_without_labels_the_whole_image_is_background():
    full = np.ones((16, 16), dtype=bool)
    assert render_block(draw_background_block(full, np.random.default_rng(0)), full).all()
