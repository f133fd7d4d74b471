from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.weaken.box import Box, render_box, tight_box
from consilia.weaken.rotated_box import (
    RotatedBox,
    draw_rotated_box,
    render_rotated_box,
    upright,
)


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 10**6), margin=st.integers(0, 4))
def test_a_rotated_box_contains_its_mask_and_is_no_larger_than_an_upright_one(
    mask_of, seed, margin
):
    mask = mask_of(seed)
    box = draw_rotated_box(mask, np.random.default_rng(seed), (0, margin))
    if box is None:
        assert not mask.any()
        return
    assert render_rotated_box(box, mask.shape)[mask].all()
    tight = draw_rotated_box(mask, np.random.default_rng(seed), (0, 0))
    assert tight.area <= upright(tight_box(mask)).area + 1e-4


def test_no_angle_gives_a_smaller_rectangle():
    mask = render_rotated_box(RotatedBox(30.0, 32.0, 20.0, 6.0, 0.6), (64, 64))
    box = draw_rotated_box(mask, np.random.default_rng(0), (0, 0))
    points = np.argwhere(mask)
    offsets = np.array([[-0.5, -0.5], [-0.5, 0.5], [0.5, -0.5], [0.5, 0.5]])
    corners = (points[:, None] + offsets).reshape(-1, 2)
    areas = []
    for angle in np.linspace(0, math.pi / 2, 2000):
        first = corners @ [math.cos(angle), math.sin(angle)]
        second = corners @ [-math.sin(angle), math.cos(angle)]
        areas.append(np.ptp(first) * np.ptp(second))
    assert box.area <= min(areas) + 1e-6


def test_the_box_of_a_rotated_bar_has_its_place_and_angle():
    bar = RotatedBox(64.0, 60.0, 40.0, 8.0, 0.5)
    box = draw_rotated_box(render_rotated_box(bar, (128, 128)), np.random.default_rng(0), (0, 0))
    assert (box.row, box.col) == pytest.approx((64, 60), abs=0.6)
    assert min(abs(box.angle - 0.5), abs(box.angle - 0.5 + math.pi / 2)) < 0.05
    assert box.area == pytest.approx(bar.area, rel=0.15)  # pixels have corners


def test_margins_move_the_sides_out():
    mask = np.zeros((40, 40), dtype=bool)
    mask[10:20, 15:20] = True
    box = draw_rotated_box(mask, np.random.default_rng(0), (3, 3))
    assert (box.row, box.col) == (14.5, 17)
    assert box.area == 16 * 11


def test_upright_covers_the_same_pixels():
    box = Box(2, 3, 7, 4)
    assert (render_rotated_box(upright(box), (9, 9)) == render_box(box, (9, 9))).all()
