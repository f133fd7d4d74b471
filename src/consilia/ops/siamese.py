"""SimSiam's loss: two views of an image predict each other (Chen and He, CVPR 2021)."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Vectors = Float[Tensor, "b d"]


def negative_cosine(predicted: Vectors, projected: Vectors) -> Float[Tensor, ""]:
    r"""Return the mean of :math:`-\cos(p, \mathrm{sg}(z))`; the projection passes no gradient."""
    return -F.cosine_similarity(predicted, projected.detach(), dim=1).mean()


def siamese_loss(
    predicted: tuple[Vectors, Vectors], projected: tuple[Vectors, Vectors]
) -> Float[Tensor, ""]:
    r"""Return :math:`\tfrac12 D(p_1, \mathrm{sg}(z_2)) + \tfrac12 D(p_2, \mathrm{sg}(z_1))`."""
    one = negative_cosine(predicted[0], projected[1])
    other = negative_cosine(predicted[1], projected[0])
    return 0.5 * one + 0.5 * other
