"""FedIA (Xiang et al., MICCAI 2024)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

from consilia.errors import listing
from consilia.methods.contract import Card, Start, hyper
from consilia.methods.incomplete.one_label import Intro, OneLabel
from consilia.ops.completeness import (
    completeness,
    completeness_shares,
    correct_missing,
    count_objects,
    fit_of,
    line,
)
from consilia.ops.reduce import reduce_whole
from consilia.payload import Group, Weights
from consilia.training.local import train_locally
from consilia.training.site import Site

LOG = logging.getLogger("consilia")
Model = Annotated[Weights, Group()]


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global weights, the stage, and what sites told once.

    Attributes:
        stage: "warm-up" (FedAvg), "aware" (completeness-aware) or "corrected" (FedAvg again).
        rounds_left: Of the warm-up, then of stage two where that is bounded.
        points: In how many rounds of the warm-up each site took part: the points of its line.
        estimates: The completeness each site estimated.
        corrected: The sites that have corrected their labels.
    """

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    points: Mapping[str, int]
    stage: Literal["warm-up", "aware", "corrected"]
    rounds_left: int
    estimates: Mapping[str, float]
    corrected: tuple[str, ...]
    last: Mapping[str, float]


@dataclass(frozen=True)
class Train:
    """Travels to a site in the first and the last stage: the global weights."""

    weights: Model
    warmup: bool


@dataclass(frozen=True)
class Watch:
    """Travels to a site in the second stage: the weights, and whether its estimate is still missing."""

    weights: Model
    estimate: bool


@dataclass(frozen=True)
class Up:
    """Leaves a site: its weights, image count, loss, and one bit once its labels are corrected."""

    weights: Model
    images: int
    loss: float
    corrected: bool


@dataclass(frozen=True)
class Estimated:
    """Leaves a site once, after the warm-up: the same with its estimated completeness.

    `completeness` is missing where the warm-up was too short for the model to predict anything; for
    such a site the round is one more of the warm-up.
    """

    weights: Model
    images: int
    loss: float
    corrected: bool
    completeness: float | None


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its IoU per warm-up round, whether it will correct, and whether it has."""

    history: tuple[tuple[int, float], ...]
    triggered: bool
    corrected: bool


@final
@dataclass(frozen=True)
class FedIA(OneLabel[Server, Train | Watch, Up | Estimated, Memory]):
    """Trust sites by estimated completeness, and let each add what it missed once (Sec. 2).

    With a warm-up of all rounds it is FedAvg.
    """

    warmup: int = hyper(
        10, "rounds T of plain FedAvg first", source="Sec. 3.1 (MS; LUNG uses 40)", low=3
    )
    gap: float = hyper(
        0.03, "fall of the IoU below its line that triggers correction", source="Sec. 2.4", low=None
    )
    threshold: float = hyper(
        0.8, "probability τ above which a missed pixel is added", source="Sec. 2.4", high=1
    )
    aware: bool = hyper(
        True, "completeness-aware aggregation in stage two", source="Table 2, ablation"
    )
    correct: bool = hyper(True, "one-off label correction", source="Table 2, ablation")
    told_loss: Literal["after", "running"] = hyper(
        "after", "l_k: the loss after training, or the mean over its batches", source="Eq. 5"
    )
    ratio: float = hyper(
        0.0, "the largest share over the smallest, at most; 0: no bound", source="ours: a safeguard"
    )
    longest: int = hyper(
        0, "most rounds of stage two; 0: no bound", source="ours: a site may never meet Eq. 7"
    )
    most: float = hyper(
        1.0,
        "share of a slice that a correction may make foreground, or the slice keeps its labels",
        source="ours; 1: the paper, which corrects every slice",
        high=1,
    )

    card: ClassVar = Card(
        title="FedIA: Federated Medical Image Segmentation with Heterogeneous Annotation Completeness",
        authors="Y. Xiang, N. Wu, L. Yu, X. Yang, K.-T. Cheng, Z. Yan",
        venue="MICCAI",
        year=2024,
        bibtex="""@inproceedings{xiang2024fedia,
  title={FedIA: Federated Medical Image Segmentation with Heterogeneous Annotation Completeness},
  author={Xiang, Yangyang and Wu, Nannan and Yu, Li and Yang, Xin and Cheng, Kwang-Ting and Yan, Zengqiang},
  booktitle={Medical Image Computing and Computer Assisted Intervention},
  year={2024}
}""",
        summary="sites that miss lesions: estimate how many, trust accordingly, correct once",
    )

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin with the warm-up."""
        return Server(start.weights, start.groups, {}, "warm-up", self.warmup, {}, (), {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Need nothing of a site that joins late; it corrects its labels if it sees the warm-up."""
        return server

    def broadcast(self, server: Server, site: str) -> Train | Watch:
        """Send the global weights, and by the message's type the stage."""
        if server.stage == "aware":
            return Watch(server.weights, site not in server.estimates)
        return Train(server.weights, server.stage == "warm-up")

    def local_update(
        self, down: Train | Watch, memory: Memory | None, site: Site
    ) -> tuple[Up | Estimated, Memory]:
        """Correct if it is time, train, then look at how well the labels are fitted."""
        memory = memory or Memory((), triggered=False, corrected=False)
        site.load(down.weights)
        estimate = self.estimate(site) if isinstance(down, Watch) and down.estimate else None
        if isinstance(down, Watch) and memory.triggered and not memory.corrected:
            site.correct_labels(
                correct_missing(site.train.target, site.foreground(), self.threshold, self.most)
            )
            memory = replace(memory, corrected=True)
        trained = train_locally(site)
        loss, iou = fit_of(site.foreground(), site.train.target > 0)
        asked = isinstance(down, Watch) and down.estimate
        if (asked and estimate is None) or (isinstance(down, Train) and down.warmup):
            memory = replace(memory, history=(*memory.history, (site.round, iou)))
        elif isinstance(down, Watch) and self.falls(memory, site.round, iou):
            memory = replace(memory, triggered=True)
        loss = loss if self.told_loss == "after" else trained.loss
        told = (site.weights(), trained.images, loss, memory.corrected)
        return (Estimated(*told, estimate) if asked else Up(*told)), memory

    def aggregate(self, server: Server, ups: Mapping[str, Up | Estimated]) -> Server:
        """Average by images, or in the second stage by completeness over loss; move the stage on."""
        told = {s: up.completeness for s, up in ups.items() if isinstance(up, Estimated)}
        silent = {site for site, value in told.items() if value is None}
        if silent:
            LOG.warning(
                "the warm-up was too short: the model predicts nothing at %s, so how complete the "
                "labels are there cannot be estimated",
                listing(sorted(silent)),
            )
        estimates = {**server.estimates, **{s: 1.0 if v is None else v for s, v in told.items()}}
        shares = {site: float(up.images) for site, up in ups.items()}
        if server.stage == "aware" and self.aware and not silent:
            known = {site: estimates[site] for site in ups}
            losses = {site: up.loss for site, up in ups.items()}
            shares = completeness_shares(known, losses, self.ratio)
        updates = {site: up.weights for site, up in ups.items()}
        weights, last = reduce_whole(server.weights, updates, shares, server.groups)
        corrected = {*server.corrected, *(s for s, up in ups.items() if up.corrected)}
        warmed = ups if server.stage == "warm-up" else silent
        after = replace(
            server,
            weights=weights,
            points={**server.points, **{s: server.points.get(s, 0) + 1 for s in warmed}},
            estimates=estimates,
            corrected=tuple(sorted(corrected)),
            last=last,
        )
        predicts = any(value for site, value in estimates.items() if site not in silent)
        return self._move_on(after, nothing_predicted=bool(silent) and not predicts)

    def model_for(self, down: Train | Watch, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def estimate(self, site: Site) -> float | None:
        """Return marked over predicted objects, with the received model, slice by slice."""
        predicted = (site.foreground() > 0.5).cpu().numpy()
        marked = (site.train.target > 0).cpu().numpy()
        return completeness(
            [count_objects(m) for m in marked], [count_objects(p) for p in predicted]
        )

    def falls(self, memory: Memory, number: int, iou: float) -> bool:
        """Return whether the IoU of a round is so far below its line that labels need correction."""
        fitted = line(memory.history) if self.correct else None
        return fitted is not None and fitted[0] * number + fitted[1] - iou > self.gap

    def _move_on(self, server: Server, nothing_predicted: bool) -> Server:
        """Return the next stage; one that waits for corrections waits for sites that have a line."""
        left = max(0, server.rounds_left - 1)
        if server.stage == "warm-up" and server.rounds_left <= 1:
            return replace(server, stage="aware", rounds_left=self.longest)
        if server.stage == "aware" and nothing_predicted:  # the warm-up goes on
            return replace(server, stage="warm-up", rounds_left=1, estimates={})
        waiting = {site for site, n in server.points.items() if n > 1} - set(server.corrected)
        if server.stage == "aware" and (not waiting or (self.longest > 0 and not left)):
            return replace(server, stage="corrected")
        return replace(server, rounds_left=left)
