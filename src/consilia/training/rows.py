"""Output rows that a site's labels cannot teach: they leave a training as they entered it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from consilia.training.site import Site


@contextmanager
def untaught_rows_stay(
    site: Site, unknown: Literal["negative", "masked"], guessed: Tensor | None = None
) -> Iterator[None]:
    """Undo what a training does to rows of the head whose label no image here knows.

    A masked loss has no gradient for such a row, but weight decay and an optimiser's moments move it
    all the same. Nothing is undone where unknown labels count as absent, where everything is known,
    or where scores compete, for then every label teaches every row.

    Args:
        site: Whose main network is trained in the block.
        unknown: What a label that the site does not mark means in the loss.
        guessed: Labels that the loss also reads guesses of; their rows are taught.
    """
    taught = taught_rows(site) if unknown == "masked" else None
    if taught is None:
        yield
        return
    if guessed is not None:
        taught = taught | guessed
    tensors = site.bench.tensors()
    before = {name: tensors[name].detach().clone() for name in site.bench.groups["head"]}
    yield
    with torch.no_grad():
        for name, was in before.items():
            learned = taught.reshape(-1, *[1] * (was.dim() - 1))
            tensors[name].copy_(torch.where(learned, tensors[name], was))


def taught_rows(site: Site) -> Tensor | None:
    """Return which rows of the head a masked loss of known labels teaches; `None` where it is all.

    In a segmentation a pixel that is marked is known for every label.
    """
    known = site.train.known_labels
    if known is None or site.train.segments or site.learner.softmax:
        return None
    labels = [label for label in site.learner.head_rows() if label is not None]
    return known[site.train.supervised()].any(0)[labels]
