"""Held-out images: which, and how models are judged by them."""

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


def test_the_score_is_the_dice_of_the_known_pixels():
    site = site_of("segmentation")
    batch = site.train.cut(torch.arange(4))
    said = site.probabilities(batch.image) > 0.5
    each = []
    for label in (0, 1):
        a, b = said[:, label], batch.target == label + 1
        each.append(2 * float((a & b).sum()) / float(a.sum() + b.sum()))
    assert abs(score(site, batch) - sum(each) / 2) < 1e-6
