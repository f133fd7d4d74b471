"""Losses that read only what is known; FedMix's, FedIA's and FedLPPA's Dice are three forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor


def dice_flat(
    p: Float[Tensor, "b k h w"], y: Float[Tensor, "b k h w"], smooth: float = 1e-4
) -> Float[Tensor, " b"]:
    r"""Return FedMix's Dice per image, all channels flattened together; empty against empty is 1.

    .. math:: D = \frac{2 \sum p y + \epsilon}{\sum p + \sum y + \epsilon}
    """
    p, y = p.flatten(1), y.flatten(1)
    return (2 * (p * y).sum(1) + smooth) / (p.sum(1) + y.sum(1) + smooth)


def dice_foreground(
    p: Float[Tensor, "b h w"], y: Float[Tensor, "b h w"], smooth: float = 1e-4
) -> Float[Tensor, " b"]:
    r"""Return FedIA's Dice per image; empty against empty is 0.

    .. math:: D = \frac{2 \sum p y}{\sum p + \sum y + \epsilon}
    """
    p, y = p.flatten(1), y.flatten(1)
    return 2 * (p * y).sum(1) / (p.sum(1) + y.sum(1) + smooth)


def dice_squared(
    p: Float[Tensor, "b c h w"],
    y: Float[Tensor, "b c h w"],
    known: Bool[Tensor, "b h w"] | None = None,
    smooth: float = 1e-5,
) -> Float[Tensor, " c"]:
    r"""Return FedLPPA's Dice per class, summed over the whole batch, on known pixels only.

    .. math:: D_c = \frac{2 \sum p_c y_c + \epsilon}{\sum p_c^2 + \sum y_c^2 + \epsilon}
    """
    if known is not None:
        p, y = p * known[:, None], y * known[:, None]
    over = (0, 2, 3)
    return (2 * (p * y).sum(over) + smooth) / (p.square().sum(over) + y.square().sum(over) + smooth)


def masked_dice_loss(
    p: Float[Tensor, "b k h w"],
    y: Float[Tensor, "b k h w"],
    known: Bool[Tensor, "b k #h #w"] | None = None,
) -> Float[Tensor, ""]:
    """Return 1 minus FedMix's Dice over the known entries, averaged over the images that have any.

    Entries outside `known` leave both sums; with `known` absent it is the paper's loss to the bit.
    """
    if known is None:
        return (1 - dice_flat(p, y)).mean()
    per_image = 1 - dice_flat(p * known, y * known)  # (b,)
    told = known.flatten(1).any(1)  # (b,)
    return (per_image * told).sum() / told.sum().clamp(min=1)


def marginal_cross_entropy(
    logits: Float[Tensor, "b c h w"],
    target: Int[Tensor, "b h w"],
    known_pixels: Bool[Tensor, "b h w"] | None,
    known_labels: Bool[Tensor, "b k"] | None = None,
) -> Float[Tensor, ""]:
    r"""Return the cross-entropy over known pixels when some labels are not marked at a site.

    .. math:: \ell = -\frac{1}{|\Omega|} \sum_{i \in \Omega} \log \sum_{c \in S_i} p_{i,c}

    :math:`S_i` is what pixel i may be: the marked label alone; or, where no mark was made, the
    background and every label the site does not mark. With all labels known this is the partial
    cross-entropy of FedLPPA. A batch without any known pixel costs nothing and has a zero gradient.

    Args:
        logits: Scores before softmax; channel 0 is background.
        target: Label index per pixel; never read outside `known_pixels`.
        known_pixels: The annotated pixels :math:`\Omega`; `None` means all.
        known_labels: The labels each image's annotator marks; `None` means all.
    """
    safe = target if known_pixels is None else torch.where(known_pixels, target, 0)
    per_pixel = F.cross_entropy(logits, safe, reduction="none")  # (b, h, w)
    if known_labels is not None:
        possible = F.pad(~known_labels, (1, 0), value=True)[:, :, None, None]  # (b, c, 1, 1)
        log_p = F.log_softmax(logits, 1).masked_fill(~possible, -torch.inf)  # (b, c, h, w)
        per_pixel = torch.where(safe == 0, -torch.logsumexp(log_p, 1), per_pixel)
    if known_pixels is None:
        return per_pixel.mean()
    return (per_pixel * known_pixels).sum() / known_pixels.sum().clamp(min=1)


#: What a label's weight weighs: nothing, what is said to be present, or all that is said of it.
Weighs = Literal["none", "positive", "entry"]

#: The names of class weights among other tensors: of what is present, of all that is said.
WEIGHTS = ("positive_weight", "entry_weight")


@dataclass(frozen=True)
class ClassWeights:
    """How much each label's loss counts, read in one of two ways (decision 0029), or not at all.

    Attributes:
        positive: :math:`w_c`, the weight of what is present: it raises what a network says of a label.
        entry: :math:`v_c`, the weight of all that is said: a label matters more, chances stay as they are.
    """

    positive: Float[Tensor, " k"] | None = None
    entry: Float[Tensor, " k"] | None = None

    @classmethod
    def read(cls, weighs: Weighs, weight: Float[Tensor, " k"] | None) -> ClassWeights:
        """Return one weight per label as it is to be read."""
        return cls() if weighs == "none" or weight is None else cls(**{weighs: weight})

    @classmethod
    def among(cls, held: Mapping[str, Tensor]) -> ClassWeights:
        """Return the weights among tensors with names."""
        return cls(*(held.get(name) for name in WEIGHTS))

    def named(self) -> dict[str, Tensor]:
        """Return the weights that there are, by name."""
        both = zip(WEIGHTS, (self.positive, self.entry), strict=True)
        return {name: weight for name, weight in both if weight is not None}


UNWEIGHTED = ClassWeights()


def weighted_bce(
    logits: Float[Tensor, "b k"],
    target: Float[Tensor, "b k"],
    known: Bool[Tensor, "b k"],
    weights: ClassWeights = UNWEIGHTED,
) -> Float[Tensor, ""]:
    r"""Return the binary cross-entropy, hard or soft, summed over known entries.

    .. math:: \ell = -\sum_{(i,c) \in \Omega}
              v_c \left[ w_c y_{ic} \log p_{ic} + (1 - y_{ic}) \log (1 - p_{ic}) \right]
    """
    safe = torch.where(known, target, 0.0)
    each = F.binary_cross_entropy_with_logits(
        logits, safe, reduction="none", weight=weights.entry, pos_weight=weights.positive
    )
    return (each * known).sum()


def masked_bce(
    logits: Float[Tensor, "b k"],
    target: Float[Tensor, "b k"],
    known: Bool[Tensor, "b k"],
    weights: ClassWeights = UNWEIGHTED,
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy averaged over known entries."""
    return weighted_bce(logits, target, known, weights) / known.sum().clamp(min=1)


def masked_mass_bce(
    logits: Float[Tensor, "b k"],
    present: Float[Tensor, "b k"],
    absent: Float[Tensor, "b k"],
    known: Bool[Tensor, "b k"],
) -> Float[Tensor, ""]:
    r"""Return the binary cross-entropy of soft labels with their own weights, averaged over known entries.

    .. math:: \ell = -\frac{1}{|\Omega|} \sum_{(i,c) \in \Omega}
              m^+_{ic} \log p_{ic} + m^-_{ic} \log (1 - p_{ic})

    Args:
        logits: Scores before the sigmoid.
        present: The mass :math:`m^+` that says present, weights included.
        absent: The mass :math:`m^-` that says absent.
        known: The entries :math:`\Omega`.
    """
    each = present * F.softplus(-logits) + absent * F.softplus(logits)
    return (each * known).sum() / known.sum().clamp(min=1)


def labelled_cross_entropy(
    logits: Float[Tensor, "b k"], target: Float[Tensor, "b k"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy averaged over the images that carry a label (a row of all zeros has none)."""
    each = -(target * F.log_softmax(logits, 1)).sum(1)  # (b,)
    told = target.sum(1) > 0  # (b,)
    return (each * told).sum() / told.sum().clamp(min=1)


def negatives_over_positives(
    positives: Float[Tensor, " k"], negatives: Float[Tensor, " k"]
) -> Float[Tensor, " k"]:
    """Return negatives over positives per label (FedPSL); 1 where a label has no positive or no negative."""
    usable = (positives > 0) & (negatives > 0)
    return torch.where(usable, negatives / positives.clamp(min=1), 1.0)


def label_counts(
    target: UInt8[Tensor, "n k"], known: Bool[Tensor, "n k"] | None
) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Return how many images are marked to show each label, and how many are marked not to."""
    known = torch.ones_like(target, dtype=torch.bool) if known is None else known
    positive = (target > 0) & known
    return positive.sum(0), (known & ~positive).sum(0)


def proximal_term(
    parameters: Sequence[tuple[str, Tensor]], anchor: Mapping[str, Tensor], mu: float
) -> Float[Tensor, ""]:
    r"""Return FedProx's :math:`\frac{\mu}{2} \lVert w - w_{glob} \rVert^2` (squared)."""
    values, anchors = zip(*((value, anchor[name]) for name, value in parameters), strict=True)
    apart = torch._foreach_sub(values, anchors)
    squares = [square.sum() for square in torch._foreach_mul(apart, apart)]
    return mu / 2 * torch.stack(squares).sum()
