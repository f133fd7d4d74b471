"""The local intrinsic dimension of predictions (FedCorr): it grows when labels are wrong."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def local_dimension(points: Float[Tensor, "n d"], neighbors: int = 20) -> Float[Tensor, " n"]:
    r"""Return the maximum-likelihood estimate of each point's local intrinsic dimension.

    .. math:: \mathrm{LID}(x) = - \left( \frac{1}{k} \sum_{i=1}^k \log \frac{r_i}{r_k} \right)^{-1}

    :math:`r_i` is the distance to the i-th nearest other point. With fewer points than neighbors all
    others are taken; a point alone has dimension 0.
    """
    k = min(neighbors, len(points) - 1)
    if k < 1:
        return torch.zeros(len(points), dtype=torch.float64, device=points.device)
    tiny = 1e-6  # among equal points the dimension is near 0, as in the authors' code
    near = _distances(points).topk(k + 1, largest=False, sorted=True).values[:, 1:]  # (n, k)
    logs = torch.log(near.clamp(min=tiny**2) / (near[:, -1:] + tiny)).sum(1)  # (n,)
    return -k / logs.clamp(max=-tiny)


def _distances(points: Tensor) -> Tensor:
    """Return all pairs' distances; in double precision, so that near ones do not cancel out."""
    x = points.double()
    square = x.square().sum(1)
    between = (square[:, None] + square[None] - 2 * x @ x.T).clamp(min=0).sqrt()
    return between.fill_diagonal_(
        -1.0
    )  # a point comes before its neighbors, also before equal ones
