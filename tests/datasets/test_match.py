"""Labels of a dataset find their places among those of a federation, by name."""

import numpy as np
import pytest

from consilia.datasets.contract import Cases
from consilia.datasets.match import match_cases, match_view, places
from consilia.errors import DeclarationError
from consilia.labels import LabelView

IMAGE = np.zeros((2, 1, 2, 2), dtype=np.uint8)


def cases(truth):
    return Cases(IMAGE, np.array(truth, dtype=np.uint8), ("a", "b"), ("a", "b"))


def test_labels_go_by_name_and_else_by_position():
    assert places(("cup", "disc"), ("disc", "cup"), "x") == (1, 0)
    assert places(("cup", "disc"), ("disc", "rim", "cup"), "x") == (1, None, 0)
    assert places(("lesion",), ("tumour",), "x") == (0,)
    with pytest.raises(DeclarationError, match=r"x has the labels 'a' and 'b', and none"):
        places(("a", "b"), ("c",), "x")


def test_columns_are_picked_and_what_is_missing_is_zero():
    found = match_cases(cases([[1, 0], [1, 1]]), (1, None, 0))
    assert found.truth.tolist() == [[0, 0, 1], [1, 0, 1]]


def test_values_of_masks_change_their_numbers():
    found = match_cases(cases([[[0, 1], [2, 2]], [[0, 0], [1, 2]]]), (1, 0))
    assert found.truth.tolist() == [[[0, 2], [1, 1]], [[0, 0], [2, 1]]]


def test_the_same_labels_leave_everything_as_it_is():
    given = cases([[1, 0], [1, 1]])
    assert match_cases(given, (0, 1)) is given


def test_a_view_knows_nothing_of_labels_that_are_missing():
    target = np.array([[[0, 1], [2, 2]]], dtype=np.uint8)
    bounds = np.zeros((1, 2, 2, 2), dtype=bool)
    view = LabelView(target, np.array([[True, False]]), np.ones((1, 2, 2), bool), bounds)
    found = match_view(view, (1, None, 0))
    assert found.known_labels.tolist() == [[False, False, True]]
    assert found.target.tolist() == [[[0, 3], [1, 1]]]
    assert found.constraint[:, 1].all()
    assert not found.constraint[:, [0, 2]].any()
    assert match_view(view, (0, 1)) is view


def test_a_federation_may_study_the_first_labels_of_a_dataset_alone():
    columns = Cases(
        np.zeros((2, 1, 4, 4), np.uint8),
        np.array([[1, 0, 1], [0, 1, 1]], np.uint8),
        ("a", "b"),
        ("a", "b"),
    )
    assert match_cases(columns, (0, 1)).truth.tolist() == [[1, 0], [0, 1]]
    mask = np.array([[[0, 1], [2, 3]]], np.uint8)
    drawn = Cases(np.zeros((1, 1, 2, 2), np.uint8), mask, ("a",), ("a",))
    assert match_cases(drawn, (0, 1)).truth.tolist() == [[[0, 1], [2, 0]]]
    view = LabelView(columns.truth, np.ones((2, 3), dtype=bool))
    assert match_view(view, (0, 1)).known_labels.shape == (2, 2)
