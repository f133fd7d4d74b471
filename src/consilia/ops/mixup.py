"""MixUp: two images and their labels blended by one number (Zhang et al., ICLR 2018)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor


def draw_share(alpha: float, generator: torch.Generator) -> float:
    r"""Draw :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, one number for a whole batch."""
    seed = int(torch.randint(0, 2**62, (1,), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def mixed(
    first: Float[Tensor, "b ..."], second: Float[Tensor, "b ..."], share: float
) -> Float[Tensor, "b ..."]:
    r"""Return :math:`\lambda a + (1 - \lambda) b`, for images or labels."""
    return share * first + (1 - share) * second


def mixed_labels(
    first: Float[Tensor, "b k"],
    known_first: Bool[Tensor, "b k"],
    second: Float[Tensor, "b k"],
    known_second: Bool[Tensor, "b k"],
    share: float,
) -> tuple[Float[Tensor, "b k"], Bool[Tensor, "b k"]]:
    """Return blended labels, and where both parents' are known; elsewhere the blend is zero."""
    known = known_first & known_second
    return torch.where(known, mixed(first, second, share), 0.0), known
