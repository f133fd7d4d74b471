"""Pixel losses that bear wrong labels: those of NR-Dice, ELR, FedNoRo and RMD, for one label."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Known = Bool[Tensor, "b h w"] | None


def two_rows(logits: Float[Tensor, "b r h w"]) -> Float[Tensor, "b 2 h w"]:
    """Return scores of background and label; a single row is a score against a background of zero."""
    logits = logits.float()
    return logits if logits.shape[1] == 2 else torch.cat((torch.zeros_like(logits), logits), 1)


def mean_known(each: Float[Tensor, "b h w"], known: Known) -> Float[Tensor, ""]:
    """Return the mean over known pixels; `None` means all."""
    if known is None:
        return each.mean()
    return (each * known).sum() / known.sum().clamp(min=1)


def pixel_losses(p: Float[Tensor, "b h w"], y: Bool[Tensor, "b h w"]) -> Float[Tensor, "b h w"]:
    """Return the cross-entropy of each pixel's probability of the label."""
    return F.binary_cross_entropy(p.float(), y.float(), reduction="none")


def noise_robust_dice_loss(
    p: Float[Tensor, "b k h w"],
    g: Float[Tensor, "b k h w"],
    gamma: float,
    known: Bool[Tensor, "b k #h #w"] | None = None,
    smooth: float = 1e-5,
) -> Float[Tensor, ""]:
    r"""Return the noise-robust Dice loss, summed over the batch and averaged over labels.

    .. math:: \frac{\sum |p - g|^\gamma}{\sum p^2 + \sum g^2 + \epsilon}

    With :math:`\gamma = 2` it is the Dice loss with squared denominators; with 1, a mean absolute error.
    """
    if known is not None:
        p, g = p * known, g * known
    over = (0, 2, 3)
    wrong = (p - g).abs().pow(gamma).sum(over)
    return (wrong / (p.square().sum(over) + g.square().sum(over) + smooth)).mean()


def clipped(p: Float[Tensor, "*shape"], margin: float = 1e-4) -> Float[Tensor, "*shape"]:
    """Return probabilities kept away from 0 and 1 (ELR)."""
    return p.clamp(margin, 1 - margin)


def temporal_target(
    t: Float[Tensor, "b c h w"], p: Float[Tensor, "b c h w"], beta: float
) -> Float[Tensor, "b c h w"]:
    r"""Return ELR's target :math:`t \leftarrow \beta t + (1 - \beta) p / \sum_c p_c`, for each pixel."""
    return beta * t + (1 - beta) * p / p.sum(1, keepdim=True)


def early_learning_term(
    p: Float[Tensor, "b c h w"], t: Float[Tensor, "b c h w"], known: Known = None
) -> Float[Tensor, ""]:
    r"""Return ELR's term :math:`\log (1 - \langle p, t \rangle)`, averaged over known pixels."""
    return mean_known(torch.log(1 - (p * t).sum(1)), known)


def class_offsets(counts: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    r"""Return the logit adjustment :math:`\log \pi_c` of class counts; a class never seen counts once."""
    seen = counts.clamp(min=1)
    return torch.log(seen / seen.sum())


def distilled_loss(
    logits: Float[Tensor, "b c h w"],
    target: Int[Tensor, "b h w"],
    soft: Float[Tensor, "b c h w"],
    w: float | Float[Tensor, ""],
    known: Known = None,
) -> Float[Tensor, ""]:
    r"""Return FedNoRo's :math:`w\,\mathrm{KL}(soft \Vert p) + (1 - w)\,\mathrm{CE}(p, y)`, over pixels.

    Args:
        logits: The student's scores, adjusted.
        target: The labels.
        soft: The teacher's probabilities.
        w: How much the teacher counts.
        known: Where labels are known.
    """
    log_p = F.log_softmax(logits, 1)
    divergence = (torch.xlogy(soft, soft) - soft * log_p).sum(1)  # (b, h, w)
    entropy = F.nll_loss(log_p, target, reduction="none")  # (b, h, w)
    return w * mean_known(divergence, known) + (1 - w) * mean_known(entropy, known)


def smallest(values: Float[Tensor, " n"], part: float) -> Int[Tensor, " m"]:
    """Return the positions of the smallest part of the values; equal ones in their order."""
    return torch.argsort(values, stable=True)[: int(part * len(values))]


def crossed_small_loss(
    one: Float[Tensor, " n"], other: Float[Tensor, " n"], part: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return each network's mean loss on the pixels that are easiest for the other (RMD)."""
    for_one, for_other = smallest(other.detach(), part), smallest(one.detach(), part)
    return _mean(one[for_one]), _mean(other[for_other])


def crossed_distillation(
    one: tuple[Float[Tensor, "b 2 h w"], Float[Tensor, "b 2 h w"]],
    other: tuple[Float[Tensor, "b 2 h w"], Float[Tensor, "b 2 h w"]],
    part: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""Return what each network has to learn from the other's reliable pixels (RMD).

    .. math:: \frac{1}{|R|} \sum_{i \in R} \mathrm{KL}(q'_i \Vert p_i)

    where R are the pixels on which the other network's scores changed least under augmentation.

    Args:
        one: Scores of the augmented image, and the augmented scores of the image.
        other: The same of the other network.
        part: The part of the pixels that counts as reliable.
    """
    reliable = [smallest(_change(*pair).detach().flatten(), part) for pair in (one, other)]

    def learn(student: Tensor, teacher: Tensor, chosen: Tensor) -> Tensor:
        log_p, log_q = F.log_softmax(student, 1), F.log_softmax(teacher.detach(), 1)
        divergence = (log_q.exp() * (log_q - log_p)).sum(1)  # (b, h, w)
        return _mean(divergence.flatten()[chosen])

    return learn(one[0], other[1], reliable[1]), learn(other[0], one[1], reliable[0])


def _change(augmented: Tensor, carried: Tensor) -> Tensor:
    """Return the squared change of the label's score against the background's."""
    margins = [scores[:, 1] - scores[:, 0] for scores in (augmented, carried)]
    return (margins[0] - margins[1]).square()


def _mean(values: Tensor) -> Tensor:
    return values.sum() / max(1, len(values))
