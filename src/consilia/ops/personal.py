"""Learnable elementwise aggregation: how far a site follows the server, number by number (FedALA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from consilia.payload import Weights


def interpolate(own: Weights, server: Weights, shares: Weights) -> dict[str, Tensor]:
    r"""Return :math:`\hat\phi = \phi_i + (\phi_G - \phi_i) \odot W` (FedLPPA Eqs. 10-11).

    Where W is 1 this is the server's value and where it is 0 the site's own, both to the bit.

    Args:
        own: The site's tensors, by name.
        server: The server's tensors; those without shares (buffers) are taken as they are.
        shares: The matrix W of each tensor, between 0 and 1, of the tensor's shape.
    """
    if not shares:
        return dict(server)
    owned, served = ([part[name] for name in shares] for part in (own, server))
    mixed = torch._foreach_lerp(owned, served, list(shares.values()))
    return {**server, **dict(zip(shares, mixed, strict=True))}


def improve(
    shares: Weights, gradients: Mapping[str, Tensor], own: Weights, server: Weights, eta: float
) -> dict[str, Tensor]:
    r"""Return the shares after one step down the loss, clipped to [0, 1] (FedLPPA Eqs. 12-13).

    .. math:: W \leftarrow \mathrm{clip}\left(W - \eta \,
              \frac{\partial L}{\partial \hat\phi} \odot (\phi_G - \phi_i),\, 0,\, 1\right)

    Args:
        shares: The matrix W of each tensor.
        gradients: The loss's gradient at the mixture, by name.
        own: The site's tensors.
        server: The server's tensors.
        eta: The step size.
    """
    if not shares:
        return {}
    # All tensors in one go: one by one, dozens of small ones cost a GPU more than the network's step.
    owned, served, slopes = ([part[name] for name in shares] for part in (own, server, gradients))
    steps = torch._foreach_mul(slopes, eta)
    torch._foreach_mul_(steps, torch._foreach_sub(served, owned))
    better = torch._foreach_sub(list(shares.values()), steps)
    torch._foreach_clamp_min_(better, 0.0)
    torch._foreach_clamp_max_(better, 1.0)
    return dict(zip(shares, better, strict=True))


def steady(losses: Sequence[float], window: int = 10, threshold: float = 0.1) -> bool:
    """Return whether the last losses vary little: their standard deviation is below a threshold.

    FedALA's rule: it asks for more losses than the window holds, so at least eleven passes.
    """
    return len(losses) > window and float(np.std(losses[-window:])) < threshold
