"""Restricted scores: labels that a site never sees compete less (FedRS)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def restriction(presence: Float[Tensor, " k"], alpha: float) -> Float[Tensor, " k"]:
    r"""Return what each label's score is multiplied with: 1 for the commonest, α for a missing one.

    .. math:: s_c = \alpha + (1 - \alpha) \, q_c / \max_j q_j

    Args:
        presence: How present each label is, :math:`q_c`: zero or one in the paper, its share of the
            images in the authors' later code.
        alpha: The scale of a label that is not there; 1 restricts nothing.
    """
    share = presence / presence.max().clamp(min=1e-12)
    return 1 - (1 - alpha) * (1 - share)  # exactly 1 where the share or alpha is
