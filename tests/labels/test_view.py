"""The label view: what is known, and what unites."""

import numpy as np

from consilia.labels import LabelView, labels_known, unite
from consilia.labels.usable import has_usable_labels, without_usable_labels
from consilia.testing import toy_spec


def view(count, annotates, pixels=None, constraint=None):
    return LabelView(
        np.ones((count, 4, 4), np.uint8), labels_known(count, 2, annotates), pixels, constraint
    )


def test_unmarked_labels_are_unknown():
    assert labels_known(2, 3, (0, 2)).tolist() == [[True, False, True]] * 2


def test_uniting_keeps_each_images_own_knowledge():
    sparse = np.zeros((1, 4, 4), bool)
    bound = np.zeros((1, 2, 4, 4), bool)
    united = unite([view(2, (0,)), view(1, (0, 1), sparse, bound)])
    assert united.known_labels.tolist() == [[True, False], [True, False], [True, True]]
    assert united.known_pixels.all((1, 2)).tolist() == [True, True, False]
    assert united.constraint.all((1, 2, 3)).tolist() == [True, True, False]
    assert unite([view(1, (0,)), view(1, (1,))]).known_pixels is None


def test_a_view_supervises_only_where_something_is_known():
    assert view(1, (0,)).supervises
    assert not view(1, ()).supervises
    assert not view(1, (0,), np.zeros((1, 4, 4), bool)).supervises


def test_taking_some_images_takes_all_their_parts():
    pixels = np.zeros((3, 4, 4), bool)
    pixels[1] = True
    taken = view(3, (0,), pixels).take(np.array([1]))
    assert len(taken) == 1
    assert taken.known_pixels.all()


def test_which_declarations_can_supervise():
    forms = ["mask", "box", "scribble", "point", "block", "rotated-box", "image", "none"]
    sites = [{"name": form, "supervision": form} for form in forms]
    federation = toy_spec(sites=sites).federation
    assert without_usable_labels(federation) == ("image", "none")
    tags = toy_spec("multi-label", sites=[{"name": "a", "supervision": "image"}]).federation
    assert has_usable_labels(tags, "a")
