"""Contrast between models: which of two a feature vector is nearer to (MOON)."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def model_contrast(
    z: Float[Tensor, "b d"],
    z_glob: Float[Tensor, "b d"],
    z_prev: Float[Tensor, "b d"],
    temperature: float,
) -> Float[Tensor, ""]:
    r"""Return MOON's model-contrastive loss, averaged over images.

    .. math:: \ell = -\log \frac{e^{\cos(z, z_{glob}) / \tau}}
              {e^{\cos(z, z_{glob}) / \tau} + e^{\cos(z, z_{prev}) / \tau}}

    Args:
        z: Features of the network that learns.
        z_glob: Features of the global network, to which the loss draws.
        z_prev: Features of the site's own last network, from which it pushes away.
        temperature: The paper's :math:`\tau`; small values sharpen the choice.
    """
    near = F.cosine_similarity(z, z_glob, dim=1)  # (b,)
    far = F.cosine_similarity(z, z_prev, dim=1)  # (b,)
    return F.softplus((far - near) / temperature).mean()
