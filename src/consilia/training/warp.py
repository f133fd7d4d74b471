"""Strong views for segmentation: drawn once, applied alike to an image and to what was said of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

Planes = Float[Tensor, "b c h w"]


@dataclass(frozen=True)
class Warp:
    """One drawn view of a batch.

    Attributes:
        hflip: Whether each image is flipped left-right.
        vflip: Whether each image is flipped up-down.
        affine: Maps output to input positions; absent where images are only flipped.
        bend: How far nine control points move, the image reaching from -1 to 1.
    """

    hflip: Bool[Tensor, " b"]
    vflip: Bool[Tensor, " b"]
    affine: Float[Tensor, "b 2 3"] | None = None
    bend: Float[Tensor, "b 2 3 3"] | None = None


def draw_warp(count: int, generator: torch.Generator, *, bent: bool) -> Warp:
    """Draw flips and, where `bent`, a turn by up to 60°, an enlargement up to twofold and a bend.

    The numbers are RMD's; its bends of 1 to 26 pixels are taken relative to images of 128.
    """
    hflip, vflip = torch.rand(2, count, generator=generator) < 0.5
    if not bent:
        return Warp(hflip, vflip)
    angle = torch.rand(count, generator=generator) * math.radians(60)
    zoom = 1 / (1 + torch.rand(count, generator=generator))
    cos, sin, zero = torch.cos(angle) * zoom, torch.sin(angle) * zoom, torch.zeros(count)
    rows = torch.stack((cos, -sin, zero), 1), torch.stack((sin, cos, zero), 1)
    reach = (1 + 25 * torch.rand(count, 1, 1, 1, generator=generator)) / 64
    bend = torch.randn(count, 2, 3, 3, generator=generator) * reach
    return Warp(hflip, vflip, torch.stack(rows, 1), bend)


def apply_warp(warp: Warp, planes: Planes) -> Planes:
    """Return warped images or scores; beyond the edge, the edge goes on."""
    for flipped, axis in ((warp.hflip, -1), (warp.vflip, -2)):
        chosen = flipped.to(planes.device)[:, None, None, None]
        planes = torch.where(chosen, planes.flip(axis), planes)
    if warp.affine is None or warp.bend is None:
        return planes
    grid = F.affine_grid(warp.affine.to(planes), list(planes.shape), align_corners=False)
    bend = F.interpolate(
        warp.bend.to(planes), planes.shape[-2:], mode="bicubic", align_corners=True
    )
    grid = grid + bend.permute(0, 2, 3, 1)
    return F.grid_sample(planes, grid, mode="bilinear", padding_mode="border", align_corners=False)
