"""FedST (Yang et al., Medical Image Analysis 2021): self-training after a warm-up on labeled sites.

FedRGD (Zhang et al., 2021) as FedMix's authors coded it differs in one number, the labeled sites'
share, and is a preset of the same method.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from consilia.declare import Federation, Supervision
from consilia.methods.averaging import Down, Memory, Up
from consilia.methods.contract import Card, Method, Start, hyper
from consilia.methods.papers import COVID_CT
from consilia.ops.pseudo import confident_bce
from consilia.ops.reduce import reduce
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.local import train_locally
from consilia.training.site import Site, Workbench

LOG = logging.getLogger("consilia")


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: whether it has masks."""

    labeled: bool


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global weights, who has masks, and the rounds of warm-up left."""

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    labeled: Mapping[str, bool]
    warmup: int
    last: Mapping[str, float]


@dataclass(frozen=True)
class Still:
    """Travels to a site without masks during the warm-up: weights to be judged with, not to train."""

    weights: Annotated[Weights, Group()]


@dataclass(frozen=True)
class Waited:
    """Leaves such a site in a round of warm-up to which no site with masks came: nothing."""


@final
@dataclass(frozen=True)
class FedST(Method[Intro, Server, Down | Still, Up | Waited, Memory]):
    """Train on the labeled sites first; then let the others follow their own confident predictions."""

    warmup: float = hyper(
        0.5,
        "part of the rounds in which only labeled sites train",
        source="FedMix code: 150 of 300",
        high=1,
    )
    labeled_share: float = hyper(
        0.9, "part of the labeled sites in the average, after warm-up", source="FedMix code", high=1
    )
    low: float = hyper(
        0.1, "below this probability a pixel is surely background", source="FedMix code", high=1
    )
    high: float = hyper(
        0.9, "above this probability a pixel is surely labeled", source="FedMix code", high=1
    )
    gamma: float = hyper(2.0, "largest gamma of the second view", source="FedMix code: U(0, 2)")

    card: ClassVar = COVID_CT

    def unmet(self, federation: Federation) -> str | None:
        """Refuse a federation without masks to warm up on."""
        if federation.task != "segmentation":
            return "segments, and this is a classification task"
        if all(site.supervision is not Supervision.MASK for site in federation.site):
            return "needs at least one site with mask supervision; none has it"
        return None

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Train everywhere."""
        return True

    def introduce(self, site: Site) -> Intro:
        """Say whether there are masks."""
        return Intro(site.declaration.supervision is Supervision.MASK)

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Plan the warm-up."""
        labeled = {site: intro.labeled for site, intro in intros.items()}
        return Server(start.weights, start.groups, labeled, round(self.warmup * start.rounds), {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note a site that joins late."""
        return replace(server, labeled={**server.labeled, site: intro.labeled})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Warm up on labeled sites alone; where none is present, the others come and wait."""
        labeled = tuple(site for site in present if server.labeled[site])
        return labeled if server.warmup and labeled else present

    def broadcast(self, server: Server, site: str) -> Down | Still:
        """Send every site the same weights, and by the message's type whether to train them."""
        waits = server.warmup and not server.labeled.get(site, True)
        return Still(server.weights) if waits else Down(server.weights)

    def local_update(
        self, down: Down | Still, memory: Memory | None, site: Site
    ) -> tuple[Up | Waited, Memory]:
        """Train on masks, or on what the network is sure of, or wait for the warm-up to go on."""
        if isinstance(down, Still):
            return Waited(), Memory()
        site.load(down.weights)
        if site.declaration.supervision is Supervision.MASK:
            trained = train_locally(site)
        else:
            everything = torch.arange(len(site.train), device=site.bench.device)
            trained = train_locally(site, site.objective(self.self_training), only=everything)
        return Up(site.weights(), trained.images, trained.loss), Memory()

    def aggregate(self, server: Server, ups: Mapping[str, Up | Waited]) -> Server:
        """Average with fixed shares; a round in which nobody trained changes nothing."""
        updates = {site: up.weights for site, up in ups.items() if isinstance(up, Up)}
        if not updates:
            LOG.warning(
                "no site with masks came to this round of the warm-up: the model stays as it is, and the "
                "warm-up lasts a round longer"
            )
            return replace(server, last={})
        shares = self.fixed_shares({site: server.labeled[site] for site in updates})
        weights = reduce(
            server.weights, updates, dict.fromkeys(server.groups, shares), server.groups
        )
        return replace(server, weights=weights, warmup=max(0, server.warmup - 1), last=shares)

    def model_for(self, down: Down | Still, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.last

    def fixed_shares(self, labeled: Mapping[str, bool]) -> dict[str, float]:
        """Return the labeled sites' part and the others', each divided equally; one kind takes all."""
        count = {kind: sum(known is kind for known in labeled.values()) for kind in (True, False)}
        part = {True: self.labeled_share, False: 1 - self.labeled_share}
        if not count[True] or not count[False]:
            part = {True: 1.0, False: 1.0}
        return {site: part[known] / count[known] for site, known in labeled.items()}

    def self_training(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a second view against what the network surely sees in the first.

        It looks at the first in evaluation mode: a guess depends on no other image of the batch, and
        leaves no trace in the network's running statistics.
        """
        learner, network = bench.learner, bench.network()
        network.eval()
        with torch.no_grad():
            guess = learner.probabilities(network, batch.image)
        network.train()
        gamma = self.gamma * torch.rand(len(batch), 1, 1, 1, device=batch.image.device)
        second = batch.image.clamp(min=1e-6) ** gamma
        return confident_bce(learner.probabilities(network, second), guess, self.low, self.high)


FEDRGD = Card(
    title="Improving Semi-supervised Federated Learning by Reducing the Gradient Diversity of Models",
    authors="Z. Zhang, Y. Yang, Z. Yao, Y. Yan, J. E. Gonzalez, K. Ramchandran, M. W. Mahoney",
    venue="IEEE Big Data",
    year=2021,
    bibtex="""@inproceedings{zhang2021improving,
  title={Improving Semi-supervised Federated Learning by Reducing the Gradient Diversity of Models},
  author={Zhang, Zhengming and Yang, Yaoqing and Yao, Zhewei and Yan, Yujun and Gonzalez, Joseph E and
          Ramchandran, Kannan and Mahoney, Michael W},
  booktitle={IEEE International Conference on Big Data},
  pages={1214--1225},
  year={2021}
}""",
    summary="self-training as FedST with equal parts for labeled and unlabeled sites",
)
