from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from consilia.declare import Supervision
from consilia.weaken import Recipe
from consilia.weaken.regions import stream
from consilia.weaken.segmentation import draw, render

NAMES = {1: "cup", 3: "spot"}  # the site does not mark label 2


def one(form: Supervision, **more):
    visible = np.zeros((32, 32), dtype=np.uint8)
    visible[10:20, 12:20] = 1
    recipe = Recipe(form, **more)
    drawn = draw(visible, NAMES, recipe, partial(stream, 5))
    assert json.loads(json.dumps(drawn)).keys() == drawn.keys()
    return visible, render(visible, NAMES, 3, recipe, drawn)


@pytest.mark.parametrize("form", [Supervision.BOX, Supervision.ROTATED_BOX])
def test_boxes_come_as_bounds_and_as_pixels(form):
    visible, said = one(form, margin=(1, 2))
    inside, unmarked, absent = said.constraint
    assert inside[visible == 1].all()
    assert not inside.all()
    assert unmarked.all()
    assert not absent.any()
    assert set(np.unique(said.target[said.known])) == {0, 1}
    assert inside[said.target == 1].all()
    assert not inside[said.known & (said.target == 0)].any()


def test_image_tags_bound_and_never_mark():
    _, said = one(Supervision.IMAGE)
    assert [plane.all() for plane in said.constraint] == [True, True, False]
    assert not said.constraint[2].any()
    assert not said.known.any()
    assert not said.target.any()


def test_no_supervision_says_nothing():
    _, said = one(Supervision.NONE)
    assert said.constraint is None
    assert not said.known.any()
    assert not said.target.any()


def test_sparse_marks_agree_with_the_image():
    for form in (Supervision.SCRIBBLE, Supervision.POINT, Supervision.BLOCK):
        visible, said = one(form)
        assert said.constraint is None
        assert (said.target == np.where(said.known, visible, 0)).all()
