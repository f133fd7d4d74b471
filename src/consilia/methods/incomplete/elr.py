"""ELR (Liu et al., NeurIPS 2020): early-learning regularization of every pixel, under FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import AveragingBase, Down, Memory, Up
from consilia.methods.contract import Card, hyper
from consilia.methods.needs import masks_of_one_label
from consilia.ops.losses import marginal_cross_entropy
from consilia.ops.robust import clipped, early_learning_term, temporal_target, two_rows
from consilia.training.augment import apply
from consilia.training.batch import Batch
from consilia.training.carry import carry, grid_move, undo
from consilia.training.local import Trained, train_locally
from consilia.training.site import Site

#: The overlay in which a site keeps its temporal targets, for every pixel of every image.
TARGETS = "targets"


@final
@dataclass(frozen=True)
class ELR(AveragingBase[Memory]):
    """Pull predictions towards what they were on average, and so away from memorized labels.

    With `weight = 0` it is FedAvg on the cross-entropy.
    """

    weight: float = hyper(1.0, "weight λ of the term", source="FedIA, supplement, Table 1")
    beta: float = hyper(
        0.99, "memory β of the targets", source="FedIA, supplement, Table 1", high=1
    )

    card: ClassVar = Card(
        title="Early-Learning Regularization Prevents Memorization of Noisy Labels",
        authors="S. Liu, J. Niles-Weed, N. Razavian, C. Fernandez-Granda",
        venue="NeurIPS",
        year=2020,
        bibtex="""@inproceedings{liu2020early,
  title={Early-Learning Regularization Prevents Memorization of Noisy Labels},
  author={Liu, Sheng and Niles-Weed, Jonathan and Razavian, Narges and Fernandez-Granda, Carlos},
  booktitle={Advances in Neural Information Processing Systems},
  volume={33},
  pages={20331--20342},
  year={2020}
}""",
        summary="FedAvg that remembers each pixel's average prediction and holds on to it",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse all but masks of one label."""
        return masks_of_one_label(federation)

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Start from the global weights, train, and keep the targets as an overlay."""
        site.load(down.weights)
        trained = self._regularized(site) if self.weight else self._plain(site)
        return self.reply(trained, site), Memory()

    def _plain(self, site: Site) -> Trained:
        return train_locally(
            site, lambda batch: cross_entropy(self._scores(site, batch), self.seen(batch))
        )

    def _regularized(self, site: Site) -> Trained:
        move = grid_move(site)
        everything = torch.arange(len(site.train), device=site.bench.device)
        views = apply(move, site.train.cut(everything))
        targets = carry(move, self._targets(site))

        def loss(batch: Batch) -> Tensor:
            logits = self._scores(site, batch)
            p = clipped(logits.softmax(1))
            t = temporal_target(targets[batch.index], p.detach(), self.beta)
            targets[batch.index] = t
            term = early_learning_term(p, t, batch.known_pixels)
            return cross_entropy(logits, self.seen(batch)) + self.weight * term

        trained = train_locally(site, loss, views=views)
        site.overlays = {**site.overlays, TARGETS: carry(undo(move), targets)}
        return trained

    def _targets(self, site: Site) -> Tensor:
        if TARGETS in site.overlays:
            return site.overlays[TARGETS]
        count, height, width = site.train.target.shape
        return torch.zeros(count, 2, height, width, device=site.bench.device)

    def _scores(self, site: Site, batch: Batch) -> Tensor:
        return two_rows(site.learner.logits(site.network, batch.image))


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of known pixels."""
    return marginal_cross_entropy(logits, batch.target, batch.known_pixels, batch.known_labels)
