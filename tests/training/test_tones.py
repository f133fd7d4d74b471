"""Intensities change as drawn, image by image, and what is known of images stays where it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from consilia.training.augment import POLICIES, apply, draw, policy_of
from consilia.training.batch import Batch
from consilia.training.carry import carry
from consilia.training.settings import Training
from consilia.training.tones import TONES, Tones, apply_tones, draw_tones, grains

STILL = {"noise": 0.0, "blur": 0.0, "zoom": 1.0, "gamma": 1.0, "grain": 0.5}
NAMES = list(STILL)


def images(count=3, size=24, channels=1):
    smooth = torch.rand(count, channels, 6, 6, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(0.2 + 0.6 * smooth, [size, size], mode="bilinear")


def told(*changes):
    """Return the numbers of images, each with some changed."""
    return torch.tensor([[{**STILL, **each}[name] for name in NAMES] for each in changes])


def test_images_that_are_left_alone_stay_as_they_are_to_the_bit():
    before = images()
    after = apply_tones(told({}, {"gamma": 1.4}, {}), before)
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[2], before[2])
    assert not torch.equal(after[1], before[1])


def test_blur_is_a_gaussian_of_each_images_own_width():
    from scipy.ndimage import gaussian_filter

    before = images(channels=2)
    after = apply_tones(told({"blur": 0.5}, {"blur": 1.0}, {"blur": 0.8}), before)
    for image, blurred, sigma in zip(before, after, (0.5, 1.0, 0.8), strict=True):
        for plane, found in zip(image.numpy(), blurred.numpy(), strict=True):
            expected = gaussian_filter(plane, sigma, mode="nearest", radius=4)
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_gamma_bends_the_own_range_and_keeps_mean_and_deviation():
    before = images(size=9)
    after = apply_tones(told({"gamma": 0.7}, {"gamma": 1.5}, {}), before)
    for at, gamma in enumerate((0.7, 1.5)):
        x = before[at].numpy().astype(np.float64)
        bent = ((x - x.min()) / (x.max() - x.min())) ** gamma
        expected = (bent - bent.mean()) / bent.std() * x.std() + x.mean()
        np.testing.assert_allclose(after[at].numpy(), expected, atol=1e-4)


def test_a_lower_resolution_keeps_the_nearest_pixels_and_joins_them_by_lines():
    row = torch.tensor([0.1, 0.2, 0.4, 0.3, 0.9, 0.8, 0.5, 0.6])
    before = row.repeat(1, 1, 8, 1)
    after = apply_tones(told({"zoom": 0.5}), before)
    kept = [0.2, 0.3, 0.8, 0.6]  # of four, at 0.5, 2.5, 4.5 and 6.5, the pixels 1, 3, 5 and 7
    expected = np.interp(np.arange(8), [0.5, 2.5, 4.5, 6.5], kept)
    np.testing.assert_allclose(after[0, 0, 4].numpy(), expected, atol=1e-6)
    tall = apply_tones(told({"zoom": 0.5}), before.mT)
    assert torch.allclose(tall, after.mT)


def test_noise_is_standard_normal_and_another_for_every_image():
    from scipy.stats import kstest

    seeds = torch.tensor([0.25, 0.5, 0.25])
    noise = grains(seeds, torch.Size((3, 2, 64, 64)))
    assert torch.equal(noise[0], noise[2])
    flat = noise[:2].reshape(4, -1).double().numpy()
    assert all(kstest(plane, "norm").pvalue > 0.01 for plane in flat)
    assert np.abs(np.corrcoef(flat) - np.eye(4)).max() < 0.06
    beside = np.corrcoef(noise[0, 0, :, :-1].flatten(), noise[0, 0, :, 1:].flatten())[0, 1]
    assert abs(beside) < 0.06
    assert grains(torch.tensor([1 - 2.0**-24]), torch.Size((1, 1, 512, 512))).isfinite().all()


def test_noise_is_in_deviations_of_the_image():
    before = images(size=64)
    after = apply_tones(told({"noise": 0.1}, {}, {"noise": 0.05, "grain": 0.1}), before)
    for at, part in ((0, 0.1), (2, 0.05)):
        found = (after[at] - before[at]).std() / before[at].std()
        assert found.item() == pytest.approx(part, rel=0.05)


def test_each_change_comes_as_often_and_goes_as_far_as_it_says():
    drawn = draw_tones(TONES["fedia"], 20_000, torch.Generator().manual_seed(0))
    noise, blur, zoom, gamma, grain = drawn.unbind(1)
    for changed, rate in ((noise > 0, 0.1), (blur > 0, 0.2), (zoom < 1, 0.25), (gamma != 1, 0.15)):
        assert changed.float().mean().item() == pytest.approx(rate, abs=0.01)
    assert 0.09 < noise.max() <= 0.1
    assert 0.5 <= blur[blur > 0].min() < 0.52 < 0.98 < blur.max() <= 1
    assert 0.5 <= zoom.min() < 0.52
    assert 0.7 <= gamma.min() < 0.72
    assert 1.45 < gamma.max() <= 1.5
    bent = gamma[gamma != 1]
    assert (bent > 1).float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert len(grain.unique()) > 19_000


def test_what_is_known_of_images_stays_where_it_is():
    always = Tones(noisy=1, blurred=1, coarse=1, bent=1)
    known = torch.rand(3, 24, 24) > 0.5
    target = (torch.rand(3, 24, 24) * 3).long()
    before = Batch(images(), target, None, known, None, torch.arange(3), 2)
    move = draw(POLICIES["none"], 3, torch.Generator())
    drawn = draw_tones(always, 3, torch.Generator().manual_seed(0))
    toned = replace(move, tones=drawn)
    after = apply(toned, before)
    assert torch.equal(after.target, target)
    assert torch.equal(after.known_pixels, known)
    assert not torch.isclose(after.image, before.image).all((1, 2, 3)).any()
    assert after.image.min() >= 0
    assert torch.equal(carry(toned, images()), images())  # numbers, not intensities


def test_a_run_file_asks_for_them_by_name():
    assert policy_of(Training()).tones is None
    assert policy_of(Training(intensity="fedia")).tones == Tones()
    plain = Training(augment="rotate", crop=8, intensity="fedia").without_augmentation()
    assert policy_of(plain) == POLICIES["none"]
