"""Changes of intensity: noise, blur, low resolution and gamma, in batches and without waiting for the host.

What happens to each image is drawn beforehand, five numbers for each. The noise itself is computed on the
device from one of them, by a hash of each pixel's place, so that a recorded step makes new noise and a
repeated one the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Images = Float[Tensor, "b c h w"]

#: How many pixels a blur reaches to each side; beyond it a Gaussian of 1 pixel holds a ten-thousandth.
REACH = 4


@dataclass(frozen=True)
class Tones:
    """How often and how far intensities change.

    Attributes:
        noisy: Probability of Gaussian noise.
        noise: Its largest deviation, in deviations of the image.
        blurred: Probability of a Gaussian blur.
        blur: Its least and largest width in pixels.
        coarse: Probability of a lower resolution, from which the image is enlarged again.
        zoom: The least part of the resolution that is kept; the largest is 1.
        bent: Probability of a gamma curve, after which mean and deviation are as before.
        gamma: Its least and largest power; powers below and above 1 are equally likely.
    """

    noisy: float = 0.1
    noise: float = 0.1
    blurred: float = 0.2
    blur: tuple[float, float] = (0.5, 1.0)
    coarse: float = 0.25
    zoom: float = 0.5
    bent: float = 0.15
    gamma: tuple[float, float] = (0.7, 1.5)


#: What `training.intensity` in a run file may say, apart from "none".
TONES = {"fedia": Tones()}  # FedIA's code


def draw_tones(tones: Tones, count: int, generator: torch.Generator) -> Float[Tensor, "b 5"]:
    """Draw what happens to each image: noise, blur, zoom, gamma, and what its noise is made from.

    0 is no noise and no blur, 1 the full resolution and a straight curve.
    """
    chance = torch.rand(count, 5, generator=generator)
    extent = torch.rand(count, 5, generator=generator)
    narrow, wide = tones.blur
    low, high = tones.gamma
    upward = chance[:, 4] < 0.5
    gamma = torch.where(upward, 1 + (high - 1) * extent[:, 3], low + (1 - low) * extent[:, 3])
    return torch.stack(
        (
            tones.noise * extent[:, 0] * (chance[:, 0] < tones.noisy),
            (narrow + (wide - narrow) * extent[:, 1]) * (chance[:, 1] < tones.blurred),
            torch.where(
                chance[:, 2] < tones.coarse, tones.zoom + (1 - tones.zoom) * extent[:, 2], 1
            ),
            torch.where(chance[:, 3] < tones.bent, gamma, 1),
            extent[:, 4],
        ),
        1,
    )


def apply_tones(drawn: Float[Tensor, "b 5"], image: Images) -> Images:
    """Return images with other intensities, still from 0 to 1; all that is known of them stays in place."""
    deviation, sigma, zoom, gamma = (
        column[:, None, None, None] for column in drawn[:, :4].unbind(1)
    )
    noise = grains(drawn[:, 4], image.shape)
    image = image + deviation * image.std((2, 3), keepdim=True, correction=0) * noise
    image = torch.where(sigma > 0, _blurred(image, drawn[:, 1]), image)
    image = torch.where(zoom < 1, _coarse(image, drawn[:, 2]), image)
    return torch.where(gamma != 1, _bent(image, gamma), image).clamp(0, 1)


def grains(seed: Float[Tensor, " b"], shape: torch.Size) -> Images:
    """Return standard normal noise for each image, decided by its number between 0 and 1."""
    each = (seed.double() * 2**24).long()[:, None]
    places = torch.arange(math.prod(shape[1:]), device=seed.device)[None]
    at = hashed(hashed(each) + 2 * places)
    first = (at.float() + 1) / 2**32  # above 0, for its logarithm
    second = hashed(at + 1).float() / 2**32
    return ((-2 * first.log()).sqrt() * torch.cos(2 * math.pi * second)).reshape(shape)


def taken(planes: Images, axis: int, index: Int[Tensor, "b m"]) -> Tensor:
    """Return some rows (axis 2) or columns (axis 3) of every image, its own for each."""
    shape = list(planes.shape)
    shape[axis] = index.shape[1]
    return planes.gather(axis, _along(axis, index).expand(shape))


def hashed(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Return numbers below 2³² in which every bit of a number below 2³² has a part."""
    x = x & 0xFFFFFFFF
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _blurred(image: Tensor, sigma: Tensor) -> Tensor:
    """Return every image blurred by its own Gaussian."""
    at = torch.arange(-REACH, REACH + 1, device=image.device, dtype=image.dtype)
    line = torch.exp(-at.square() / (2 * sigma.clamp(min=0.1).square())[:, None])
    line = (line / line.sum(1, keepdim=True)).repeat_interleave(image.shape[1], 0)
    planes = image.flatten(0, 1)[None]
    padded = F.pad(planes, (REACH,) * 4, mode="replicate")
    across = F.conv2d(padded, line[:, None, None, :], groups=len(line))
    return F.conv2d(across, line[:, None, :, None], groups=len(line)).reshape(image.shape)


def _coarse(image: Tensor, zoom: Tensor) -> Tensor:
    """Return every image as if taken at a part of its resolution and enlarged, linearly, again."""
    for axis in (2, 3):
        size = image.shape[axis]
        fewer = (size * zoom).round().clamp(min=1)[:, None]
        at = (torch.arange(size, device=image.device) + 0.5) * fewer / size - 0.5
        below = at.floor()
        part = _along(axis, at - below)
        low, high = (
            taken(
                image, axis, ((pixel.clamp(min=0).minimum(fewer - 1) + 0.5) * size / fewer).long()
            )
            for pixel in (below, below + 1)
        )
        image = low + part * (high - low)
    return image


def _along(axis: int, values: Tensor) -> Tensor:
    return values[:, None, :, None] if axis == 2 else values[:, None, None, :]


def _bent(image: Tensor, gamma: Tensor) -> Tensor:
    """Return images after a gamma curve over their own range, mean and deviation as before."""
    over = (2, 3)
    low, high = image.amin(over, keepdim=True), image.amax(over, keepdim=True)
    spread = (high - low).clamp(min=1e-6)
    bent = ((image - low) / spread).clamp(min=1e-6) ** gamma
    wide, was = (x.std(over, keepdim=True, correction=0) for x in (bent, image))
    centered = (bent - bent.mean(over, keepdim=True)) / wide.clamp(min=1e-6)
    return centered * was + image.mean(over, keepdim=True)
