"""The gated CRF loss: neighboring pixels that look alike should be labeled alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
    reach = min(radius, w - 1)
    across = torch.arange(-reach, reach + 1, device=p.device)  # (k,)
    column = torch.arange(w, device=p.device) + across[:, None]  # (k, w)
    inside = (column >= 0) & (column < w)
    cost = p.new_zeros(())
    # A pair counts from both of its ends, so half of the neighborhood is enough, twice.
    for dy in range(min(radius, h - 1) + 1):
        ahead = slice(0 if dy else reach + 1, None)  # in the same row, only what lies to the right
        (one, two), (near, far) = (_rows_apart(x, dy, reach, ahead) for x in (p, image))
        unlike = (near - far).square().sum(1)  # (b, _, k, w)
        steps = (dy**2 + across[ahead].square()).to(p.dtype) / (2 * xy**2)  # (k,)
        kernel = torch.exp(-steps[:, None] - unlike / (2 * rgb**2)) * inside[ahead]
        cost = cost + (kernel * (1 - (one * two).sum(1))).sum()
    return 2 * cost / (b * h * w)


def _rows_apart(x: Tensor, dy: int, reach: int, ahead: slice) -> tuple[Tensor, Tensor]:
    """Return the pixels that have a row so far down, and all their neighbors in it, `(b, c, _, k, w)`."""
    h, w = x.shape[-2:]
    neighbors = F.pad(x[..., dy:, :], (reach, reach)).unfold(-1, w, 1)
    return x[..., : h - dy, None, :], neighbors[..., ahead, :]
