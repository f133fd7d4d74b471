from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.weaken.box import Box
from consilia.weaken.point import (
    draw_background_points,
    draw_points,
    inscribed_box,
    largest_rectangle,
    render_points,
)


def slow_largest_area(cells: np.ndarray) -> int:
    rows, cols = cells.shape
    return max(
        (
            (b - t) * (r - x)
            for t in range(rows)
            for b in range(t + 1, rows + 1)
            for x in range(cols)
            for r in range(x + 1, cols + 1)
            if cells[t:b, x:r].all()
        ),
        default=0,
    )


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_no_rectangle_is_larger(seed):
    cells = np.random.default_rng(seed).random((6, 7)) < 0.75
    box = largest_rectangle(cells)
    assert cells[box.top : box.bottom + 1, box.left : box.right + 1].all()
    area = (box.bottom - box.top + 1) * (box.right - box.left + 1)
    assert area == slow_largest_area(cells)


def test_an_empty_mask_has_no_rectangle():
    assert largest_rectangle(np.zeros((4, 4), dtype=bool)) is None


def test_a_large_thin_region_is_searched_by_pixels():
    region = np.eye(80, dtype=bool)
    box = inscribed_box(region)
    assert box.top == box.bottom
    assert region[box.top, box.left]


def test_a_large_square_is_found_in_cells():
    region = np.zeros((100, 100), dtype=bool)
    region[10:90, 10:90] = True
    assert inscribed_box(region) == Box(10, 10, 87, 87)


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 10**6))
def test_points_lie_in_their_region_and_mark_something(mask_of, seed):
    for draw in (draw_points, draw_background_points):
        region = mask_of(seed)
        points = draw(region, np.random.default_rng(seed))
        if points is None:
            assert not region.any()
            continue
        marked = render_points(points, region)
        assert marked.any()
        assert not (marked & ~region).any()


def test_four_dots_mark_about_a_thousandth_of_the_image():
    rows, cols = np.ogrid[:128, :128]
    label = np.hypot(rows - 60, cols - 70) < 17
    for draw, region in ((draw_points, label), (draw_background_points, ~label)):
        shares = [
            render_points(draw(region, np.random.default_rng(seed)), region).mean()
            for seed in range(20)
        ]
        assert 0.0012 < np.mean(shares) < 0.0018


def test_dots_grow_with_the_image():
    full = np.ones((256, 256), dtype=bool)
    assert draw_points(full, np.random.default_rng(0)).radius == 2.8


def test_background_dots_surround_the_labels():
    label = np.zeros((64, 64), dtype=bool)
    label[20:30, 40:50] = True
    dots = draw_background_points(~label, np.random.default_rng(0))
    assert dots.rows[0] < 20
    assert dots.rows[1] > 29
    assert dots.cols[2] < 40
    assert dots.cols[3] > 49


def test_a_label_around_the_border_gets_one_background_dot():
    label = np.ones((32, 32), dtype=bool)
    label[5:9, 20:27] = False
    dots = draw_background_points(~label, np.random.default_rng(0))
    assert len(dots.rows) == 1
    assert render_points(dots, ~label).any()
