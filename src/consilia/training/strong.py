"""Weak and strong views of images: drawn from a generator, then applied in batches on the device.

For image-level labels only: a view moves the image and leaves its labels alone. The strong view is
FedLSM's (Sec. 3.2 and its code): flips, brightness, one of two blurs or noise, and a small affine
move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Images = Float[Tensor, "b c h w"]

#: What `StrongMove.blur` means: nothing, a median or a Gaussian of a width, or noise.
UNTOUCHED, NOISE = 0, 5
MEDIANS = {1: 3, 2: 5}
GAUSSIANS = {3: 3, 4: 5}
#: The side of the images for which these widths are given; others are blurred in proportion.
SIDE = 224


@dataclass(frozen=True)
class StrongPolicy:
    """How far a strong view may go; intensities are between 0 and 1, as everywhere.

    Attributes:
        hflip: Probability of a left-right flip.
        vflip: Probability of an up-down flip.
        brightness: Largest change that is added to every pixel.
        brightened: Probability of such a change.
        blurred: Probability of a median blur, a Gaussian blur (3 or 5 of 224 pixels wide) or noise.
        noise: Least and largest variance of the noise, in steps of 1/255.
        shift: Largest shift, relative to the image.
        scale: Largest relative change of scale.
        rotate: Largest rotation in degrees.
        moved: Probability of shift, scale and rotation.
    """

    hflip: float = 0.5
    vflip: float = 0.5
    brightness: float = 0.2
    brightened: float = 0.75
    blurred: float = 0.7
    noise: tuple[float, float] = (5.0, 30.0)
    shift: float = 0.1
    scale: float = 0.1
    rotate: float = 15.0
    moved: float = 0.85


STRONG = StrongPolicy()


@dataclass(frozen=True)
class StrongMove:
    """One drawn strong view of a batch; `seed` is for the noise, which is drawn on the device."""

    hflip: Bool[Tensor, " b"]
    vflip: Bool[Tensor, " b"]
    brightness: Float[Tensor, " b"]
    blur: Int[Tensor, " b"]
    deviation: Float[Tensor, " b"]
    affine: Float[Tensor, "b 2 3"]
    seed: int


def weak_view(image: Images, generator: torch.Generator, hflip: float = 0.5) -> Images:
    """Return a weak view of every image: a left-right flip by chance."""
    return _flipped(image, torch.rand(len(image), generator=generator) < hflip, -1)


def strong_view(image: Images, generator: torch.Generator, policy: StrongPolicy = STRONG) -> Images:
    """Return a strong view of every image."""
    return apply_strong(draw_strong(policy, len(image), generator), image)


def draw_strong(policy: StrongPolicy, count: int, generator: torch.Generator) -> StrongMove:
    """Draw how each image of a batch is changed."""
    chance = torch.rand(5, count, generator=generator)
    spread = torch.rand(5, count, generator=generator) * 2 - 1
    family = torch.randint(0, 3, (count,), generator=generator)  # median, Gaussian, noise
    wide = torch.randint(0, 2, (count,), generator=generator)
    blur = torch.where(family == 2, NOISE, 1 + 2 * family + wide) * (chance[3] < policy.blurred)
    low, high = policy.noise
    variance = low + (high - low) * torch.rand(count, generator=generator)
    return StrongMove(
        chance[0] < policy.hflip,
        chance[1] < policy.vflip,
        spread[0] * policy.brightness * (chance[2] < policy.brightened),
        blur,
        variance.sqrt() / 255,
        _affine(policy, spread[1:], chance[4] < policy.moved),
        int(torch.randint(0, 2**62, (1,), generator=generator)),
    )


def apply_strong(move: StrongMove, image: Images) -> Images:
    """Return the changed images; outside the image is black."""
    device = image.device
    image = _flipped(_flipped(image, move.vflip, -2), move.hflip, -1)
    image = (image + move.brightness.to(device)[:, None, None, None]).clamp(0, 1)
    image = _blurred(move, image)
    grid = F.affine_grid(move.affine.to(device), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, mode="bilinear", align_corners=False)


def _affine(policy: StrongPolicy, spread: Tensor, moved: Tensor) -> Tensor:
    angle = spread[0] * math.radians(policy.rotate) * moved
    zoom = 1 + spread[1] * policy.scale * moved
    shift = spread[2:] * 2 * policy.shift * moved
    cos, sin = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    rows = torch.stack((cos, -sin, shift[0])), torch.stack((sin, cos, shift[1]))
    return torch.stack(rows).permute(2, 0, 1)


def _flipped(image: Tensor, chosen: Tensor, axis: int) -> Tensor:
    return torch.where(chosen.to(image.device)[:, None, None, None], image.flip(axis), image)


def blur_scale(image: Images) -> float:
    """Return how much wider a blur is than at 224 pixels: in proportion to the image's shorter side."""
    return min(image.shape[-2:]) / SIDE


def odd_width(width: float) -> int:
    """Return the odd number of pixels nearest to a width; 1 leaves an image as it is."""
    return 2 * int(width / 2) + 1


def _blurred(move: StrongMove, image: Tensor) -> Tensor:
    image, scale = image.clone(), blur_scale(image)
    for kind in range(1, NOISE + 1):
        chosen = (move.blur == kind).nonzero().flatten().to(image.device)
        if not len(chosen):
            continue
        some = image[chosen]
        if kind in MEDIANS:
            image[chosen] = median_blur(some, odd_width(MEDIANS[kind] * scale))
        elif kind in GAUSSIANS:
            image[chosen] = gaussian_blur(some, GAUSSIANS[kind], scale)
        else:
            randoms = torch.Generator(image.device).manual_seed(move.seed)
            noise = torch.randn(some.shape, generator=randoms, device=image.device)
            wide = move.deviation.to(image.device)[chosen][:, None, None, None]
            image[chosen] = (some + noise * wide).clamp(0, 1)
    return image


def median_blur(image: Images, width: int) -> Images:
    """Return each pixel's median over a square around it; edges are repeated.

    Of a little more than half of the square's values the least and the largest cannot be the median:
    they are dropped, the next value is taken in, until one is left. Faster than sorting each square.
    """
    if width == 1:
        return image
    reach, (height, across) = width // 2, image.shape[2:]
    padded = F.pad(image, (reach, reach, reach, reach), mode="replicate")
    values = [
        padded[..., y : y + height, x : x + across] for y in range(width) for x in range(width)
    ]
    held = [values.pop() for _ in range(width**2 // 2 + 2)]
    while True:
        for i in range(1, len(held)):  # the least goes to the front
            held[0], held[i] = torch.minimum(held[0], held[i]), torch.maximum(held[0], held[i])
        for i in range(1, len(held) - 1):  # the largest to the end
            held[i], held[-1] = torch.minimum(held[i], held[-1]), torch.maximum(held[i], held[-1])
        held = held[1:-1]
        if not values:
            return held[0]
        held.append(values.pop())


def gaussian_blur(image: Images, width: int, scale: float = 1.0) -> Images:
    """Return images blurred by a Gaussian that a window of this width holds (0.8 at 3, 1.1 at 5).

    `scale` widens or narrows the Gaussian, and the window with it, to no less than 3 pixels.
    """
    sigma = scale * (0.3 * ((width - 1) / 2 - 1) + 0.8)
    width = max(3, odd_width(width * scale))
    at = torch.arange(width, device=image.device, dtype=image.dtype) - width // 2
    line = torch.exp(-at.square() / (2 * sigma**2))
    line = line / line.sum()
    channels, reach = image.shape[1], width // 2
    padded = F.pad(image, (reach, reach, reach, reach), mode="reflect")
    down = line[None, None, :, None].expand(channels, 1, -1, 1)
    across = line[None, None, None, :].expand(channels, 1, 1, -1)
    return F.conv2d(F.conv2d(padded, down, groups=channels), across, groups=channels)
