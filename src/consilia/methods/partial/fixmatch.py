"""FixMatch (Sohn et al., NeurIPS 2020) under FedAvg*, and on all images in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import Averaging, Intro, count_labels
from consilia.methods.contract import Card, hyper
from consilia.ops.confident import class_loss, entry_loss, sure_class, sure_entries
from consilia.payload import Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss
from consilia.training.site import Site
from consilia.training.strong import strong_view

CARD = Card(
    title="FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence",
    authors="K. Sohn, D. Berthelot, N. Carlini, Z. Zhang, H. Zhang, C. A. Raffel, E. D. Cubuk, "
    "A. Kurakin, C.-L. Li",
    venue="NeurIPS",
    year=2020,
    bibtex="""@inproceedings{sohn2020fixmatch,
  title={FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence},
  author={Sohn, Kihyuk and Berthelot, David and Carlini, Nicholas and Zhang, Zizhao and
          Zhang, Han and Raffel, Colin A and Cubuk, Ekin Dogus and Kurakin, Alexey and Li, Chun-Liang},
  booktitle={Advances in Neural Information Processing Systems},
  volume={33},
  pages={596--608},
  year={2020}
}""",
    summary="FedAvg on known labels, and on sure guesses of unknown ones in strong views",
)


@dataclass(frozen=True)
class _Matching(Averaging):
    """What the network is sure of in a weak view labels the strong view.

    Known labels are trained on the weak view. Where no threshold can be reached, or with
    `weight = 0`, it is FedAvg on known labels.
    """

    unknown: Literal["negative", "masked"] = hyper(
        "masked",
        "what a label that a site does not mark means for its known part",
        source="ours, for FedLSM's FedAvg*: what is not known teaches nothing",
    )
    rows: Literal["all", "labelled"] = hyper(
        "labelled",
        "which sites teach a label's output row: all, or those that mark it",
        source="labelled: FedLSM Table 1 (*), FedPSL Eq. 9; all: FedPSL Eq. 6",
    )
    threshold: float = hyper(
        0.95,
        "exclusive labels: least probability τ of a guess",
        source="the paper's; FedLSM's code (ISIC)",
    )
    high: float = hyper(
        0.85,
        "labels that may co-occur: least probability of a present one",
        source="FedLSM's code (NIH)",
    )
    low: float = hyper(
        0.01, "and largest probability of an absent one", source="FedLSM's code (NIH)", low=-1.0
    )
    weight: float = hyper(1.0, "weight λ_u of the guesses", source="authors' code: wu = 1")

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation."""
        if federation.task != "classification":
            return "guesses image labels, and this is a segmentation task"
        return super().unmet(federation)

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Train everywhere, for guesses need no label."""
        return self.guesses(federation.exclusive) or super().trains_at(federation, site)

    def introduce(self, site: Site) -> Intro:
        """Count the images to train on and, per label, those whose annotator marks it."""
        counted = count_labels(site)
        used = self.used(site)
        return counted if used is None else Intro(len(used), counted.labelled)

    def guesses(self, exclusive: bool) -> bool:
        """Return whether any guess can ever be sure enough, and counts."""
        reachable = self.threshold <= 1 if exclusive else self.high <= 1 or self.low >= 0
        return self.weight > 0 and reachable

    def used(self, site: Site) -> Tensor | None:
        """Train on all images, labeled or not."""
        if not self.guesses(site.learner.softmax):
            return None
        return torch.arange(len(site.train), device=site.bench.device)

    def also_taught(self, site: Site) -> Tensor | None:
        """Return every label, where guesses count: which of them come is seen only step by step."""
        if not self.guesses(site.learner.softmax):
            return None
        return torch.ones(site.train.labels, dtype=torch.bool, device=site.bench.device)

    def loss(self, anchor: Weights, site: Site) -> Loss:
        """Return the loss of known labels in the weak view and of sure guesses in the strong one."""
        if not self.guesses(site.learner.softmax) or site.train.known_labels is None:
            return super().loss(anchor, site)
        # Strong views are drawn on the host: a partial is not recorded as a GPU's graph.
        return partial(self.matched, site, site.generator("strong views"))

    def matched(self, site: Site, randoms: torch.Generator, batch: Batch) -> Tensor:
        """Return the loss of a batch; its weak view is how the run file augments."""
        assert batch.known_labels is not None
        learner, network = site.learner, site.network
        scores = learner.logits(network, batch.image)
        known = learner.loss_of(scores, self.seen(batch), site.class_weights)
        p = learner.probabilities_of(scores.detach())
        strong = strong_view(site.train.cut(batch.index).image, randoms)
        again = learner.logits(network, strong)
        guessed = self.guessed(again, p, ~batch.known_labels, learner.softmax)
        return known + self.weight * guessed

    def guessed(self, scores: Tensor, p: Tensor, unknown: Tensor, exclusive: bool) -> Tensor:
        """Return the loss of a strong view's scores against what is sure in the weak view."""
        if not exclusive:
            return entry_loss(scores, *sure_entries(p, unknown, self.high, self.low))
        unlabeled = unknown.any(1).sum().clamp(min=1).float()
        return class_loss(scores, *sure_class(p, unknown, self.threshold), unlabeled)


@final
@dataclass(frozen=True)
class FixMatch(_Matching):
    """FedAvg* + FixMatch: each site guesses what it does not mark (FedLSM Tables 1 and 2)."""

    card: ClassVar = CARD


@final
@dataclass(frozen=True)
class CentralFixMatch(_Matching):
    """FixMatch on all sites' images together, with FedMatch's confidence (FedPSL Sec. VII-C)."""

    data: ClassVar[Literal["own", "pooled"]] = "pooled"
    threshold: float = hyper(
        0.75,
        "exclusive labels: least probability τ of a guess",
        source="FedPSL Sec. VII-C: as FedMatch",
    )
    high: float = hyper(
        0.75,
        "labels that may co-occur: least probability of a present one",
        source="FedPSL Sec. VII-C: as FedMatch",
    )
    low: float = hyper(
        0.25,
        "and largest probability of an absent one",
        source="ours: as sure of absence as of presence",
        low=-1.0,
    )
    card: ClassVar = replace(
        CARD, summary="all images in one place, sure guesses of unknown labels in strong views"
    )
