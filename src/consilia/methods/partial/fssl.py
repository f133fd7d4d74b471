"""FSSL (Yang et al., Medical Image Analysis 2021), for sites that mark different image labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import Averaging, Down, Intro, Memory, Server, Up, count_labels
from consilia.methods.contract import Card, Method, Start, hyper
from consilia.methods.papers import COVID_CT
from consilia.ops.confident import class_loss, entry_loss, sure_class, sure_entries
from consilia.ops.losses import ClassWeights
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site, Workbench


@dataclass(frozen=True)
class TeachingServer:
    """Stays at the server: FedAvg's state, and the rounds of supervised warm-up left."""

    averaging: Server
    warmup: int


@dataclass(frozen=True)
class Teach:
    """Travels to a site after the warm-up: the global weights, which also label what is unknown."""

    weights: Annotated[Weights, Group()]


@final
@dataclass(frozen=True)
class FSSL(Method[Intro, TeachingServer, Down | Teach, Up, Memory]):
    """Train on known labels first; then also on what the global model is sure of, at lower weight.

    With a warm-up of all rounds, or `weight = 0`, it is FedAvg with the same switches.
    """

    unknown: Literal["negative", "masked"] = hyper(
        "masked",
        "what a label that a site does not mark means for its known part",
        source="ours, for FedLSM's FSSL*: what is not known teaches nothing",
    )
    rows: Literal["all", "labelled"] = hyper(
        "labelled",
        "which sites teach a label's output row: all, or those that mark it",
        source="labelled: FedLSM Table 1 (*), FedPSL Eq. 9; all: FedPSL Eq. 6",
    )
    counted: Literal["trained", "all"] = hyper(
        "trained",
        "which images make up n_k: those a site trains on, or all it has",
        source="as `fedavg`",
    )
    warmup: float = hyper(
        0.5, "part of the rounds that only uses known labels", source="as `fedst`", high=1
    )
    weight: float = hyper(
        0.1,
        "weight of the global model's labels in a site's loss",
        source="ours; as `fedst` 0.9 : 0.1",
    )
    threshold: float = hyper(
        0.9, "exclusive labels: least probability of a guess", source="as `fedst`", high=1
    )
    high: float = hyper(
        0.9,
        "labels that may co-occur: least probability of a present one",
        source="as `fedst`",
        high=1,
    )
    low: float = hyper(0.1, "and largest probability of an absent one", source="as `fedst`", high=1)

    card: ClassVar[Card] = replace(
        COVID_CT, summary="known labels first, then the global model's sure guesses too"
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation, which `fedst` serves."""
        if federation.task != "classification":
            return "guesses image labels, and this is a segmentation task"
        return self._averaging.unmet(federation)

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Train everywhere, if only after the warm-up."""
        return self.weight > 0 or super().trains_at(federation, site)

    def introduce(self, site: Site) -> Intro:
        """Count labeled images, in all and per label."""
        return count_labels(site)

    def start(self, start: Start, intros: Mapping[str, Intro]) -> TeachingServer:
        """Plan the warm-up; without any weight of guesses it never ends."""
        warmup = round(self.warmup * start.rounds) if self.weight else start.rounds
        return TeachingServer(self._averaging.start(start, intros), warmup)

    def admit(self, server: TeachingServer, site: str, intro: Intro) -> TeachingServer:
        """Note a site that joins late."""
        return replace(server, averaging=self._averaging.admit(server.averaging, site, intro))

    def invite(self, server: TeachingServer, present: tuple[str, ...]) -> tuple[str, ...]:
        """Warm up where there are labels; then train everywhere."""
        labeled = self._averaging.invite(server.averaging, present)
        return labeled if server.warmup and labeled else present

    def broadcast(self, server: TeachingServer, site: str) -> Down | Teach:
        """Send the global weights, and by the message's type the phase."""
        weights = server.averaging.weights
        return Down(weights) if server.warmup else Teach(weights)

    def local_update(
        self, down: Down | Teach, memory: Memory | None, site: Site
    ) -> tuple[Up, Memory]:
        """Train on known labels, or also on what the received weights are sure of."""
        if isinstance(down, Down):
            return self._averaging.local_update(down, None, site)
        site.load(down.weights)
        everything = torch.arange(len(site.train), device=site.bench.device)
        guess, sure = self.guesses(site)
        loss = site.objective(self.known_and_guessed, rows={"guess": guess, "sure": sure})
        with untaught_rows_stay(site, self.unknown, sure.any(0)):
            trained = train_locally(site, loss, only=everything)
        return self._averaging.reply(trained, site), Memory()

    def aggregate(self, server: TeachingServer, ups: Mapping[str, Up]) -> TeachingServer:
        """Average as FedAvg with the same switches."""
        averaged = self._averaging.aggregate(server.averaging, ups)
        return TeachingServer(averaged, max(0, server.warmup - 1))

    def model_for(self, down: Down | Teach, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def shares(self, server: TeachingServer) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.averaging.last

    def known_and_guessed(
        self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the loss of known labels and, at its weight, of the global model's guesses."""
        scores = bench.learner.logits(bench.network(), batch.image)
        seen = self._averaging.seen(batch)
        known = bench.learner.loss_of(scores, seen, ClassWeights.among(held))
        if not bench.learner.softmax:
            return known + self.weight * entry_loss(scores, held["guess"], held["sure"])
        unlabeled = (batch.target.sum(1) == 0).sum().clamp(min=1).float()
        return known + self.weight * class_loss(scores, held["guess"], held["sure"], unlabeled)

    def guesses(self, site: Site) -> tuple[Tensor, Tensor]:
        """Return the labels the global model gives to unknown entries, and where it is sure."""
        p = site.probabilities(site.train.image.float() / 255)
        known = site.train.known_labels
        unknown = torch.zeros_like(p, dtype=torch.bool) if known is None else ~known
        if site.learner.softmax:
            return sure_class(p, unknown, self.threshold)
        return sure_entries(p, unknown, self.high, self.low)

    @property
    def _averaging(self) -> Averaging:
        return Averaging(self.unknown, self.rows, self.counted)
