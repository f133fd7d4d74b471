from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.weaken.box import Box, draw_box, render_box, tight_box, widen_box


def test_fact_9_of_fedmix():
    mask = np.zeros((64, 64), dtype=bool)
    mask[10:20, 30:50] = True
    box = widen_box(tight_box(mask), (2, 1, 3, 4), mask.shape)
    assert box == Box(8, 29, 22, 53)
    assert render_box(box, mask.shape).sum() == 375


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 10**6), low=st.integers(0, 3), more=st.integers(0, 9))
def test_a_box_contains_its_mask_with_margins_in_range(mask_of, seed, low, more):
    mask = mask_of(seed)
    box = draw_box(mask, np.random.default_rng(seed), (low, low + more))
    if box is None:
        assert not mask.any()
        return
    assert mask[render_box(box, mask.shape)].sum() == mask.sum()
    tight = tight_box(mask)
    for margin, space in [
        (tight.top - box.top, tight.top),
        (tight.left - box.left, tight.left),
        (box.bottom - tight.bottom, mask.shape[0] - 1 - tight.bottom),
        (box.right - tight.right, mask.shape[1] - 1 - tight.right),
    ]:
        assert min(low, space) <= margin <= min(low + more, space)


def test_all_margins_from_1_to_10_occur():
    mask = np.zeros((40, 40), dtype=bool)
    mask[20, 20] = True
    rng = np.random.default_rng(0)
    margins = {20 - draw_box(mask, rng).top for _ in range(300)}
    assert margins == set(range(1, 11))
