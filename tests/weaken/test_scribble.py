from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.weaken.regions import depth, parts
from consilia.weaken.scribble import (
    Scribble,
    draw_background_scribble,
    draw_scribble,
    render_scribble,
)


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 10**6), style=st.sampled_from(["plain", "noisy"]))
def test_a_stroke_lies_in_its_region_and_marks_something(mask_of, seed, style):
    for draw in (draw_scribble, draw_background_scribble):
        region = mask_of(seed)
        scribble = draw(region, np.random.default_rng(seed), style)
        if scribble is None:
            assert not region.any()
            continue
        marked = render_scribble(scribble, region)
        assert marked.any()
        assert not (marked & ~region).any()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_every_part_of_a_label_is_marked(mask_of, seed):
    region = mask_of(seed)
    scribble = draw_scribble(region, np.random.default_rng(seed))
    for window, part in parts(region):
        assert (render_scribble(scribble, region)[window] & part).any()


def disk(radius: float, size: int = 128) -> np.ndarray:
    rows, cols = np.ogrid[:size, :size]
    return np.hypot(rows - size / 2, cols - size / 2) < radius


@pytest.mark.parametrize("radius", [12, 17, 25, 40])
def test_shares_are_near_those_of_the_authors(radius):
    region = disk(radius)
    marked = render_scribble(draw_scribble(region, np.random.default_rng(0)), region)
    assert 0.10 < marked.sum() / region.sum() < 0.22
    loop = draw_background_scribble(~region, np.random.default_rng(0))
    assert 0.033 < render_scribble(loop, ~region).mean() < 0.043


def test_the_share_hardly_changes_with_the_size_of_the_image():
    shares = []
    for size in (128, 256, 384):
        region = disk(size / 8, size)
        marked = render_scribble(draw_scribble(region, np.random.default_rng(0)), region)
        shares.append(marked.sum() / region.sum())
    assert max(shares) - min(shares) < 0.06


def test_noise_takes_a_part_of_the_stroke_away():
    region = disk(40)
    plain = draw_scribble(region, np.random.default_rng(0), "plain")
    noisy = draw_scribble(region, np.random.default_rng(0), "noisy")
    assert 0.5 < len(noisy.rows) / len(plain.rows) < 0.85


def test_a_thin_region_is_marked_in_part():
    region = np.zeros((64, 64), dtype=bool)
    region[30:33, 2:62] = True
    marked = render_scribble(draw_scribble(region, np.random.default_rng(0)), region)
    assert marked.sum() < 0.3 * region.sum()


def test_the_background_loop_keeps_away_from_labels():
    loop = draw_background_scribble(~disk(20), np.random.default_rng(0))
    away = depth(~disk(20))[np.array(loop.rows), np.array(loop.cols)]
    assert away.min() > 0.06 * 128 - 1


def test_without_labels_the_loop_goes_around_the_middle():
    loop = draw_background_scribble(np.ones((128, 128), dtype=bool), np.random.default_rng(0))
    assert np.hypot(np.array(loop.rows) - 64, np.array(loop.cols) - 64).min() > 20


def test_a_drawn_stroke_is_rendered_as_the_pen_is_wide():
    region = np.ones((7, 7), dtype=bool)
    marked = render_scribble(Scribble((3, 3, 3), (2, 3, 4), 1), region)
    assert marked.sum() == 3 + 3 + 3 + 2
