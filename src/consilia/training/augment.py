"""Batched augmentation: parameters are drawn from the site's generator, then applied on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from consilia.training.batch import Batch
from consilia.training.settings import Training
from consilia.training.tones import TONES, Tones, apply_tones, draw_tones, taken


@dataclass(frozen=True)
class Policy:
    """How far images may be moved, and what becomes of their intensities; the default leaves them alone.

    Attributes:
        hflip: Probability of a left-right flip.
        vflip: Probability of an up-down flip.
        turns: Probability of a quarter turn by 0 to 3.
        rotate: Largest rotation in degrees.
        rotated: Probability of a rotation at all.
        scale: Largest relative change of scale.
        shift: Largest shift, relative to the image.
        border: What lies outside a gray image, from 0 to 1; a color image is black outside.
        crop: Side of the square that is cut out, the last of all moves; 0 keeps images whole.
        tones: What intensities go through, on top.
    """

    hflip: float = 0.0
    vflip: float = 0.0
    turns: float = 0.0
    rotate: float = 0.0
    rotated: float = 1.0
    scale: float = 0.0
    shift: float = 0.0
    border: float = 0.0
    crop: int = 0
    tones: Tones | None = None

    @property
    def resamples(self) -> bool:
        """Whether pixels move off the grid, so that images must be interpolated."""
        return bool(self.rotate or self.scale or self.shift)


POLICIES: dict[str, Policy] = {
    "none": Policy(),
    "hflip": Policy(hflip=0.5),
    "flips": Policy(hflip=0.5, vflip=0.5),  # FedMix Sec. IV-A
    "rotate": Policy(
        hflip=0.25, vflip=0.25, turns=0.5, rotate=45, rotated=0.5, border=0.8
    ),  # FedLPPA Sec. IV-A and its code
    "mild": Policy(hflip=0.5, rotate=10, scale=0.1, shift=0.05),  # ours: FedPSL restates none
}


def policy_of(training: Training) -> Policy:
    """Return how a run file has its training images changed."""
    tones = TONES.get(training.intensity)
    return replace(POLICIES[training.augment], crop=training.crop, tones=tones)


@dataclass(frozen=True)
class Move:
    """One drawn augmentation of a batch; `affine` maps output to input positions.

    `corner` says where in the room for it a crop of `side` pixels lies, from 0 to 1. The side is one for
    all, so that the moved batch has a shape that is known beforehand.
    """

    hflip: Bool[Tensor, " b"]
    vflip: Bool[Tensor, " b"]
    turns: Int[Tensor, " b"] | None = None
    affine: Float[Tensor, "b 2 3"] | None = None
    border: Float[Tensor, " b"] | None = None
    corner: Float[Tensor, "b 2"] | None = None
    tones: Float[Tensor, "b 5"] | None = None
    side: int = 0

    def parts(self) -> dict[str, Tensor]:
        """Return what there is to the move, by name; each part has one row per image."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part for name, part in found.items() if isinstance(part, Tensor)}

    @classmethod
    def joined(cls, moves: Sequence[Move]) -> Move:
        """Return the moves of several batches of one policy, one after another."""
        each = [move.parts() for move in moves]
        return moves[0]._with({name: torch.cat([e[name] for e in each]) for name in each[0]})

    def changed(self, change: Callable[[Tensor], Tensor]) -> Move:
        """Return the move with every part changed alike (brought to a device, copied)."""
        return self._with({name: change(part) for name, part in self.parts().items()})

    def split(self, sizes: Sequence[int]) -> list[Move]:
        """Return the move of each batch again; the inverse of `joined`."""
        names, parts = list(self.parts()), list(self.parts().values())
        columns = (torch.split(part, list(sizes)) for part in parts)
        rows = zip(*columns, strict=True)
        return [self._with(dict(zip(names, row, strict=True))) for row in rows]

    def fill(self, other: Move) -> None:
        """Take over another move of the same kind, in place."""
        theirs = other.parts()
        for name, mine in self.parts().items():
            mine.copy_(theirs[name])

    def kinds(self) -> tuple[int | str, ...]:
        """Return which parts there are, and the side of the crop."""
        return (self.side, *self.parts())

    def _with(self, parts: dict[str, Any]) -> Move:
        return replace(self, **parts)


def draw(policy: Policy, count: int, generator: torch.Generator) -> Move:
    """Draw how each image of a batch moves."""
    chance = torch.rand(3, count, generator=generator)
    turns = None
    if policy.turns:
        turns = torch.randint(0, 4, (count,), generator=generator) * (chance[2] < policy.turns)
    affine = _draw_affine(policy, count, generator) if policy.resamples else None
    border = torch.full((count,), policy.border) if policy.border else None
    corner = torch.rand(count, 2, generator=generator) if policy.crop else None
    tones = None if policy.tones is None else draw_tones(policy.tones, count, generator)
    flips = (chance[0] < policy.hflip, chance[1] < policy.vflip)
    return Move(*flips, turns, affine, border, corner, tones, policy.crop)


def _draw_affine(policy: Policy, count: int, generator: torch.Generator) -> Tensor:
    spread = torch.rand(4, count, generator=generator) * 2 - 1
    used = torch.rand(count, generator=generator) < policy.rotated
    angle = spread[0] * math.radians(policy.rotate) * used
    zoom = 1 + spread[1] * policy.scale
    cos, sin = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    shift = spread[2:] * 2 * policy.shift
    return torch.stack(
        (torch.stack((cos, -sin, shift[0]), 1), torch.stack((sin, cos, shift[1]), 1)), 1
    )


def apply(move: Move, batch: Batch) -> Batch:
    """Return the moved batch; pixels that come from outside the image are not known."""
    parts = _Parts.of(batch)
    parts = parts.where(move.hflip, lambda x: x.flip(-1))
    parts = parts.where(move.vflip, lambda x: x.flip(-2))
    if move.turns is not None:
        for turn in (1, 2, 3):
            parts = parts.where(move.turns == turn, partial(torch.rot90, k=turn, dims=(-2, -1)))
    if move.affine is not None:
        border = None if move.border is None else move.border.to(batch.image.device)
        parts = parts.resampled(move.affine.to(batch.image.device), border)
    if move.corner is not None:
        parts = parts.cropped(move.corner.to(batch.image.device), move.side)
    if move.tones is not None:
        parts = replace(parts, image=apply_tones(move.tones.to(parts.image), parts.image))
    return parts.back(batch)


@dataclass(frozen=True)
class _Parts:
    """The parts of a batch that move with the image, all with a channel axis."""

    image: Tensor
    labels: Tensor | None  # target, known pixels and constraint planes of a segmentation task

    @classmethod
    def of(cls, batch: Batch) -> _Parts:
        if batch.target.dim() == 2:
            return cls(batch.image, None)
        planes = [batch.target[:, None].to(batch.image.dtype)]
        if batch.known_pixels is not None:
            planes.append(batch.known_pixels[:, None].to(batch.image.dtype))
        if batch.constraint is not None:
            planes.append(batch.constraint.to(batch.image.dtype))
        return cls(batch.image, torch.cat(planes, 1))

    def where(self, chosen: Tensor, change: Callable[[Tensor], Tensor]) -> _Parts:
        pick = chosen.to(self.image.device)[:, None, None, None]
        return _Parts(
            torch.where(pick, change(self.image), self.image),
            None if self.labels is None else torch.where(pick, change(self.labels), self.labels),
        )

    def resampled(self, affine: Tensor, border: Tensor | None) -> _Parts:
        grid = F.affine_grid(affine, list(self.image.shape), align_corners=False)
        outside = None if border is None or self.image.shape[1] > 1 else border[:, None, None, None]
        image = self.image if outside is None else self.image - outside
        image = F.grid_sample(image, grid, mode="bilinear", align_corners=False)
        image = image if outside is None else image + outside
        if self.labels is None:
            return _Parts(image, None)
        inside = (grid.abs() <= 1).all(-1)[:, None].to(image.dtype)
        labels = F.grid_sample(self.labels, grid, mode="nearest", align_corners=False)
        return _Parts(image, torch.cat((labels, inside), 1))

    def cropped(self, corner: Tensor, side: int) -> _Parts:
        def cut(planes: Tensor) -> Tensor:
            for axis in (2, 3):
                first = (corner[:, axis - 2] * (planes.shape[axis] - side + 1)).long()
                within = torch.arange(side, device=planes.device)
                planes = taken(planes, axis, first[:, None] + within)
            return planes

        return _Parts(cut(self.image), None if self.labels is None else cut(self.labels))

    def back(self, batch: Batch) -> Batch:
        if self.labels is None:
            return replace(batch, image=self.image)
        target = self.labels[:, 0].round().long()
        at = 1
        known = None
        if batch.known_pixels is not None:
            known = self.labels[:, at] > 0.5
            at += 1
        constraint = None
        if batch.constraint is not None:
            constraint = self.labels[:, at : at + batch.labels] > 0.5
            at += batch.labels
        if self.labels.shape[1] > at:
            inside = self.labels[:, at] > 0.5
            known = inside if known is None else known & inside
        return replace(
            batch, image=self.image, target=target, known_pixels=known, constraint=constraint
        )
