"""Numbers that a site keeps for every pixel, moved as its images move, and back again."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from consilia.training.augment import Move, apply, draw, policy_of
from consilia.training.batch import Batch
from consilia.training.site import Site


def grid_move(site: Site) -> Move:
    """Draw this round's flips, quarter turns and intensities of every training image.

    Rotations, shifts, changes of scale and crops are left out: what they do to pixels cannot be undone.
    """
    policy = replace(policy_of(site.training), rotate=0.0, scale=0.0, shift=0.0, crop=0)
    return draw(policy, len(site.train), site.generator("views"))


def undo(move: Move) -> Move:
    """Return the move that takes images back; for flips and quarter turns only.

    A flip along one axis before a turn is a reflection, which is its own inverse.
    """
    if move.turns is None:
        return move
    mirrored = move.hflip ^ move.vflip
    return replace(move, turns=torch.where(mirrored, move.turns, (4 - move.turns) % 4))


def carry(move: Move, planes: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Return planes moved like images, their values as they were."""
    nothing = planes.new_zeros(len(planes), 1)
    index = torch.arange(len(planes), device=planes.device)
    still = Batch(planes, nothing, None, None, None, index, 1)
    return apply(replace(move, tones=None), still).image.clone()
