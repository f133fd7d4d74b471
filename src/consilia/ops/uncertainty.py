"""How unsure a classifier is of an image, and images parted by it (FedLSM, Sec. 2.3)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def entropy(p: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    r"""Return :math:`H = -\sum_c p_c \log p_c` of labels that exclude each other, in nats (Eq. 3)."""
    return -torch.xlogy(p, p).sum(1)


def binary_entropy(p: Float[Tensor, "n k"], unknown: Bool[Tensor, "n k"]) -> Float[Tensor, " n"]:
    r"""Return the mean binary entropy over an image's unknown labels, between 0 and 1.

    .. math:: H = \frac{1}{|U|} \sum_{c \in U} -\frac{p_c \log p_c + (1 - p_c) \log (1 - p_c)}{\log 2}

    It is 0 for an image whose labels are all known.
    """
    each = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)) / math.log(2)
    return (each * unknown).sum(1) / unknown.sum(1).clamp(min=1)


def split_sizes(images: int, uncertain: int, confident: int) -> tuple[int, int]:
    """Return how many images are uncertain and confident: as asked, or in proportion where few.

    At least one image is not uncertain.
    """
    if images < uncertain + confident:
        scaled = math.floor(images * uncertain / (uncertain + confident) + 0.5)
        uncertain = min(scaled, max(0, images - 1))
        confident = images - uncertain
    return uncertain, confident


def split(
    score: Float[Tensor, " n"], uncertain: int, confident: int
) -> tuple[Int[Tensor, " h"], Int[Tensor, " l"], Int[Tensor, " m"]]:
    """Return the images of highest score, of lowest score, and all but the highest; in their order.

    Args:
        score: How unsure each image is; equal ones go by position.
        uncertain: How many of the highest.
        confident: How many of the lowest.
    """
    order = torch.argsort(score, stable=True)
    edge = len(score) - uncertain
    parts = order[edge:], order[:confident], order[:edge]
    return parts[0].sort().values, parts[1].sort().values, parts[2].sort().values
