"""Distillation as MetaFed does it: follow a teacher's features and outputs, the more the better it is."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def distillation_strength(teacher: float, student: float, lam: float) -> float:
    r"""Return how strongly a student follows a teacher, from how well both do on its images.

    .. math:: \lambda = \frac{\lambda_0}{10} \cdot 10^{\min(1,\, 5 (s_T - s_S))}, \quad
              0 \text{ where } s_T \le s_S
    """
    return 0.0 if teacher <= student else lam / 10 * 10 ** min(1.0, 5 * (teacher - student))


def label_divergence(
    student: Float[Tensor, "b k ..."], teacher: Float[Tensor, "b k ..."], smallest: float = 1e-6
) -> Float[Tensor, ""]:
    r"""Return the mean divergence :math:`KL(t \Vert s)` of each label's presence or absence.

    .. math:: t \log \frac{t}{s} + (1 - t) \log \frac{1 - t}{1 - s}

    With one label and background it is the divergence of their softmax.
    """
    s, t = (x.clamp(smallest, 1 - smallest) for x in (student, teacher))
    each = t * (t / s).log() + (1 - t) * ((1 - t) / (1 - s)).log()
    return each.mean()


def known_dice(
    said: Bool[Tensor, "n k ..."],
    true: Bool[Tensor, "n k ..."],
    known: Bool[Tensor, "n k ..."] | None,
) -> float:
    """Return the Dice of what is predicted over all known entries, averaged over labels that occur.

    Without a single label in prediction or target it is 1; for image-level labels it is the F1 score.
    """
    if known is not None:
        said, true = said & known, true & known
    over = tuple(d for d in range(said.dim()) if d != 1)
    both, sizes = (said & true).sum(over), said.sum(over) + true.sum(over)
    occurs = sizes > 0
    if not bool(occurs.any()):
        return 1.0
    return float((2 * both[occurs] / sizes[occurs]).mean(dtype=torch.float64))
