"""FedLSM (Deng et al., MICCAI 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.errors import listing
from consilia.methods.contract import Card, Method, Start, hyper
from consilia.methods.labelsets.fedlsm_messages import Begin, Down, Intro, Memory, Server, Up
from consilia.methods.labelsets.lesson import (
    Blend,
    Lesson,
    Terms,
    Thresholds,
    everyone,
    excludes,
    part_by_uncertainty,
    told_or_own,
)
from consilia.ops.losses import ClassWeights, label_counts, negatives_over_positives
from consilia.ops.proxies import masked_shares, proxy_shares
from consilia.ops.reduce import Shares, reduce
from consilia.ops.teacher import follow
from consilia.payload import Weights
from consilia.training.local import train_locally
from consilia.training.settings import Training
from consilia.training.site import Site


@final
@dataclass(frozen=True)
class FedLSM(Method[Intro, Server, Begin | Down, Up, Memory]):
    """Pseudo labels where a teacher is sure, MixUp where it is not, rows by how many show a label.

    Without its three parts it is FedAvg on known labels with FixMatch and a slow teacher.
    """

    uncertainty: bool = hyper(
        True,
        "part images by the entropy of what is unknown (UE); else all images serve every part",
        source="Sec. 2.3; Table 3, ablation",
    )
    enhance: bool = hyper(
        True, "MixUp of confident with uncertain images (UDE)", source="Eq. 6; Table 3, ablation"
    )
    adaptive: bool = hyper(
        True,
        "output rows by labels and pseudo labels (AWPA); else by images of the sites that mark a label",
        source="Eq. 7; Table 3, ablation",
    )
    uncertain: int = hyper(50, "images n_h of highest entropy", source="code (ISIC)")
    confident: int = hyper(200, "images n_l of lowest entropy", source="code (ISIC)", low=1)
    tau: float = hyper(0.95, "probability τ of an accepted label", source="code (ISIC)", high=1)
    tau_positive: float = hyper(
        0.85, "probability τ_p from which a label is present", source="code (NIH)", high=1
    )
    tau_negative: float = hyper(
        0.01, "probability τ_n up to which it is absent", source="code (NIH)", high=1
    )
    mix_positive: float = hyper(0.7, "τ, τ_p of uncertain images", source="code (both)", high=1)
    mix_negative: float = hyper(0.005, "τ_n of uncertain images", source="code (NIH)", high=1)
    unweighted: bool = hyper(False, "thresholds and entropies undo class weights", source="ours")
    weighted: Literal["none", "positive", "entry"] = hyper(
        "entry",
        "co-occurring labels: w_c weighs all that is said of a label, only what is present, or nothing",
        source="Sec. 3.2, FedPSL Sec. VII-D; code (NIH), as it was meant",
    )
    soft: bool = hyper(
        False,
        "co-occurring labels: learn what the teacher is unsure of from its probability",
        source="code (NIH), as it runs",
    )
    together: bool = hyper(
        False,
        "exclusive labels: one mean over labels and pseudo labels, not one for each",
        source="code (ISIC)",
    )
    mixed: int = hyper(4, "blended images per step", source="Sec. 3.2", low=1)
    included: bool = hyper(
        False,
        "whether training.batch counts the blended images too, or they come on top",
        source="true: Sec. 3.2 and code (60 + 4); false: ours",
    )
    alpha: float = hyper(0.2, "α of MixUp's Beta(α, α)", source="code", low=1e-3)
    lam: float = hyper(0.1, "weight λ of the loss on blended images", source="code")
    decay: float = hyper(0.999, "how slowly the teacher follows", source="code", high=1)
    statistics: Literal["copied", "followed"] = hyper(
        "copied",
        "running statistics of the teacher: the student's, or followed as slowly as the weights",
        source="code; followed: ours",
    )
    counted: Literal["drawn", "all"] = hyper(
        "drawn",
        "annotators' positives in q: of the images drawn in a round, or of all a site has",
        source="code; all: Sec. 2.4",
    )
    floor: float = hyper(0.0, "least count of a label a site marks", source="ours; 0: Eq. 7")

    card: ClassVar = Card(
        title="Scale Federated Learning for Label Set Mismatch in Medical Image Classification",
        authors="Z. Deng, L. Luo, H. Chen",
        venue="MICCAI",
        year=2023,
        bibtex="""@inproceedings{deng2023fedlsm,
  title={Scale Federated Learning for Label Set Mismatch in Medical Image Classification},
  author={Deng, Zhipeng and Luo, Luyang and Chen, Hao},
  booktitle={Medical Image Computing and Computer Assisted Intervention},
  year={2023}
}""",
        summary="label sets that differ: pseudo labels by uncertainty, rows by their counts",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation, and labels that no site marks."""
        if federation.task != "classification":
            return "classifies images, and this is a segmentation task"
        marked = {label for site in federation.sites for label in federation.annotated_by(site)}
        missing = [label for label in federation.labels if label not in marked]
        return (
            f"needs every label marked somewhere; nobody marks {listing(missing)}"
            if missing
            else None
        )

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Train everywhere: pseudo labels need no annotation."""
        return True

    def unmet_by(self, training: Training) -> str | None:
        """Refuse a batch that blended images would fill."""
        if self._batch(training) > 0:
            return None
        told = f"takes {self.mixed} blended images out of a batch (method.included), but training.batch is "
        return f"{told}{training.batch}; raise it above method.mixed, or lower method.mixed"

    def introduce(self, site: Site) -> Intro:
        """Count what is marked, where class weights are made of it."""
        if excludes(site):
            return Intro(None)
        counts = label_counts(site.train.target, site.train.known_labels)
        return Intro(torch.stack(counts).cpu() * site.marks)

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin from the common weights."""
        labels, marked = start.federation.labels, start.federation.annotated_by
        sets = {s: tuple(labels.index(m) for m in marked(s)) for s in start.federation.sites}
        server = Server(start.weights, start.groups, sets, {}, (), {}, labels)
        for site, intro in intros.items():
            server = self.admit(server, site, intro)
        return server

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Count a site, and tell all that told their counts the new class weights."""
        intros = {**server.intros, site: intro}
        waiting = tuple(name for name, told in intros.items() if told.counts is not None)
        return replace(server, intros=intros, waiting=waiting)

    def broadcast(self, server: Server, site: str) -> Begin | Down:
        """Send the weights, with the class weights where they are missing."""
        if site not in server.waiting:
            return Down(server.weights)
        told = [intro.counts for intro in server.intros.values() if intro.counts is not None]
        positives, negatives = torch.stack(told).sum(0).float()
        return Begin(server.weights, negatives_over_positives(positives, negatives))

    def local_update(
        self, down: Begin | Down, memory: Memory | None, site: Site
    ) -> tuple[Up, Memory]:
        """Part the images, then learn from labels, sure pseudo labels and blends."""
        if isinstance(down, Begin):
            memory = Memory(down.positive_weight)
        memory = memory or Memory(None)
        site.load(down.weights)
        site.load(down.weights, "teacher")
        teacher = site.bench.network("teacher")
        weight = told_or_own(site, memory.positive_weight)
        undo = weight if self.unweighted else None
        sizes = (self.uncertain, self.confident)
        parts = part_by_uncertainty(site, *sizes, undo) if self.uncertainty else everyone(site)
        lesson = Lesson(
            site,
            teacher,
            parts,
            self._terms(weight, site),
            sure=Thresholds(self.tau, self.tau_positive, self.tau_negative),
            looser=Thresholds(self.mix_positive, self.mix_positive, self.mix_negative),
            blend=Blend(self.mixed, self.alpha, self.lam) if self.enhance else None,
            undo=undo,
            everything=self.counted == "all",
        )
        train_locally(
            site,
            lesson.loss,
            only=parts.stream,
            after_step=lambda: follow(teacher, site.network, self.decay, self.statistics),
            settings=site.training.without_augmentation().model_copy(  # it makes its own views
                update={"batch": self._batch(site.training)}
            ),
        )
        return Up(site.weights(), len(site.train), lesson.positives()), memory

    def aggregate(self, server: Server, ups: Mapping[str, Up]) -> Server:
        """Average features by images and each label's row by how many images show it (Eq. 7)."""
        images = {site: float(up.images) for site, up in ups.items()}
        shares: dict[str, Shares] = dict.fromkeys(server.groups, images)
        shares["head"] = self._rows(server, ups, images)
        updates = {site: up.weights for site, up in ups.items()}
        weights = reduce(server.weights, updates, shares, server.groups)
        total = sum(images.values())
        last = {site: count / total for site, count in images.items()}
        waiting = tuple(site for site in server.waiting if site not in ups)
        positives = {site: up.positives for site, up in ups.items()}
        return replace(server, weights=weights, waiting=waiting, last=last, positives=positives)

    def model_for(self, down: Begin | Down, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average of the features."""
        return server.last

    def counts(self, server: Server) -> Mapping[str, Mapping[str, int]]:
        """Return q: by site and label, the images taken to show it, by label or pseudo label."""
        found = server.positives.items()
        return {site: dict(zip(server.labels, q.tolist(), strict=True)) for site, q in found}

    def _batch(self, training: Training) -> int:
        """Return how many images a batch has besides those blended."""
        return training.batch - self.mixed * (self.enhance and self.included)

    def _terms(self, weight: Tensor | None, site: Site) -> Terms:
        there = None if weight is None else weight.to(site.bench.device)
        return Terms(ClassWeights.read(self.weighted, there), self.soft, self.together)

    def _rows(self, server: Server, ups: Mapping[str, Up], images: dict[str, float]) -> Shares:
        marks = {s: np.isin(np.arange(len(u.positives)), server.marked[s]) for s, u in ups.items()}
        if not self.adaptive:
            return masked_shares(images, marks)
        counts = {site: up.positives.numpy() for site, up in ups.items()}
        return proxy_shares(counts, images, marks, self.floor)
