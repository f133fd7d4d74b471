"""Pseudo labels where a teacher is sure, and losses on them that divide by images (FedLSM, Eqs. 4-5)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from consilia.ops.losses import UNWEIGHTED, ClassWeights, weighted_bce

Marks = Float[Tensor, "b k"]
Mask = Bool[Tensor, "b k"]


def unweighted(p: Marks, positive_weight: Float[Tensor, " k"]) -> Marks:
    r"""Return what a network would say had its positives not been weighed, so that thresholds mean chances.

    Weighing positives by w multiplies the odds that minimise the cross-entropy by w.

    .. math:: p' = \frac{p}{p + w_c (1 - p)}
    """
    return p / (p + positive_weight * (1 - p))


def sure_entries(p: Marks, unknown: Mask, high: float, low: float) -> tuple[Marks, Mask]:
    """Return pseudo labels of labels that may co-occur, and where they hold.

    Args:
        p: The teacher's probabilities.
        unknown: The entries that lack a label; only these get one.
        high: From here on a label is present.
        low: Down from here it is absent; between the two nothing is said.
    """
    present = unknown & (p >= high)
    return present.to(p.dtype), present | (unknown & (p <= low))


def sure_class(p: Marks, unknown: Mask, threshold: float) -> tuple[Marks, Mask]:
    """Return pseudo labels of labels that exclude each other, and which rows hold.

    The likeliest label holds from the threshold on, and only if it is unknown for that image: an
    unlabelled image shows none of the labels its site marks (FedLSM Eq. 4).
    """
    best, label = p.max(1, keepdim=True)
    sure = (best >= threshold) & unknown.gather(1, label)  # (b, 1)
    return torch.zeros_like(p).scatter_(1, label, sure.to(p.dtype)), sure.expand_as(p)


def entry_loss(
    logits: Marks, target: Marks, told: Mask, weights: ClassWeights = UNWEIGHTED
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy summed over told entries and divided by the images (Eq. 5)."""
    return weighted_bce(logits, target, told, weights) / max(1, len(logits))


def class_loss(
    logits: Marks, target: Marks, told: Mask, images: Float[Tensor, ""] | float
) -> Float[Tensor, ""]:
    r"""Return the cross-entropy with told rows, hard or soft, divided by a number of images (Eq. 4)."""
    safe = torch.where(told, target, 0.0)
    return -(safe * F.log_softmax(logits, 1)).sum() / images
