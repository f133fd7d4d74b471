"""Local training in two turns: the head on frozen features, then the features under a frozen head."""

from __future__ import annotations

import math

from consilia.training.local import Loss, Trained, train_locally
from consilia.training.settings import Training
from consilia.training.site import Site


def train_in_turns(
    site: Site, loss: Loss, part: float, settings: Training | None = None
) -> Trained:
    """Train the head for a part of the round's steps, then the rest of the network for the others.

    Args:
        site: Where to train.
        loss: What to minimise on a batch.
        part: The head's part of the steps; each turn has at least one step unless it is 0 or 1.
        settings: How to train, where that is not what the run file says.
    """
    settings = settings or site.training
    images = len(site.train.supervised())
    if not images:
        return Trained(0.0, 0, 0)
    groups = site.bench.groups
    body = [name for group, names in groups.items() if group != "head" for name in names]
    turns = {"head": groups["head"], "body": body}
    counts = split_steps(local_steps(settings, images), part)
    done = [
        train_locally(
            site,
            loss,
            parameters=turns[turn],
            settings=settings.model_copy(update={"steps": count}),
            purpose=turn,
        )
        for turn, count in zip(turns, counts, strict=True)
        if count
    ]
    steps = sum(turn.steps for turn in done)
    return Trained(sum(turn.loss * turn.steps for turn in done) / steps, steps, images)


def local_steps(settings: Training, images: int) -> int:
    """Return how many steps a round of so many images has."""
    return settings.steps or settings.epochs * math.ceil(images / settings.batch)


def split_steps(total: int, part: float) -> tuple[int, int]:
    """Return the steps of the head and of the rest."""
    if part in (0, 1):
        return round(part * total), total - round(part * total)
    head = min(max(1, round(part * total)), max(1, total - 1))
    return head, max(1, total - head)
