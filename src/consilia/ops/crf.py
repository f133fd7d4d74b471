"""The gated CRF loss: neighboring pixels that look alike should be labeled alike."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def gated_crf(
    p: Float[Tensor, "b c h w"],
    image: Float[Tensor, "b i h w"],
    xy: float = 6.0,
    rgb: float = 0.1,
    radius: int = 5,
) -> Float[Tensor, ""]:
    r"""Return the gated CRF loss of Obukhov et al. (2019) with one Gaussian kernel and Potts's model.

    .. math:: \ell = \frac{1}{|\Omega|} \sum_i \sum_{j \in N_r(i)} K_{ij}
              \Bigl(1 - \sum_c p_{i,c} p_{j,c}\Bigr),
              \quad K_{ij} = \exp\Bigl(-\frac{|x_i - x_j|^2}{2 \sigma_{xy}^2}
              - \frac{|I_i - I_j|^2}{2 \sigma_{rgb}^2}\Bigr)

    :math:`N_r(i)` is the square of side 2r + 1 around i without i itself and without what lies
    outside the image.

    Args:
        p: Probabilities of every class, background included.
        image: The image, between 0 and 1.
        xy: Scale of distances, in pixels.
        rgb: Scale of differences in intensity.
        radius: Reach r of the kernel, in pixels.
    """
    b, _, h, w = p.shape
    cost = p.new_zeros(())
    # A pair counts from both of its ends, so half of the neighborhood is enough, twice.
    for dy in range(min(radius, h - 1) + 1):
        for dx in range(-min(radius, w - 1) if dy else 1, min(radius, w - 1) + 1):
            one, two = _apart(p, dy, dx)
            near, far = _apart(image, dy, dx)
            unlike = (near - far).square().sum(1)  # (b, _, _)
            kernel = torch.exp(-(dy**2 + dx**2) / (2 * xy**2) - unlike / (2 * rgb**2))
            cost = cost + (kernel * (1 - (one * two).sum(1))).sum()
    return 2 * cost / (b * h * w)


def _apart(x: Tensor, dy: int, dx: int) -> tuple[Tensor, Tensor]:
    """Return the pixels that have a neighbor so far down and across, and these neighbors."""
    h, w = x.shape[-2:]
    left, right = max(0, -dx), w - max(0, dx)
    return x[..., : h - dy, left:right], x[..., dy:, left + dx : right + dx]
