from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pycocotools import mask as coco
from skimage.draw import polygon2mask

from consilia.readers import runs
from consilia.readers.shapes import (
    Bitmap,
    Dots,
    Line,
    Mark,
    Polygon,
    as_rotated,
    corners_of,
    fill,
    fit_box,
    from_corners,
    paint,
    render,
    touched,
    turned,
)
from consilia.readers.write_shapes import outlines
from consilia.weaken import Box, RotatedBox, render_box, render_rotated_box

SIZE = (9, 12)
MASKS = arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-3, 13), st.floats(-3, 16)), min_size=3, max_size=8))
def test_polygons_are_filled_as_skimage_does_but_for_edges(ring):
    corners = np.array(ring) + np.array(
        [0.0123, 0.0217]
    )  # off the pixel centres, where edges differ
    ours, theirs = fill(corners, SIZE), polygon2mask(SIZE, corners - 0.5)
    near = np.zeros(SIZE, dtype=bool)
    centres = np.stack(np.mgrid[: SIZE[0], : SIZE[1]], axis=-1) + 0.5
    for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        span = end - start
        along = ((centres - start) @ span / max(span @ span, 1e-12)).clip(0, 1)
        near |= np.hypot(*np.moveaxis(centres - start - along[..., None] * span, -1, 0)) < 1e-6
    assert (ours == theirs)[~near].all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 11.9), min_size=1, max_size=4), st.floats(0, 9))
def test_polygons_that_share_edges_share_no_pixel_and_leave_none(cuts, tilt):
    edges = [0.0, *sorted(cuts), 12.0]
    total = np.zeros(SIZE, dtype=int)
    for left, right in pairwise(edges):
        ring = [(0, left), (0, right), (9, min(12.0, right + tilt) if right < 12 else 12.0)]
        ring += [(9, min(12.0, left + tilt) if left else 0.0)]
        total += fill(np.array(ring, dtype=float), SIZE)
    assert (total == 1).all()


@settings(max_examples=100, deadline=None)
@given(MASKS)
def test_outlines_give_their_mask_again(mask):
    assert np.array_equal(render(Polygon(tuple(outlines(mask))), mask.shape), mask)


@settings(max_examples=100, deadline=None)
@given(MASKS, st.sampled_from("CF"))
def test_runs_give_their_mask_again(mask, order):
    assert np.array_equal(runs.decode(runs.encode(mask, order), mask.shape, order), mask)


@settings(max_examples=100, deadline=None)
@given(MASKS)
def test_runs_are_those_of_pycocotools(mask):
    packed = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    lengths = runs.unpack(packed["counts"].decode())
    assert np.array_equal(runs.decode(lengths, mask.shape, "F"), mask)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(min_codepoint=40, max_codepoint=120), max_size=12))
def test_damaged_runs_are_refused_and_nothing_else(text):
    try:
        runs.decode(runs.unpack(text), (5, 5), "F")
    except ValueError:
        return
    assert text


@settings(max_examples=60, deadline=None)
@given(MASKS, st.integers(-4, 9), st.integers(-4, 12))
def test_bitmaps_are_placed_and_cut_off(mask, top, left):
    expected = np.zeros((30, 40), dtype=bool)
    expected[10 + top : 10 + top + len(mask), 10 + left : 10 + left + mask.shape[1]] = mask
    found = render(Bitmap.of(mask, top, left), SIZE)
    assert np.array_equal(found, expected[10 : 10 + SIZE[0], 10 : 10 + SIZE[1]])


def test_boxes_cover_the_pixels_that_they_touch():
    assert touched(1, 2, 4, 6) == Box(1, 2, 3, 5)
    assert touched(1.004, 1.996, 4.004, 6.2) == Box(1, 2, 3, 6)
    assert touched(2.2, 2.2, 2.3, 2.3) == Box(2, 2, 2, 2)


@settings(max_examples=80, deadline=None)
@given(
    st.floats(0, 8), st.floats(0, 11), st.floats(0.5, 6), st.floats(0.5, 6), st.floats(-3.1, 3.1)
)
def test_rotated_boxes_are_known_by_their_corners(row, col, down, across, angle):
    box = RotatedBox(row, col, down, across, angle)
    again = from_corners(corners_of(box))
    assert np.allclose(corners_of(again), corners_of(box))
    inside = fill(np.array(corners_of(box)), SIZE)
    differ = inside != render_rotated_box(box, SIZE)
    slack = RotatedBox(row, col, down + 1e-6, across + 1e-6, angle)
    tight = RotatedBox(row, col, down - 1e-6, across - 1e-6, angle)
    edge = render_rotated_box(slack, SIZE) & ~render_rotated_box(tight, SIZE)
    assert not (differ & ~edge).any()


def test_four_corners_that_make_no_rectangle_are_no_box():
    assert from_corners([(0, 0), (0, 4), (3, 5), (3, 0)]) is None
    assert from_corners([(0, 0), (0, 4), (0, 4), (0, 0)]) is None
    assert from_corners([(0, 0), (0, 4), (3, 4)]) is None


def test_boxes_turn_clockwise():
    box = turned(0, 0, 4, 8, 90)
    assert np.allclose(sorted(corners_of(box)), [(-2, 2), (-2, 6), (6, 2), (6, 6)])
    corner = corners_of(turned(0, 0, 4, 8, 30))[0]  # was top left, and moves to the right and up
    assert corner[1] > 0
    assert corner[0] < 0


@settings(max_examples=60, deadline=None)
@given(st.floats(-1.5, 1.5), st.sampled_from([(9, 12), (18, 24), (9, 24), (4, 5)]))
def test_rotated_boxes_in_another_size_cover_what_they_covered(angle, size):
    box = RotatedBox(4.0, 5.0, 2.0, 3.0, angle)
    fitted = fit_box(box, SIZE, size)
    scale = np.array(size) / SIZE
    wide = RotatedBox(
        fitted.row, fitted.col, fitted.half_first + 1e-9, fitted.half_second + 1e-9, fitted.angle
    )
    for row, col in np.array(corners_of(box)) * scale - 0.5:
        first = (row - wide.row) * math.cos(wide.angle) + (col - wide.col) * math.sin(wide.angle)
        second = (col - wide.col) * math.cos(wide.angle) - (row - wide.row) * math.sin(wide.angle)
        assert abs(first) <= wide.half_first
        assert abs(second) <= wide.half_second
    if size[0] / SIZE[0] == size[1] / SIZE[1]:
        assert fitted.area == pytest.approx(box.area * scale.prod())


def test_an_upright_box_is_a_rotated_one():
    box = Box(2, 3, 5, 9)
    assert np.array_equal(render_rotated_box(as_rotated(box), SIZE), render_box(box, SIZE))


def test_lines_and_dots():
    stroke = render(Line(((4.5, 2.5), (4.5, 8.5))), SIZE)
    assert stroke[4, 2:9].all()
    assert stroke[3:6, 5].all()
    assert not stroke[2].any()
    assert np.argwhere(render(Dots(((1.2, 3.9), (20, 20))), SIZE)).tolist() == [[1, 3], [8, 11]]
    assert render(Dots(((4.5, 4.5),), 1.0), SIZE).sum() == 5


def test_of_two_shapes_in_one_pixel_the_smaller_is_seen():
    marks = [Mark("", 2, (Box(2, 2, 3, 3),)), Mark("", 1, (Box(0, 0, 8, 11),))]
    painted = paint(marks, SIZE, 0)
    assert (painted[2:4, 2:4] == 2).all()
    assert (painted == 2).sum() == 4
