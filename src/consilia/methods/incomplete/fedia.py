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
from consilia.ops.reduce import reduce
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
        estimates: The completeness each site estimated.
        corrected: The sites that have corrected their labels.
    """

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    sites: tuple[str, ...]
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
    """Leaves a site: its weights, image count, mean loss, and one bit once its labels are corrected."""

    weights: Model
    images: int
    loss: float
    corrected: bool


@dataclass(frozen=True)
class Estimated:
    """Leaves a site once, after the warm-up: the same with its estimated completeness.

    `completeness` is missing where the warm-up was too short for the model to predict anything.
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
        return Server(
            start.weights, start.groups, tuple(intros), "warm-up", self.warmup, {}, (), {}
        )

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Expect a correction of a site that joins late, too."""
        return replace(server, sites=(*server.sites, site))

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
        memory = self._remember(down, memory, site.round, iou)
        told = (site.weights(), trained.images, loss, memory.corrected)
        if isinstance(down, Watch) and down.estimate:
            return Estimated(*told, estimate), memory
        return Up(*told), memory

    def aggregate(self, server: Server, ups: Mapping[str, Up | Estimated]) -> Server:
        """Average by images, or in the second stage by completeness over loss; move the stage on."""
        told = {s: up.completeness for s, up in ups.items() if isinstance(up, Estimated)}
        silent = [site for site, value in told.items() if value is None]
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
            shares = completeness_shares(known, {site: up.loss for site, up in ups.items()})
        updates = {site: up.weights for site, up in ups.items()}
        weights = reduce(
            server.weights, updates, dict.fromkeys(server.groups, shares), server.groups
        )
        total = sum(shares.values()) or 1.0
        corrected = {*server.corrected, *(s for s, up in ups.items() if up.corrected)}
        after = replace(
            server,
            weights=weights,
            estimates=estimates,
            corrected=tuple(sorted(corrected)),
            last={site: share / total for site, share in shares.items()},
        )
        return self._move_on(after, nothing_predicted=bool(silent) and len(silent) == len(ups))

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

    def _remember(self, down: Train | Watch, memory: Memory, round_: int, iou: float) -> Memory:
        if isinstance(down, Train):
            history = (*memory.history, (round_, iou)) if down.warmup else memory.history
            return replace(memory, history=history)
        fitted = line(memory.history)
        if not self.correct or fitted is None or memory.corrected:
            return memory
        falls = fitted[0] * round_ + fitted[1] - iou > self.gap
        return replace(memory, triggered=memory.triggered or falls)

    def _move_on(self, server: Server, nothing_predicted: bool) -> Server:
        left = max(0, server.rounds_left - 1)
        if server.stage == "warm-up" and server.rounds_left <= 1:
            return replace(server, stage="aware", rounds_left=self.longest)
        if (
            server.stage == "aware" and nothing_predicted
        ):  # the warm-up was too short: go on with it
            return replace(server, stage="warm-up", rounds_left=1, estimates={})
        done = set(server.sites) <= set(server.corrected) or (self.longest > 0 and not left)
        if server.stage == "aware" and done:
            return replace(server, stage="corrected")
        return replace(server, rounds_left=left)
