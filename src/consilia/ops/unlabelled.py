"""Risk on positive and unlabeled images with several hidden classes (FedPU)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def hidden_risk(
    p: Float[Tensor, "b k"],
    target: Float[Tensor, "b k"],
    unlabeled: Bool[Tensor, " b"],
    marked: Bool[Tensor, " k"],
    prior: Float[Tensor, " k"],
    floor: float,
    *,
    divided: bool = False,
) -> Float[Tensor, ""]:
    r"""Return the risk of mistaking hidden classes for marked ones and the reverse.

    .. math:: \sum_{i \in I} \mathbb{E}_U[\ell_i]
              + \sum_{j \in I} \pi_j \mathbb{E}_{P_j}\Big[\sum_{i \notin I} \ell_i - \ell_j\Big],
              \qquad \ell_i(x) = -\log(1 - p_i(x) + \epsilon)

    The hidden classes' own images are not known; what they cost is what all images cost less what
    the marked classes' images cost, :math:`U - \sum_j \pi_j P_j`. Terms of one marked class taken for
    another cancel. A class without an image in the batch, or no image in U, adds nothing.

    Args:
        p: Probabilities.
        target: One-hot labels; rows of zeros carry none.
        unlabeled: The images that stand for U, those without a label or all.
        marked: The site's label set I.
        prior: The part :math:`\pi_j` of each marked class in U; zero for the others.
        floor: The constant :math:`\epsilon` that keeps the logarithm finite, and the risk bounded below.
        divided: Divide the sum over I in the first term by the number of classes in I, and the sum over
            the others in the second by theirs.
    """
    wrong = -torch.log(1 - p + floor)  # (b, k)
    taken = (wrong * unlabeled[:, None]).sum(0) / unlabeled.sum().clamp(min=1)  # (k,)
    count = target.sum(0).clamp(min=1)  # (k,)
    strays = (wrong * ~marked).sum(1, keepdim=True)  # (b, 1)
    mistaken = (taken * marked).sum()
    if divided:
        mistaken = mistaken / marked.sum().clamp(min=1)
        strays = strays / (~marked).sum().clamp(min=1)
    owed = (target * (strays - wrong)).sum(0) / count  # (k,)
    return mistaken + (prior * owed).sum()
