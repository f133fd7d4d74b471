"""FedMatch's terms: what helpers and the own model agree on, and how far their outputs are apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

Marks = Float[Tensor, "b k"]
Mask = Bool[Tensor, "b k"]
#: Probabilities stay this far from 0 and 1 inside logarithms.
TINY = 1e-7


def consistency(
    p: Marks, helpers: Sequence[Marks], told: Mask, exclusive: bool
) -> Float[Tensor, ""]:
    r"""Return :math:`\frac1H \sum_j KL[p_{h_j} \| p]`, the mean over confident images.

    Labels that may co-occur are a Bernoulli variable each, and only told entries count.
    """
    p = p.clamp(TINY, 1 - TINY)
    terms = []
    for helper in helpers:
        q = helper.clamp(TINY, 1 - TINY)
        each = q * (q / p).log()
        if not exclusive:
            each = each + (1 - q) * ((1 - q) / (1 - p)).log()
        terms.append((each * told).sum() / images_told(told))
    return torch.stack(terms).mean()


def images_told(told: Mask) -> Float[Tensor, ""]:
    """Return how many images have a told entry, at least one."""
    return told.any(1).sum().clamp(min=1).float()


def agreed_class(p: Marks, helpers: Sequence[Marks]) -> Marks:
    """Return the class with most votes of the own model and its helpers; ties go to the lower index."""
    votes = sum(F.one_hot(each.argmax(1), p.shape[1]) for each in (p, *helpers))
    assert isinstance(votes, Tensor)
    return F.one_hot(votes.argmax(1), p.shape[1]).to(p.dtype)


def agreed_entries(p: Marks, helpers: Sequence[Marks]) -> Marks:
    """Return per label whether more than half of the models find it present; a tie follows `p`."""
    votes = torch.stack([(each > 0.5).to(p.dtype) for each in (p, *helpers)]).mean(0)
    return torch.where(votes == 0.5, (p > 0.5).to(p.dtype), (votes > 0.5).to(p.dtype))


def apart(sigma: Sequence[Tensor], psi: Sequence[Tensor], l2: float, l1: float) -> Tensor:
    r"""Return :math:`\lambda_{L2} \lVert \sigma - \psi \rVert_2^2 + \lambda_{L1} \lVert \psi \rVert_1`."""
    square = torch.stack([(s - p).square().sum() for s, p in zip(sigma, psi, strict=True)]).sum()
    return l2 * square + l1 * torch.stack([p.abs().sum() for p in psi]).sum()


def agreed_loss(logits: Marks, target: Marks, told: Mask, exclusive: bool) -> Float[Tensor, ""]:
    """Return the cross-entropy of scores with what was agreed on, the mean over images that have some."""
    if exclusive:
        each = -(target * F.log_softmax(logits, 1))
    else:
        each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (each * told).sum() / images_told(told)
