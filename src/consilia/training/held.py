"""Images a site holds out of training to judge models by, and how they are judged."""

from __future__ import annotations

import torch
from torch import Tensor

from consilia.ops.distill import known_dice
from consilia.training.batch import Batch, planes
from consilia.training.site import Site


def hold_out(site: Site, part: float) -> tuple[Tensor, Tensor]:
    """Return the images that judge and those that train: every so-many-th one, the same in all rounds.

    With 0, or with too few images to spare any, the same images do both.
    """
    used = site.train.supervised()
    judges = torch.zeros(len(used), dtype=torch.bool, device=used.device)
    if part:
        step = round(1 / part)
        judges[step - 1 :: step] = True
    return (used[judges], used[~judges]) if bool(judges.any()) else (used, used)


def score(site: Site, batch: Batch, network: str = "main") -> float:
    """Return the Dice (F1 for image-level labels) of a network on what is known of a batch."""
    p = site.probabilities(batch.image, network)
    if not site.train.segments:
        return known_dice(p > 0.5, batch.target > 0.5, batch.known_labels)
    said = planes(site.learner.decide(p), batch.labels)
    return known_dice(said, planes(batch.target, batch.labels), batch.known_planes())
