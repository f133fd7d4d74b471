"""FedMix's pseudo labels: refined by what a site knows, selected by how far two networks agree."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from consilia.ops.losses import dice_flat

Planes = Bool[Tensor, "n k h w"]


def refine(predicted: Planes, constraint: Planes | None) -> Planes:
    """Return a prediction kept inside its box or its image tag (FedMix, Sec. III-B)."""
    return predicted if constraint is None else predicted & constraint


def agree(one: Planes, other: Planes, threshold: float) -> Bool[Tensor, " n"]:
    """Return which images two networks label alike: Dice of at least the threshold (Eq. 2)."""
    return dice_flat(one.float(), other.float()) >= threshold


def fills(predicted: Planes, box: Planes, threshold: float = 0.5) -> Bool[Tensor, " n"]:
    """Return which predictions fill enough of their box: Dice with it of at least the threshold.

    For a prediction inside its box, one half means a third of the box's area.
    """
    return dice_flat(predicted.float(), box.float()) >= threshold


def marks_something(predicted: Planes) -> Bool[Tensor, " n"]:
    """Return which predictions hold any label at all."""
    return predicted.flatten(1).any(1)


def allowed(constraint: Planes) -> Bool[Tensor, " n"]:
    """Return which images may hold any label at all, as their tags or boxes say."""
    return torch.flatten(constraint, 1).any(1)
