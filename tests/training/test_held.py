"""Held-out images: which, and how models are judged by them."""

import pytest
import torch
from tests.training.test_taps import site_of

from consilia.training.held import hold_out, score


def test_every_so_many_th_image_is_held_out():
    site = site_of(train=10)
    held, used = hold_out(site, 0.2)
    assert held.tolist() == [4, 9]
    assert sorted([*held.tolist(), *used.tolist()]) == list(range(10))
    for part, few in ((0.0, site), (0.2, site_of(train=3))):
        held, used = hold_out(few, part)
        assert held.tolist() == used.tolist() == list(range(len(few.train)))


@pytest.mark.parametrize("objective", ["dice", "partial-ce"])
def test_the_score_is_the_dice_of_the_known_pixels(objective):
    site = site_of("segmentation", learner={"network": "unet-tiny", "objective": objective})
    batch = site.train.cut(torch.arange(4))
    p = site.probabilities(batch.image)
    if objective == "dice":
        said = torch.where(p.amax(1) > 0.5, p.argmax(1) + 1, 0)
    else:
        said = torch.cat([1 - p.sum(1, keepdim=True), p], 1).argmax(1)
    each = []
    for label in (1, 2):
        a, b = said == label, batch.target == label
        each.append(2 * float((a & b).sum()) / float(a.sum() + b.sum()))
    assert abs(score(site, batch) - sum(each) / 2) < 1e-6
