"""FedCorr (Xu et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from consilia.methods.averaging import Up
from consilia.methods.contract import Card, Start, hyper
from consilia.methods.incomplete.one_label import Intro, OneLabel
from consilia.ops.completeness import correct_missing
from consilia.ops.lid import local_dimension
from consilia.ops.losses import proximal_term
from consilia.ops.mixture import high_among, upper_part
from consilia.ops.reduce import reduce_whole
from consilia.ops.robust import pixel_losses
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.blend import blended_loss
from consilia.training.local import Loss, train_locally
from consilia.training.site import Site

Model = Annotated[Weights, Group()]
Stage = Literal["preprocessing", "finetuning", "usual"]


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global weights, the stage, and what sites told of themselves.

    Attributes:
        left: Rounds left of the stage; `tuning`: how many the second will have.
        dimensions: Per site, the mean dimension of its predictions after each round of the first stage.
        levels: Per site, the part of its images that it takes to be labelled wrongly.
        noisy: The sites whose predictions have a high dimension.
    """

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    stage: Stage
    left: int
    tuning: int
    dimensions: Mapping[str, tuple[float, ...]]
    levels: Mapping[str, float]
    noisy: tuple[str, ...]
    last: Mapping[str, float]


@dataclass(frozen=True)
class Probe:
    """Travels to a site in the first stage: the weights, and its noise level (0 if taken to be clean)."""

    weights: Model
    noise: float


@dataclass(frozen=True)
class Train:
    """Travels to a site in later stages: the weights, and whether to correct its labels by them."""

    weights: Model
    correct: bool


@dataclass(frozen=True)
class Probed:
    """Leaves a site in the first stage: also its predictions' mean dimension, and its noise level."""

    weights: Model
    images: int
    loss: float
    dimension: float
    noise: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: the loss of each image after its last probe, and whether it has corrected all."""

    losses: tuple[float, ...]
    finished: bool


@final
@dataclass(frozen=True)
class FedCorr(OneLabel[Server, Probe | Train, Probed | Up, Memory]):
    """Find noisy sites and images, correct them, go on with clean sites, then with all.

    With `preprocessing = 0` nobody is found noisy, and it is FedAvg.
    """

    preprocessing: int = hyper(
        10, "rounds T1 of the first stage", source="FedIA, supplement, Table 1"
    )
    finetuning: int = hyper(
        140,
        "most rounds T2 of the second stage; it takes at most half of what the first leaves",
        source="FedIA, supplement, Table 1 (of 300 rounds)",
    )
    beta: float = hyper(5.0, "weight β of the proximal term at noise level 1", source="code: 5")
    mixup: float = hyper(1.0, "α of MixUp in the first stage; 0: none", source="code: 1")
    neighbors: int = hyper(20, "neighbors k of the dimension", source="authors' code", low=1)
    relabel: float = hyper(
        0.5, "part π of the noisy images that is corrected in a round", source="code", high=1
    )
    threshold: float = hyper(
        0.5, "probability θ above which a missed pixel is added", source="code: 0.5", high=1
    )
    clean: float = hyper(
        0.1, "noise level κ up to which a site takes part in stage two", source="code", high=1
    )

    card: ClassVar = Card(
        title="FedCorr: Multi-Stage Federated Learning for Label Noise Correction",
        authors="J. Xu, Z. Chen, T. Q. S. Quek, K. F. E. Chong",
        venue="CVPR",
        year=2022,
        bibtex="""@inproceedings{xu2022fedcorr,
  title={{FedCorr}: Multi-Stage Federated Learning for Label Noise Correction},
  author={Xu, Jingyi and Chen, Zihan and Quek, Tony Q. S. and Chong, Kai Fong Ernest},
  booktitle={Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  pages={10184--10193},
  year={2022}
}""",
        summary="find noisy sites by the dimension of their predictions, correct, tune on clean ones",
    )

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Plan the stages."""
        tuning = min(self.finetuning, max(0, start.rounds - self.preprocessing) // 2)
        stage = self._stage("preprocessing", self.preprocessing, tuning)
        return Server(start.weights, start.groups, *stage, tuning, {}, {}, (), {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Take a site that joins late to be clean."""
        return server

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Tune on clean sites alone; where none is present, wait for none."""
        clean = tuple(site for site in present if self.noise(server, site) <= self.clean)
        return clean if server.stage == "finetuning" and clean else present

    def broadcast(self, server: Server, site: str) -> Probe | Train:
        """Send the weights, and by the message's type the stage."""
        if server.stage == "preprocessing":
            return Probe(server.weights, self.noise(server, site))
        return Train(server.weights, server.stage == "usual" and site in server.noisy)

    def noise(self, server: Server, site: str) -> float:
        """Return a site's noise level: 0 where the server takes it to be clean."""
        return server.levels[site] if site in server.noisy else 0.0

    def local_update(
        self, down: Probe | Train, memory: Memory | None, site: Site
    ) -> tuple[Probed | Up, Memory]:
        """Correct, train, and in the first stage look at predictions and losses."""
        memory = memory or Memory((), finished=False)
        site.load(down.weights)
        if isinstance(down, Train):
            if down.correct and not memory.finished:
                self._correct(site, torch.arange(len(site.train)))
                memory = replace(memory, finished=True)
            trained = train_locally(site)
            return Up(site.weights(), trained.images, trained.loss), memory
        if memory.losses and down.noise:
            count = int(len(memory.losses) * down.noise * self.relabel)
            worst = torch.tensor(memory.losses).argsort(descending=True, stable=True)
            self._correct(site, worst[:count])
        trained = train_locally(site, self._loss(site, down))
        p = site.foreground()
        losses = pixel_losses(p, site.train.target > 0).mean((1, 2)).double().cpu()  # (n,)
        dimension = local_dimension(p.flatten(1), self.neighbors).mean()
        noise = upper_part(losses.numpy()[:, None]).mean()
        told = (site.weights(), trained.images, trained.loss)
        up = Probed(*told, float(dimension), float(noise))
        return up, replace(memory, losses=tuple(losses.tolist()))

    def aggregate(self, server: Server, ups: Mapping[str, Probed | Up]) -> Server:
        """Average by images; in the first stage split the sites by the dimension of predictions."""
        shares = {site: float(up.images) for site, up in ups.items()}
        updates = {site: up.weights for site, up in ups.items()}
        weights, last = reduce_whole(server.weights, updates, shares, server.groups)
        probed = {site: up for site, up in ups.items() if isinstance(up, Probed)}
        told = {s: (*server.dimensions.get(s, ()), up.dimension) for s, up in probed.items()}
        dimensions = {**server.dimensions, **told}
        means = {site: (sum(each) / len(each),) for site, each in dimensions.items()}
        stage, left = self._stage(server.stage, server.left - 1, server.tuning)
        return replace(
            server,
            weights=weights,
            stage=stage,
            left=left,
            dimensions=dimensions,
            levels={**server.levels, **{site: up.noise for site, up in probed.items()}},
            noisy=high_among(means) if told else server.noisy,
            last=last,
        )

    def model_for(self, down: Probe | Train, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def _stage(self, stage: Stage, left: int, tuning: int) -> tuple[Stage, int]:
        """Return the stage that comes next where none of a stage's rounds is left."""
        if stage == "preprocessing" and left <= 0:
            stage, left = "finetuning", tuning
        return ("usual", 0) if stage == "finetuning" and left <= 0 else (stage, left)

    def _correct(self, site: Site, images: Tensor) -> None:
        """Add confident pixels to the labels of some images."""
        target, chosen = site.train.target.clone(), images.to(site.bench.device)
        target[chosen] = correct_missing(target[chosen], site.foreground()[chosen], self.threshold)
        site.correct_labels(target)

    def _loss(self, site: Site, down: Probe) -> Loss:
        """Return the learner's loss on blended images, with a pull that grows with the noise level."""
        parameters = list(site.network.named_parameters())
        anchor = {name: down.weights[name].to(value.device) for name, value in parameters}
        randoms = site.generator("mixup")

        def loss(batch: Batch) -> Tensor:
            value = blended_loss(site, batch, self.mixup, randoms)
            pull = 2 * self.beta * down.noise
            return value + proximal_term(parameters, anchor, pull) if pull else value

        return loss
