from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.weaken.image_tag import draw_image_tag, render_image_tag


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_a_label_is_tagged_when_it_has_a_pixel(index_map_of, seed):
    visible = index_map_of(seed)
    tag = draw_image_tag(visible)
    for label in (1, 2, 3):
        assert (label in tag.present) == bool((visible == label).any())
        assert (render_image_tag(tag, label, (4, 5)) == (label in tag.present)).all()


def test_an_empty_image_has_no_tag():
    assert draw_image_tag(np.zeros((4, 4), dtype=np.uint8)).present == ()
