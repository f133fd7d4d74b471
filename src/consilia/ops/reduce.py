"""The one reducer: weighted sums of sites' tensors, group by group, in double precision.

A group's shares have one of three shapes: one number per site (a mean), one per site and output row
(rows of a head that only some sites can teach), or one per pair of sites (a mixture for each site).
Shares are normalised here; where they sum to zero the previous value is kept. Integer buffers are
never averaged: the largest is taken. Sites are visited in the order of their names and read one at a
time, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from consilia.payload import Weights

#: Per site: one number, or one number per row of the group's tensors.
Shares: TypeAlias = Mapping[str, float | int | np.ndarray]


def normalise(shares: Shares) -> dict[str, np.ndarray]:
    """Return non-negative shares that sum to one over the sites, per row where there are rows.

    A row without any share stays all zero: the reducer then keeps the previous value. Shares that
    already sum to one are left as they are, to the bit.
    """
    raw = {site: np.asarray(share, dtype=np.float64) for site, share in shares.items()}
    clean = {site: np.where(np.isfinite(s) & (s > 0), s, 0.0) for site, s in raw.items()}
    total = sum((clean[site] for site in sorted(clean)), start=np.float64(0))
    divisor = np.where((total > 0) & (np.abs(total - 1) > 1e-12), total, 1.0)
    return {site: np.asarray(s / divisor) for site, s in clean.items()}


def reduce(
    previous: Weights,
    updates: Mapping[str, Weights],
    shares: Mapping[str, Shares],
    groups: Mapping[str, tuple[str, ...]],
) -> dict[str, Tensor]:
    r"""Return :math:`\theta_g = \sum_k w_{g,k} \theta_{g,k}` for every group :math:`g` with shares.

    Tensors of groups without shares keep their previous value.

    Args:
        previous: The values that stay where nothing is shared.
        updates: The tensors each site sent; a site may be read lazily from disk.
        shares: For each group, the part of each site; need not sum to one.
        groups: For each group, the names of its tensors.
    """
    plans = {group: normalise(shares[group]) for group in groups if group in shares}
    names = [
        (name, plans[group])
        for group, members in groups.items()
        if group in plans
        for name in members
    ]
    sums: dict[str, Tensor] = {}
    room: dict[torch.device, Tensor] = {}
    for site in sorted(updates):
        update = dict(updates[site].items())  # read once, where it waits on disk
        for name, plan in names:
            if site in plan:
                _accumulate(sums, name, update[name], plan[site], room)
    result = dict(previous)
    for name, plan in names:
        if name in sums:
            result[name] = _finish(sums[name], plan, previous[name])
    return result


def reduce_whole(
    previous: Weights,
    updates: Mapping[str, Weights],
    shares: Mapping[str, float],
    groups: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the mean of whole models by one share per site, and each site's part in it."""
    weights = reduce(previous, updates, dict.fromkeys(groups, shares), groups)
    total = sum(shares.values()) or 1.0
    return weights, {site: share / total for site, share in shares.items()}


def mixtures(
    updates: Mapping[str, Weights],
    matrix: Mapping[str, Shares],
    fallback: Mapping[str, Weights],
    names: tuple[str, ...],
) -> dict[str, dict[str, Tensor]]:
    r"""Return for each site :math:`i` its own mixture :math:`\sum_j a_{ij} \theta_j`."""
    return {
        site: reduce(fallback[site], updates, {"mixed": row}, {"mixed": names})
        for site, row in matrix.items()
    }


def _accumulate(
    sums: dict[str, Tensor],
    name: str,
    value: Tensor,
    share: np.ndarray,
    room: dict[torch.device, Tensor],
) -> None:
    """Add a site's part to a sum; `room` is memory for the product, used again and again."""
    if not value.is_floating_point():
        sums[name] = torch.maximum(sums[name], value) if name in sums else value.clone()
        return
    weight = _along_rows(share, value) if share.ndim else float(share)
    if name not in sums:
        sums[name] = value.to(torch.float64, copy=True).mul_(weight)
        return
    if value.device not in room or room[value.device].numel() < value.numel():
        room[value.device] = value.new_empty(value.numel(), dtype=torch.float64)
    part = room[value.device][: value.numel()].view(value.shape)
    sums[name].add_(part.copy_(value).mul_(weight))


def _along_rows(share: np.ndarray, value: Tensor) -> Tensor:
    weights = torch.as_tensor(share, dtype=torch.float64, device=value.device)
    return weights.reshape(-1, *[1] * (value.dim() - 1)) if weights.dim() else weights


def _finish(total: Tensor, plan: Mapping[str, np.ndarray], previous: Tensor) -> Tensor:
    if not total.is_floating_point():
        return total
    shared = sum((plan[site] for site in sorted(plan)), start=np.float64(0)) > 0
    if np.all(shared):
        return total.to(previous.dtype)
    kept = _along_rows(np.asarray(shared, dtype=np.float64), previous) > 0
    return torch.where(kept, total.to(previous.dtype), previous)
