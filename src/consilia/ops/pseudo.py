"""FedMix's pseudo labels: refined by what a site knows, selected by how far two networks agree."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from consilia.ops.losses import dice_flat

Planes = Bool[Tensor, "n k h w"]


def refine(predicted: Planes, constraint: Planes | None) -> Planes:
    """Return a prediction kept inside its box or its image tag (FedMix, Sec. III-C)."""
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


def confident_bce(
    p: Float[Tensor, "b k h w"],
    guess: Float[Tensor, "b k h w"],
    low: float = 0.1,
    high: float = 0.9,
) -> Float[Tensor, ""]:
    """Return the cross-entropy with hard pseudo labels where the guess is sure (FedST).

    Args:
        p: Probabilities of the view that is trained.
        guess: Probabilities of the plain view; pixels between `low` and `high` are left out.
        low: Below it a pixel is surely background.
        high: Above it a pixel is surely labeled.
    """
    sure = (guess > high) | (guess < low)
    each = F.binary_cross_entropy(p, (guess > 0.5).float(), reduction="none")
    return (each * sure).sum() / sure.sum().clamp(min=1)
