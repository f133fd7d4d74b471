"""Weak and strong views: what changes, how often, and that the generator decides."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import ndimage
from torch._subclasses.fake_tensor import FakeTensorMode

from consilia.training.strong import (
    GAUSSIANS,
    MEDIANS,
    NOISE,
    STRONG,
    StrongPolicy,
    apply_strong,
    blur_scale,
    draw_strong,
    gaussian_blur,
    median_blur,
    odd_width,
    strong_view,
    weak_view,
)

STILL = StrongPolicy(hflip=0, vflip=0, brightened=0, blurred=0, moved=0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=6, size=12, channels=2):
    return torch.rand(count, channels, size, size, generator=seeded(9))


def test_a_weak_view_is_the_image_or_its_mirror():
    image = images(200)
    view = weak_view(image, seeded())
    same = (view == image).flatten(1).all(1)
    mirror = (view == image.flip(-1)).flatten(1).all(1)
    assert (same | mirror).all()
    assert 70 < mirror.sum() < 130


def test_the_generator_decides_and_the_image_is_not_changed():
    image = images()
    before = image.clone()
    one, two = strong_view(image, seeded(1)), strong_view(image, seeded(1))
    assert torch.equal(one, two)
    assert not torch.equal(one, strong_view(image, seeded(2)))
    assert torch.equal(image, before)
    assert one.min() >= 0
    assert one.max() <= 1


def test_nothing_drawn_is_nothing_changed():
    torch.testing.assert_close(strong_view(images(), seeded(), STILL), images(), atol=1e-6, rtol=0)


def test_how_often_each_change_is_drawn():  # METHODS 2.3
    move = draw_strong(STRONG, 20_000, seeded())
    share = lambda chosen: chosen.float().mean().item()  # noqa: E731
    assert share(move.hflip) == pytest.approx(0.5, abs=0.02)
    assert share(move.vflip) == pytest.approx(0.5, abs=0.02)
    assert share(move.brightness != 0) == pytest.approx(0.75, abs=0.02)
    assert move.brightness.abs().max() <= 0.2
    assert share(move.blur > 0) == pytest.approx(0.7, abs=0.02)
    for kind in range(1, NOISE):
        assert share(move.blur == kind) == pytest.approx(0.7 / 6, abs=0.01)
    assert share(move.blur == NOISE) == pytest.approx(0.7 / 3, abs=0.015)
    still = (move.affine - torch.eye(2, 3)).abs().flatten(1).max(1).values < 1e-7
    assert share(~still) == pytest.approx(0.85, abs=0.02)
    variance = (move.deviation * 255).square()
    assert variance.min() >= 5 - 1e-3
    assert variance.max() <= 30 + 1e-3


def test_brightness_is_added_and_clipped():
    policy = StrongPolicy(**{**vars(STILL), "brightened": 1.0})
    move = draw_strong(policy, 6, seeded())
    view = apply_strong(move, images())
    expected = (images() + move.brightness[:, None, None, None]).clamp(0, 1)
    torch.testing.assert_close(view, expected, atol=1e-6, rtol=0)


def test_noise_has_the_drawn_width():
    policy = StrongPolicy(**{**vars(STILL), "blurred": 1.0})
    move = draw_strong(policy, 40, seeded())
    grey = torch.full((40, 1, 40, 40), 0.5)
    noisy = (move.blur == NOISE).nonzero().flatten().tolist()
    view = apply_strong(move, grey)
    assert noisy
    for i in noisy:
        assert (view[i] - 0.5).std().item() == pytest.approx(move.deviation[i].item(), rel=0.1)


@pytest.mark.parametrize("width", [3, 5])
def test_blurs_against_scipy(width):
    image = images(2)
    found = median_blur(image, width)
    sigma = {3: 0.8, 5: 1.1}[width]
    soft = gaussian_blur(image, width)
    for i in range(2):
        for c in range(2):
            plain = image[i, c].double().numpy()
            expected = ndimage.median_filter(plain, width, mode="nearest")
            torch.testing.assert_close(found[i, c].double(), torch.from_numpy(expected))
            smooth = ndimage.gaussian_filter(plain, sigma, mode="mirror", radius=width // 2)
            torch.testing.assert_close(
                soft[i, c].double(), torch.from_numpy(smooth), atol=1e-6, rtol=0
            )


def test_moves_are_small_and_outside_is_black():
    policy = StrongPolicy(**{**vars(STILL), "moved": 1.0})
    move = draw_strong(policy, 500, seeded())
    turn = torch.atan2(move.affine[:, 1, 0], move.affine[:, 0, 0]).rad2deg()
    zoom = move.affine[:, :, :2].det().sqrt()
    assert turn.abs().max() <= 15
    assert (zoom - 1).abs().max() <= 0.1 + 1e-6
    assert (move.affine[:, :, 2] / 2).abs().max() <= 0.1
    view = apply_strong(move, torch.ones(500, 1, 16, 16))
    assert view.amin((1, 2, 3)).min() == 0
    assert view[:, :, 8, 8].min() > 0.99


def applied(kind, size):
    """Return a view of one bright pixel under one kind of blur and nothing else."""
    move = replace(draw_strong(STILL, 1, seeded()), blur=torch.tensor([kind]))
    dot = torch.zeros(1, 1, size, size)
    dot[0, 0, size // 2, size // 2] = 1.0
    return dot, apply_strong(move, dot)


@pytest.mark.parametrize(
    ("size", "medians"), [(64, (1, 1)), (128, (1, 3)), (224, (3, 5)), (320, (5, 7)), (448, (7, 11))]
)
def test_medians_are_as_wide_as_the_image_is_large(size, medians):
    image = torch.zeros(1, 1, size, 2 * size)  # the shorter side counts
    assert tuple(odd_width(w * blur_scale(image)) for w in (3, 5)) == medians


def test_at_224_pixels_blurs_are_those_of_the_authors():
    image = images(1, 224, 1)
    still = draw_strong(STILL, 1, seeded())
    for kind, width in {**MEDIANS, **GAUSSIANS}.items():
        view = apply_strong(replace(still, blur=torch.tensor([kind])), image)
        expected = (median_blur if kind in MEDIANS else gaussian_blur)(image, width)
        torch.testing.assert_close(view, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", sorted(GAUSSIANS))
def test_a_gaussian_covers_the_same_part_of_a_small_and_of_a_large_image(kind):
    peak = {}
    for size in (64, 224):
        _, view = applied(kind, size)
        assert view.sum().item() == pytest.approx(1, abs=1e-3)
        peak[size] = view.max().item()
    sigma = {3: 0.8, 5: 1.1}[GAUSSIANS[kind]]
    edge = math.exp(-1 / (2 * (sigma * 64 / 224) ** 2))  # next to the middle, of a window of three
    assert peak[64] == pytest.approx(1 / (1 + 2 * edge) ** 2, abs=1e-4)
    assert peak[64] > 0.97 > 0.3 > peak[224]


@pytest.mark.parametrize("kind", sorted(MEDIANS))
def test_a_median_of_less_than_three_pixels_leaves_a_small_image_alone(kind):
    dot, view = applied(kind, 64)
    torch.testing.assert_close(view, dot, atol=1e-4, rtol=0)


def test_blurs_ask_the_device_nothing():
    """Their widths come from shapes: tensors without any numbers can be blurred."""
    with FakeTensorMode():
        image = torch.empty(2, 1, 224, 224)
        scale = blur_scale(image)
        assert median_blur(image, odd_width(5 * scale)).shape == image.shape
        assert gaussian_blur(image, 5, scale).shape == image.shape
