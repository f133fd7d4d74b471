"""Strong views for segmentation."""

import torch

from consilia.training.seeds import generator
from consilia.training.warp import Warp, apply_warp, draw_warp


def test_flips_alone_are_flips():
    planes = torch.rand(32, 2, 5, 5)
    warp = draw_warp(32, generator("flips"), bent=False)
    found = apply_warp(warp, planes)
    for i in range(32):
        axes = [a for a, on in ((-1, warp.hflip[i]), (-2, warp.vflip[i])) if on]
        assert torch.equal(found[i], planes[i].flip(axes) if axes else planes[i])
    assert warp.hflip.any()
    assert not warp.hflip.all()


def test_turn_and_enlargement_stay_within_their_bounds():
    warp = draw_warp(500, generator("affine"), bent=True)
    cos, sin = warp.affine[:, 0, 0], warp.affine[:, 1, 0]
    zoom, angle = torch.hypot(cos, sin), torch.rad2deg(torch.atan2(sin, cos))
    assert 0.5 <= zoom.min() < 0.55
    assert 0.95 < zoom.max() <= 1
    assert angle.min() >= 0
    assert 55 < angle.max() <= 60.001


def still(count):
    none = torch.zeros(count, dtype=torch.bool)
    affine = torch.eye(3)[:2].expand(count, 2, 3)
    return Warp(none, none, affine, torch.zeros(count, 2, 3, 3))


def test_a_warp_that_moves_nothing_changes_nothing():
    planes = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(apply_warp(still(2), planes), planes)


def test_a_bend_of_all_control_points_is_a_shift():
    from dataclasses import replace

    planes = torch.rand(1, 1, 8, 8)
    bend = torch.zeros(1, 2, 3, 3)
    bend[:, 0] = 2 / 8  # one pixel to the right in the input
    found = apply_warp(replace(still(1), bend=bend), planes)
    torch.testing.assert_close(found[..., :-1], planes[..., 1:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        found[..., -1], planes[..., -1], rtol=1e-4, atol=1e-5
    )  # the edge goes on


def test_the_same_draw_moves_images_and_scores_alike():
    image = torch.rand(3, 1, 8, 8)
    warp = draw_warp(3, generator("alike"), bent=True)
    both = apply_warp(warp, torch.cat((image, image * 2 - 1), 1))
    torch.testing.assert_close(both[:, 1], both[:, 0] * 2 - 1, rtol=1e-4, atol=1e-5)
    again = apply_warp(draw_warp(3, generator("alike"), bent=True), image)
    assert torch.equal(again[:, 0], both[:, 0])
