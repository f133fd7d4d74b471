"""MixUp under any loss: one prediction of two blended images, judged by the labels of both."""

from __future__ import annotations

import torch
from torch import Tensor

from consilia.ops.mixup import draw_share, mixed
from consilia.training.batch import Batch
from consilia.training.site import Site


def blended_loss(site: Site, batch: Batch, alpha: float, generator: torch.Generator) -> Tensor:
    r"""Return :math:`\lambda \ell(f(\lambda a + (1-\lambda) b), y_a) + (1-\lambda) \ell(\cdot, y_b)`.

    Args:
        site: Whose main network predicts, and whose learner judges.
        batch: Images a; their partners b are the same images in another order.
        alpha: The share λ is drawn from Beta(α, α), one for the batch; with 0 nothing is blended.
        generator: Draws the share, then the order.
    """
    if not alpha:
        return site.task_loss(batch)
    share = draw_share(alpha, generator)
    order = torch.randperm(len(batch), generator=generator).to(batch.image.device)
    other = batch.take(order)
    logits = site.learner.logits(site.network, mixed(batch.image, other.image, share))
    losses = [site.learner.loss_of(logits, part) for part in (batch, other)]
    return share * losses[0] + (1 - share) * losses[1]
