"""Pseudo labels from two decoders that look at the same features (FedLPPA, Eqs. 14-17)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from consilia.ops.losses import dice_squared


def proposal(
    main: Float[Tensor, "b c h w"], auxiliary: Float[Tensor, "b c h w"], mix: Float[Tensor, ""]
) -> Int[Tensor, "b h w"]:
    r"""Return :math:`\tilde y = \arg\max(\lambda_m p_M + (1 - \lambda_m) p_A)`, without a gradient.

    Args:
        main: Probabilities :math:`p_M` of the main decoder.
        auxiliary: Probabilities :math:`p_A` of the auxiliary decoder.
        mix: The part :math:`\lambda_m` of the main decoder.
    """
    with torch.no_grad():
        return (mix * main + (1 - mix) * auxiliary).argmax(1)


def proposal_loss(p: Float[Tensor, "b c h w"], proposed: Int[Tensor, "b h w"]) -> Float[Tensor, ""]:
    """Return 1 minus the squared Dice with a proposal, averaged over classes and background."""
    classes = torch.arange(p.shape[1], device=p.device)
    planes = (proposed[:, None] == classes[:, None, None]).to(p.dtype)  # (b, c, h, w)
    return 1 - dice_squared(p, planes).mean()
