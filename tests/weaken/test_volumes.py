from __future__ import annotations

import numpy as np
import pytest

from consilia.weaken.regions import stream
from consilia.weaken.volumes import draw_objects, render_objects, stack_order, stacks


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["s10", "s9", "s11"], [1, 0, 2]),
        (["s3", "s1", "s4"], [1, None, 0, 2]),
        (["v2-s30", "v2-s10", "v2-s20"], [1, 2, 0]),  # a step of ten is this volume's own
        (["top", "bottom"], [1, 0]),
        (["only"], [0]),
        (["only-7"], [0]),
    ],
)
def test_slices_are_stacked_by_number(names, order):
    assert stack_order(names) == order


def test_an_image_without_volume_stands_alone(cases_of):
    assert stacks(cases_of(np.zeros((2, 4, 4), dtype=np.uint8))) == {"case-0": [0], "case-1": [1]}


def columns(cases_of, names=("s1", "s2", "s3", "s4")):
    """One volume with a tall lesion in all slices and four small ones, one in each slice."""
    truth = np.zeros((4, 16, 16), dtype=np.uint8)
    truth[:, 2:4, 2:4] = 1
    for place in range(4):
        truth[place, 4 + 3 * place, 10] = 1
    return cases_of(truth, volume=("v",) * 4, names=names)


def weakened(cases, completeness, seed=0):
    names = {1: "lesion"}
    drawn = draw_objects(cases.truth, cases, names, completeness, lambda v, n: stream(seed, v, n))
    return drawn, render_objects(cases.truth, cases, names, drawn)


def test_a_lesion_goes_from_all_its_slices_or_from_none(cases_of):
    cases, seen = columns(cases_of), set()
    for seed in range(20):
        drawn, left = weakened(cases, 0.5, seed)
        assert drawn["v"]["lesion"]["of"] == 5
        assert len(drawn["v"]["lesion"]["kept"]) == 3
        tall = [bool(layer[2, 2]) for layer in left]
        assert len(set(tall)) == 1
        seen.add(tall[0])
    assert seen == {True, False}


def test_lesions_across_a_missing_slice_are_two(cases_of):
    drawn, _ = weakened(columns(cases_of, ("s1", "s2", "s4", "s5")), 1.0)
    assert drawn["v"]["lesion"]["of"] == 6


def test_the_order_of_slices_changes_nothing(cases_of):
    cases = columns(cases_of)
    order = np.array([2, 0, 3, 1])
    drawn, left = weakened(cases, 0.5)
    again, shuffled = weakened(cases.take(order), 0.5)
    assert drawn == again
    assert (left[order] == shuffled).all()


def test_labels_and_volumes_are_counted_apart(cases_of):
    truth = np.zeros((2, 8, 8), dtype=np.uint8)
    truth[:, 1, 1], truth[:, 1, 2] = 1, 2
    cases = cases_of(truth, volume=("a", "b"))
    drawn = draw_objects(truth, cases, {1: "x", 2: "y"}, 0.1, lambda v, n: stream(0, v, n))
    assert {(v, n): k["of"] for v, one in drawn.items() for n, k in one.items()} == {
        ("a", "x"): 1,
        ("a", "y"): 1,
        ("b", "x"): 1,
        ("b", "y"): 1,
    }
    assert (render_objects(truth, cases, {1: "x", 2: "y"}, drawn) == truth).all()
