"""RMD (Fang et al., IEEE TMI 2023): reliable mutual distillation, under FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from consilia.methods.averaging import Memory
from consilia.methods.contract import Card, Start, hyper
from consilia.methods.incomplete.one_label import Intro, OneLabel
from consilia.networks.dropout import dropping
from consilia.ops.ramp import gaussian_ramp
from consilia.ops.reduce import reduce_whole
from consilia.ops.robust import crossed_distillation, crossed_small_loss, two_rows
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss, train_locally
from consilia.training.site import Site
from consilia.training.warp import apply_warp, draw_warp

Model = Annotated[Weights, Group()]
NETWORKS = ("main", "second")

#: How much of each level of the encoder is dropped in the strong view, and the noise added to images.
DROPOUT = (0.05, 0.1, 0.2, 0.3, 0.5)
NOISE = 0.02


@dataclass(frozen=True)
class Server:
    """Stays at the server: the two global networks, how many rounds are over, and the last shares."""

    first: Weights
    second: Weights
    groups: Mapping[str, tuple[str, ...]]
    over: int
    last: Mapping[str, float]


@dataclass(frozen=True)
class Down:
    """Travels to a site: the two global networks, and how the schedules stand.

    `forget`: the part of pixels left out. `grown`: how far distillation has grown, from 0 to 1.
    `bent`: whether strong views are bent, or only flipped.
    """

    first: Model
    second: Model
    forget: float
    grown: float
    bent: bool


@dataclass(frozen=True)
class Up:
    """Leaves a site: the two trained networks, image count and mean loss of the two."""

    first: Model
    second: Model
    images: int
    loss: float


@final
@dataclass(frozen=True)
class RMD(OneLabel[Server, Down, Up, Memory]):
    """Two networks clean labels for each other, and teach each other where they are steady."""

    ramp: int = hyper(
        10, "rounds t1 over which both schedules grow", source="FedIA, supplement, Table 1", low=1
    )
    reliable: float = hyper(
        0.8,
        "part u of the steadiest pixels that teach",
        source="FedIA, supplement, Table 1",
        high=1,
    )
    forget: float = hyper(
        0.005,
        "part τ of the pixels with the highest loss that is left out",
        source="FedIA, supplement, Table 1",
        high=1,
    )
    distill: float = hyper(
        0.0009, "weight of distillation when it has grown", source="authors' code (LIDC)"
    )

    card: ClassVar = Card(
        title="Reliable Mutual Distillation for Medical Image Segmentation Under Imperfect Annotations",
        authors="C. Fang, Q. Wang, L. Cheng, Z. Gao, C. Pan, Z. Cao, Z. Zheng, D. Zhang",
        venue="IEEE Transactions on Medical Imaging",
        year=2023,
        bibtex="""@article{fang2023reliable,
  title={Reliable Mutual Distillation for Medical Image Segmentation Under Imperfect Annotations},
  author={Fang, Chaowei and Wang, Qian and Cheng, Lechao and Gao, Zhifan and Pan, Chengwei and
          Cao, Zhen and Zheng, Zhaohui and Zhang, Dingwen},
  journal={IEEE Transactions on Medical Imaging},
  volume={42},
  number={6},
  pages={1720--1734},
  year={2023}
}""",
        summary="two networks that pick clean pixels for each other and teach where they are steady",
    )

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin with two networks of different first weights."""
        return Server(start.weights, start.draw("second"), start.groups, 0, {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Need nothing of a site that joins late."""
        return server

    def broadcast(self, server: Server, site: str) -> Down:
        """Send every site both networks, and where the schedules stand."""
        part = min(1.0, server.over / max(1, self.ramp - 1))  # full in round t1
        grown = gaussian_ramp(server.over, self.ramp)
        bent = server.over >= self.ramp
        return Down(server.first, server.second, self.forget * part, grown, bent)

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Train both networks together."""
        site.load(down.first)
        site.load(down.second, "second")
        trained = train_locally(site, self._loss(site, down), network=NETWORKS)
        both = (site.weights(), site.weights(network="second"))
        return Up(*both, trained.images, trained.loss / 2), Memory()

    def share_of(self, up: Up) -> float:
        """Return the number of images."""
        return float(up.images)

    def aggregate(self, server: Server, ups: Mapping[str, Up]) -> Server:
        """Average both networks by images."""
        images = {site: self.share_of(up) for site, up in ups.items()}
        firsts = {site: up.first for site, up in ups.items()}
        seconds = {site: up.second for site, up in ups.items()}
        first, last = reduce_whole(server.first, firsts, images, server.groups)
        second, _ = reduce_whole(server.second, seconds, images, server.groups)
        return replace(server, first=first, second=second, over=server.over + 1, last=last)

    def model_for(self, down: Down, memory: Memory | None, site: Site) -> Weights:
        """Use the first network."""
        return down.first

    def _loss(self, site: Site, down: Down) -> Loss:
        randoms = site.generator("strong views")

        def loss(batch: Batch) -> Tensor:
            plain = [self._scores(site, name, batch.image) for name in NETWORKS]
            one, other = (self._pixels(scores, batch) for scores in plain)
            cleaned = crossed_small_loss(one, other, 1 - down.forget)
            if not self.distill:
                return cleaned[0] + cleaned[1]
            taught = self._taught(site, down, batch, plain, randoms)
            weight = self.distill * down.grown
            return cleaned[0] + cleaned[1] + weight * (taught[0] + taught[1])

        return loss

    def _taught(
        self, site: Site, down: Down, batch: Batch, plain: list[Tensor], randoms: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return what each network has to learn from the other, on a strong view of the batch."""
        warp = draw_warp(len(batch), randoms, bent=down.bent)
        image = batch.image
        if down.bent:
            noise = torch.randn(image.shape, generator=randoms).to(image.device) * NOISE
            image = (image + noise).clamp(0, 1)
        image = apply_warp(warp, image)
        with ExitStack() as shaken:
            for name in NETWORKS:
                shaken.enter_context(dropping(site.bench.network(name), DROPOUT))
            strong = [self._scores(site, name, image) for name in NETWORKS]
        carried = [apply_warp(warp, scores) for scores in plain]
        part = min(1.0, down.grown * self.reliable)
        return crossed_distillation((strong[0], carried[0]), (strong[1], carried[1]), part)

    def _scores(self, site: Site, network: str, image: Tensor) -> Tensor:
        return two_rows(site.learner.logits(site.bench.network(network), image))

    def _pixels(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of every known pixel."""
        each = F.cross_entropy(logits, batch.target, reduction="none")  # (b, h, w)
        return each.flatten() if batch.known_pixels is None else each[batch.known_pixels]
