from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consilia.weaken.box import Box
from consilia.weaken.convert import Conversion, convert_boxes, draw_conversion
from consilia.weaken.rotated_box import RotatedBox, render_rotated_box, upright

BLOCK = Conversion("block", 0.41)
SCRIBBLE = Conversion("scribble", 0.5)
DISC, CUP = upright(Box(30, 30, 97, 97)), upright(Box(48, 48, 79, 79))


@settings(deadline=None, max_examples=200)
@given(
    row=st.floats(0, 63),
    col=st.floats(0, 63),
    halves=st.tuples(st.floats(0.75, 60), st.floats(0.75, 60)),
    angle=st.floats(0, math.pi / 2),
    kind=st.sampled_from(["block", "scribble"]),
)
@example(row=2.0, col=2.0, halves=(60.0, 60.0), angle=1.5707963267948963, kind="scribble")
def test_labels_stay_in_their_box_and_background_outside(row, col, halves, angle, kind):
    box = RotatedBox(row, col, *halves, angle)
    conversion = draw_conversion(kind, np.random.default_rng(0))
    target, known = convert_boxes({2: box}, conversion, (64, 64))
    inside = render_rotated_box(box, (64, 64))
    assert (target == 2).any()
    assert not (known & (target == 0) & inside).any()
    if kind == "block":
        assert inside[target == 2].all()
    if (~inside).sum() > 64 * 40:
        assert (known & (target == 0)).any()


def test_a_block_has_the_authors_shares():
    rows, cols = np.ogrid[:128, :128]
    label = np.hypot(rows - 60, cols - 70) < 15
    target, known = convert_boxes({1: upright(Box(46, 56, 74, 84))}, BLOCK, (128, 128))
    assert (target == 1).sum() / label.sum() == pytest.approx(0.17, abs=0.03)
    assert (known & (target == 0)).mean() == pytest.approx(0.81, abs=0.05)


@pytest.mark.parametrize("conversion", [BLOCK, SCRIBBLE])
def test_a_box_that_holds_another_is_a_ring_around_it(conversion):
    target, known = convert_boxes({1: CUP, 2: DISC}, conversion, (128, 128))
    radius = np.hypot(*(np.mgrid[:128, :128] - 63.5))
    assert (radius[target == 1] < 16).all()
    assert ((radius[target == 2] > 16) & (radius[target == 2] < 34)).all()
    assert (target == 1).any()
    assert (target == 2).any()
    assert known[:, 17].any()


def test_a_stroke_is_closed_and_has_an_open_middle():
    target, _ = convert_boxes({1: DISC}, SCRIBBLE, (128, 128))
    assert target[63, 63] == 0
    arms = target[:63, 63], target[64:, 63], target[63, :63], target[63, 64:]
    assert all(arm.max() == 1 for arm in arms)


def test_the_smaller_of_two_boxes_wins():
    one, other = RotatedBox(30.0, 30.0, 20.0, 20.0, 0.0), RotatedBox(34.0, 34.0, 6.0, 40.0, 0.0)
    target, _ = convert_boxes({1: one, 2: other}, BLOCK, (64, 64))
    assert target[34, 34] == 2


def test_without_boxes_everything_is_background():
    target, known = convert_boxes({}, BLOCK, (8, 8))
    assert known.all()
    assert not target.any()


def test_a_box_over_the_whole_image_leaves_no_background():
    target, known = convert_boxes({1: upright(Box(0, 0, 15, 15))}, BLOCK, (16, 16))
    assert (known == (target == 1)).all()


def test_drawn_scales_are_in_range():
    scales = [draw_conversion("block", np.random.default_rng(s)).scale for s in range(30)]
    assert 0.38 <= min(scales) < max(scales) <= 0.44
    assert draw_conversion("scribble", np.random.default_rng(0)).scale == 0.5
