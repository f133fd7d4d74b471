from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.declare import Supervision
from consilia.weaken import Recipe
from consilia.weaken.regions import stream
from consilia.weaken.sparse import SPARSE, draw_sparse, render_sparse

NAMES = {1: "cup", 2: "ring", 3: "spot"}


def test_the_forms_are_those_that_mark_single_pixels():
    marking = {form for form in Supervision if form.marks_pixels}
    assert set(SPARSE) == marking - {Supervision.MASK}


@pytest.mark.parametrize("form", list(SPARSE))
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_every_region_that_is_there_is_marked(index_map_of, form, seed):
    visible, recipe = index_map_of(seed), Recipe(form)
    drawn = draw_sparse(visible, NAMES, recipe, partial(stream, seed))
    known = render_sparse(visible, NAMES, recipe, drawn)
    for index in (0, *NAMES):
        assert known[visible == index].any() == (visible == index).any()
    assert {name for name, mark in drawn.items() if mark is None} == {
        name for index, name in {0: "background", **NAMES}.items() if not (visible == index).any()
    }
