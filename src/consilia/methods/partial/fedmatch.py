"""FedMatch (Jeong et al., ICLR 2021), and FedMatch+ with features learned from images alone first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import count_labels
from consilia.methods.contract import Card, Method, Start, hyper
from consilia.methods.partial.matching import HELPERS, Matching, Terms, joined
from consilia.ops.nearest import nearest
from consilia.ops.reduce import reduce
from consilia.payload import Group, Shape, Weights
from consilia.training.learner import Learner
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.siamese import SiameseLearner, train_without_labels
from consilia.training.site import Site

Model = Annotated[Weights, Group()]


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: how many images it has, and how many of them carry a label."""

    every: int
    labelled: int


@dataclass(frozen=True)
class Server:
    """Stays at the server: both global parts, each site's ψ and outputs, who helps whom, who knows it."""

    sigma: Weights
    psi: Weights
    groups: Mapping[str, tuple[str, ...]]
    intros: Mapping[str, Intro]
    psis: Mapping[str, Weights]
    outputs: Mapping[str, Tensor]
    helpers: Mapping[str, tuple[str, ...]]
    told: tuple[str, ...]
    rounds_without_labels: int
    rounds_matched: int
    last: Mapping[str, float]


@dataclass(frozen=True)
class Pretrain:
    """Travels to a site in FedMatch+'s first rounds: one network, in the place of σ."""

    sigma: Model


@dataclass(frozen=True)
class Match:
    """Travels to a site: σ and ψ, and every few rounds its helpers' ψ; `None`: keep those you have."""

    sigma: Model
    psi: Model
    helpers: tuple[Model, ...] | None


@dataclass(frozen=True)
class Pretrained:
    """Leaves a site in FedMatch+'s first rounds: what it learned from images alone."""

    sigma: Model
    images: int
    loss: float


@dataclass(frozen=True)
class Matched:
    """Leaves a site: σ, ψ, and its outputs for one image of noise, by which it is compared."""

    sigma: Model
    psi: Model
    output: Annotated[Tensor, Shape(("labels",))]
    images: int
    loss: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its helpers' ψ until new ones come, and whether matching has begun."""

    helpers: tuple[Model, ...]
    matching: bool


@final
@dataclass(frozen=True)
class FedMatch(Terms, Method[Intro, Server, Pretrain | Match, Pretrained | Matched, Memory]):
    """Labels teach σ, agreement with similar sites' models teaches ψ; a model is σ + ψ."""

    helpers: int = hyper(2, "how many similar sites help", source="code: 2")
    refresh: int = hyper(10, "rounds between new helpers", source="code: 10", low=1)
    psi_factor: float = hyper(0.2, "ψ begins as this part of σ", source="code: 0.2")
    pretraining: float = hyper(
        0.0, "share of the rounds that use no labels (FedMatch+)", source="ours", high=1
    )
    width: int = hyper(256, "width of SimSiam's projection (FedMatch+)", source="ours", low=4)

    card: ClassVar = Card(
        title="Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning",
        authors="W. Jeong, J. Yoon, E. Yang, S. J. Hwang",
        venue="ICLR",
        year=2021,
        bibtex="""@inproceedings{jeong2021federated,
  title={Federated Semi-Supervised Learning with Inter-Client Consistency \\& Disjoint Learning},
  author={Jeong, Wonyong and Yoon, Jaehong and Yang, Eunho and Hwang, Sung Ju},
  booktitle={International Conference on Learning Representations},
  year={2021}
}""",
        summary="labels teach one part of the weights, agreement with similar sites the other",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation."""
        if federation.task != "classification":
            return "compares outputs of whole images, and this is a segmentation task"
        return None

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Train everywhere: images without a label teach ψ."""
        return True

    def learner(self, chosen: Learner) -> Learner:
        """For FedMatch+ put SimSiam's layers beside the head."""
        return SiameseLearner.of(chosen, self.width, "fedmatch") if self.pretraining else chosen

    def introduce(self, site: Site) -> Intro:
        """Count images, and those with a label."""
        return Intro(len(site.train), count_labels(site).images)

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin with ψ as a part of σ."""
        sigma = start.weights
        first = min(round(self.pretraining * start.rounds), start.rounds - 1)
        psi = self._psi(sigma)
        return Server(sigma, psi, start.groups, dict(intros), {}, {}, {}, (), first, 0, {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note a site that joins late."""
        return replace(server, intros={**server.intros, site: intro})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train wherever there are images."""
        return tuple(site for site in present if server.intros[site].every)

    def broadcast(self, server: Server, site: str) -> Pretrain | Match:
        """Send both parts, and helpers when they are new."""
        if server.rounds_without_labels:
            return Pretrain(server.sigma)
        chosen = tuple(server.psis[name] for name in server.helpers.get(site, ()))
        return Match(server.sigma, server.psi, None if site in server.told else chosen)

    def local_update(
        self, down: Pretrain | Match, memory: Memory | None, site: Site
    ) -> tuple[Pretrained | Matched, Memory]:
        """Train σ on labels and ψ on agreement, or without labels first."""
        site.load(down.sigma)
        if isinstance(down, Pretrain):
            trained = train_without_labels(site)
            return Pretrained(site.weights(), trained.images, trained.loss), Memory(
                (), matching=False
            )
        if memory is None or not memory.matching:
            site.optimizers.clear()  # moments of another loss
        held = down.helpers if down.helpers is not None else memory.helpers if memory else ()
        site.load(down.psi, "psi")
        for name, psi in zip(HELPERS, held, strict=False):
            site.load(psi, name)
        matching = Matching(self, site, HELPERS[: len(held)])
        every = torch.arange(len(site.train), device=site.bench.device)
        with untaught_rows_stay(site, "masked"):  # of σ, which only known labels teach
            trained = train_locally(site, matching.loss, network=("main", "psi"), only=every)
        up = Matched(
            site.weights(),
            site.weights(network="psi"),
            matching.output(),
            trained.images,
            trained.loss,
        )
        return up, Memory(held, matching=True)

    def aggregate(self, server: Server, ups: Mapping[str, Pretrained | Matched]) -> Server:
        """Average both parts by images; every few rounds find each site's nearest others."""
        images = {site: float(up.images) for site, up in ups.items()}
        each = dict.fromkeys(server.groups, images)
        sigmas = {site: up.sigma for site, up in ups.items()}
        sigma = reduce(server.sigma, sigmas, each, server.groups)
        total = sum(images.values()) or 1.0
        last = {site: count / total for site, count in images.items()}
        told = {site: up for site, up in ups.items() if isinstance(up, Matched)}
        if not told:
            left = server.rounds_without_labels - 1
            psi = self._psi(sigma) if not left else server.psi
            return replace(server, sigma=sigma, psi=psi, rounds_without_labels=left, last=last)
        psis = {site: dict(up.psi.items()) for site, up in told.items()}
        outputs = {**server.outputs, **{site: up.output for site, up in told.items()}}
        known, done = {**server.psis, **psis}, server.rounds_matched + 1
        helpers, aware = server.helpers, tuple(sorted({*server.told, *told}))
        if done % self.refresh == 0 or not helpers:
            helpers, aware = nearest(outputs, min(self.helpers, len(HELPERS))), ()
        return replace(
            server,
            sigma=sigma,
            psi=reduce(server.psi, psis, each, server.groups),
            psis=known,
            outputs=outputs,
            helpers=helpers,
            told=aware,
            rounds_matched=done,
            last=last,
        )

    def model_for(self, down: Pretrain | Match, memory: Memory | None, site: Site) -> Weights:
        """Use σ + ψ."""
        return down.sigma if isinstance(down, Pretrain) else joined(down.sigma, down.psi, site)

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.last

    def _psi(self, sigma: Weights) -> Weights:
        return {
            name: value * self.psi_factor if value.is_floating_point() else value.clone()
            for name, value in sigma.items()
        }
