"""FedIA's formulas: how complete a site's annotation is, and what that is worth in an average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from consilia.ops.losses import dice_foreground


def count_objects(mask: Bool[np.ndarray, "h w"]) -> int:
    """Return how many 8-connected objects a slice holds."""
    from scipy.ndimage import label

    return int(label(mask, structure=np.ones((3, 3)))[1])


def completeness(marked: Sequence[int], predicted: Sequence[int]) -> float | None:
    r"""Return :math:`\hat a = \sum c^n / \sum c^p`, between 0.001 and 1; `None` if nothing is predicted.

    A ratio of sums over slices, not a mean of ratios. A site that marks nothing at all has 0, whatever
    is predicted there; no other site has 0.
    """
    if not sum(marked):
        return 0.0
    if not sum(predicted):
        return None
    return float(np.clip(sum(marked) / sum(predicted), 1e-3, 1.0))


def completeness_shares(
    estimates: Mapping[str, float], losses: Mapping[str, float], ratio: float = 0.0
) -> dict[str, float]:
    r"""Return FedIA's shares :math:`w_k = \mathrm{softmax}_k(\hat a_k / l_k)` (Eq. 4), without overflow.

    Losses count as 0.001 at least. A site whose loss is not finite counts nothing.

    Args:
        estimates: The completeness :math:`\hat a_k` of each site.
        losses: Its loss :math:`l_k`.
        ratio: How many times the smallest share the largest may be at most; 0: no bound.
    """
    sites = [site for site in sorted(estimates) if np.isfinite(losses[site])]
    exponent = np.array([estimates[s] / max(losses[s], 1e-3) for s in sites], dtype=np.float64)
    below = exponent - exponent.max(initial=-np.inf)
    weights = np.exp(below if not ratio else np.maximum(below, -np.log(ratio)))
    shares = dict.fromkeys(estimates, 0.0)
    return shares | dict(zip(sites, (weights / weights.sum()).tolist(), strict=True))


def line(history: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """Return slope and intercept of the least-squares line; `None` with fewer than two points."""
    if len(history) < 2:
        return None
    rounds, values = zip(*history, strict=True)
    slope, intercept = np.polyfit(np.array(rounds, dtype=float), np.array(values), 1)
    return float(slope), float(intercept)


def correct_missing(
    target: UInt8[Tensor, "n h w"], p: Float[Tensor, "n h w"], threshold: float, most: float = 1.0
) -> UInt8[Tensor, "n h w"]:
    """Return labels in which confident background became foreground; marked pixels never change.

    A slice of which more than the share `most` would then be foreground is left as it was.
    """
    found = torch.where((target == 0) & (p > threshold), 1, target).to(torch.uint8)
    share = (found > 0).float().mean((1, 2), keepdim=True)  # (n, 1, 1)
    return torch.where(share > most, target, found)


def overlap(predicted: Bool[Tensor, "n h w"], target: Bool[Tensor, "n h w"]) -> Float[Tensor, " n"]:
    """Return the IoU of each slice; empty against empty is 0."""
    both = (predicted & target).flatten(1).sum(1)
    either = (predicted | target).flatten(1).sum(1)
    return both / either.clamp(min=1)


def fit_of(p: Float[Tensor, "n h w"], target: Bool[Tensor, "n h w"]) -> tuple[float, float]:
    """Return the mean Dice loss and the mean IoU over slices that hold a label.

    Slices without one have Dice 0 by definition, and would make sites incomparable; FedIA's Eq. 5
    averages over all.
    """
    holds = target.flatten(1).any(1)
    if not bool(holds.any()):
        return 1.0, 0.0
    p, target = p[holds], target[holds]
    loss = (1 - dice_foreground(p, target.float())).mean()
    return float(loss), float(overlap(p > 0.5, target).mean())
