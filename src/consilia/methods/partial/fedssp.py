"""FedSSP (Dong et al., FedPSL's comparison): federated SimSiam, then FedAvg on partial labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

from consilia.declare import Federation
from consilia.methods.averaging import Averaging, Intro, Server, count_labels, counted_images
from consilia.methods.averaging import Up as Averaged
from consilia.methods.contract import Card, Method, Start, hyper
from consilia.ops.reduce import reduce
from consilia.payload import Group, Weights
from consilia.training.learner import Learner
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.siamese import (
    CLASSIFIER,
    WITHOUT_LABELS,
    SiameseLearner,
    train_without_labels,
)
from consilia.training.site import Site

SIMSIAM = Card(
    title="Exploring Simple Siamese Representation Learning",
    authors="X. Chen, K. He",
    venue="CVPR",
    year=2021,
    bibtex="""@inproceedings{chen2021exploring,
  title={Exploring Simple Siamese Representation Learning},
  author={Chen, Xinlei and He, Kaiming},
  booktitle={Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  pages={15750--15758},
  year={2021}
}""",
    summary="sites first learn features from images alone, then FedAvg on known labels",
)


@dataclass(frozen=True)
class SiteIntro:
    """Leaves a site once: how many images it has, and FedAvg's counts of labels."""

    every: int
    counted: Intro


@dataclass(frozen=True)
class StagedServer:
    """Stays at the server: FedAvg's state, all image counts, and how many rounds use no labels."""

    averaging: Server
    every: Mapping[str, int]
    rounds_without_labels: int


@dataclass(frozen=True)
class Pretrain:
    """Travels to a site in the rounds without labels: the whole network, so that it can be judged."""

    weights: Annotated[Weights, Group()]


@dataclass(frozen=True)
class Tune:
    """Travels to a site in the rounds with labels: the classifier."""

    weights: Annotated[Weights, Group(CLASSIFIER)]


@dataclass(frozen=True)
class Pretrained:
    """Leaves a site in the rounds without labels: what it learned from images alone."""

    weights: Annotated[Weights, Group(WITHOUT_LABELS)]
    images: int
    loss: float


@dataclass(frozen=True)
class Tuned:
    """Leaves a site in the rounds with labels: its classifier."""

    weights: Annotated[Weights, Group(CLASSIFIER)]
    images: int
    loss: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: whether its optimiser has begun anew for the rounds with labels."""

    tuning: bool


@final
@dataclass(frozen=True)
class FedSSP(Method[SiteIntro, StagedServer, Pretrain | Tune, Pretrained | Tuned, Memory]):
    """SimSiam on all images for some rounds, then FedAvg on known labels. With none, it is FedAvg."""

    unknown: Literal["negative", "masked"] = hyper(
        "masked",
        "what a label that a site does not mark means in its loss",
        source="FedPSL Sec. VII-C",
    )
    rows: Literal["all", "labelled"] = hyper(
        "all",
        "which sites teach a label's output row: all, or those that mark it",
        source="all: FedPSL Eq. 6, our reading of Sec. VII-C; labelled: Eq. 9",
    )
    counted: Literal["trained", "all"] = hyper(
        "trained",
        "which images make up n_k: those a site trains on, or all it has",
        source="as `fedavg`",
    )
    pretraining: float = hyper(
        0.5, "share of the rounds that use no labels", source="ours; not given", high=1
    )
    tuned: Literal["all", "head"] = hyper(
        "all",
        "what learns from labels: the whole network, or its head on fixed features",
        source="ours; FedPSL Sec. VII-C can be read both ways",
    )
    width: int = hyper(256, "width of the projection", source="ours: 2048 is for ResNet-50", low=4)

    card: ClassVar = SIMSIAM

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation."""
        if federation.task != "classification":
            return "learns feature vectors of whole images, and this is a segmentation task"
        return self._averaging.unmet(federation)

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Train everywhere, for the first rounds need no label."""
        return self.pretraining > 0 or self._averaging.trains_at(federation, site)

    def learner(self, chosen: Learner) -> Learner:
        """Put SimSiam's layers beside the head."""
        return SiameseLearner.of(chosen, self.width, "fedssp")

    def introduce(self, site: Site) -> SiteIntro:
        """Count images and, per label, those whose annotator marks it."""
        return SiteIntro(len(site.train), count_labels(site))

    def start(self, start: Start, intros: Mapping[str, SiteIntro]) -> StagedServer:
        """Plan the rounds without labels; at least one has labels."""
        counted = {site: intro.counted for site, intro in intros.items()}
        first = min(round(self.pretraining * start.rounds), start.rounds - 1)
        every = {site: intro.every for site, intro in intros.items()}
        return StagedServer(self._averaging.start(start, counted), every, first)

    def admit(self, server: StagedServer, site: str, intro: SiteIntro) -> StagedServer:
        """Note a site that joins late."""
        averaging = self._averaging.admit(server.averaging, site, intro.counted)
        return replace(server, averaging=averaging, every={**server.every, site: intro.every})

    def invite(self, server: StagedServer, present: tuple[str, ...]) -> tuple[str, ...]:
        """Invite all with images, later all with labels."""
        if server.rounds_without_labels:
            return tuple(site for site in present if server.every[site] > 1)
        return self._averaging.invite(server.averaging, present)

    def broadcast(self, server: StagedServer, site: str) -> Pretrain | Tune:
        """Send what the stage trains."""
        weights, groups = server.averaging.weights, server.averaging.groups
        if server.rounds_without_labels:
            return Pretrain(weights)
        return Tune({name: weights[name] for group in CLASSIFIER for name in groups[group]})

    def local_update(
        self, down: Pretrain | Tune, memory: Memory | None, site: Site
    ) -> tuple[Pretrained | Tuned, Memory]:
        """Train without or with labels."""
        site.load(down.weights)
        if isinstance(down, Pretrain):
            trained = train_without_labels(site)
            return Pretrained(site.weights(*WITHOUT_LABELS), trained.images, trained.loss), Memory(
                tuning=False
            )
        if memory is None or not memory.tuning:
            site.optimizers.clear()  # moments of another loss
        only = site.bench.groups["head"] if self.tuned == "head" else None
        loss = self._averaging.loss(down.weights, site)
        with untaught_rows_stay(site, self.unknown):
            trained = train_locally(site, loss, parameters=only)
        images = counted_images(site, trained.images, self.counted)
        return Tuned(site.weights(*CLASSIFIER), images, trained.loss), Memory(tuning=True)

    def aggregate(
        self, server: StagedServer, ups: Mapping[str, Pretrained | Tuned]
    ) -> StagedServer:
        """Average what the stage trained."""
        state = server.averaging
        tuned = {site: up for site, up in ups.items() if isinstance(up, Tuned)}
        if tuned:
            part = replace(state, groups={g: state.groups[g] for g in CLASSIFIER})
            told = {s: Averaged(up.weights, up.images, up.loss) for s, up in tuned.items()}
            after = self._averaging.aggregate(part, told)
            return replace(server, averaging=replace(after, groups=state.groups))
        images = {site: float(up.images) for site, up in ups.items()}
        groups = {group: state.groups[group] for group in WITHOUT_LABELS}
        updates = {site: up.weights for site, up in ups.items()}
        weights = reduce(state.weights, updates, dict.fromkeys(groups, images), groups)
        total = sum(images.values()) or 1.0
        last = {site: count / total for site, count in images.items()}
        return replace(
            server,
            averaging=replace(state, weights=weights, last=last),
            rounds_without_labels=server.rounds_without_labels - 1,
        )

    def model_for(self, down: Pretrain | Tune, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights; before the first round with labels the head is as it began."""
        return down.weights

    def shares(self, server: StagedServer) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.averaging.last

    @property
    def _averaging(self) -> Averaging:
        return Averaging(self.unknown, self.rows, self.counted)
