"""FedNoRo (Wu et al., IJCAI 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from consilia.methods.averaging import Memory, Up
from consilia.methods.contract import Card, Start, hyper
from consilia.methods.incomplete.one_label import Intro, OneLabel
from consilia.ops.distance import distance_shares, distances_to_clean
from consilia.ops.losses import marginal_cross_entropy
from consilia.ops.mixture import high_among
from consilia.ops.ramp import gaussian_ramp
from consilia.ops.reduce import reduce_whole
from consilia.ops.robust import class_offsets, distilled_loss, pixel_losses, two_rows
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss, train_locally
from consilia.training.site import Site, Workbench

Model = Annotated[Weights, Group()]
TEACHER = "teacher"


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global weights, how far the run is, and who is taken to be noisy.

    Attributes:
        warmup: Rounds of warm-up left.
        robust: Rounds of the second stage that are over.
        losses: Of each site that has told them: the mean loss of background and of label.
        noisy: The sites whose losses are high.
    """

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    warmup: int
    robust: int
    losses: Mapping[str, tuple[float | None, float | None]]
    noisy: tuple[str, ...]
    last: Mapping[str, float]


@dataclass(frozen=True)
class Warm:
    """Travels to a site in the warm-up, and once after it: the weights, and whether to tell losses."""

    weights: Model
    judge: bool


@dataclass(frozen=True)
class Robust:
    """Travels to a site in the second stage: the weights, and how far to trust them over its labels."""

    weights: Model
    trust: float


@dataclass(frozen=True)
class Judged:
    """Leaves a site once, after the warm-up: the same, and the received model's mean loss per class.

    A class that a site has no pixel of is missing.
    """

    weights: Model
    images: int
    loss: float
    background: float | None
    label: float | None


@final
@dataclass(frozen=True)
class FedNoRo(OneLabel[Server, Warm | Robust, Up | Judged, Memory]):
    """Find noisy sites by their loss per class; let the global model teach them, and trust them less.

    With a warm-up of all rounds and `adjust = 0` it is FedAvg on the cross-entropy.
    """

    warmup: int = hyper(
        10, "rounds of warm-up", source="FedIA, supplement, Table 1 (MS; LUNG uses 20)"
    )
    ramp: int = hyper(39, "rounds over which trust grows", source="authors' code: 10 to 49")
    trust: float = hyper(
        0.8, "largest weight of the global model against labels", source="authors' code", high=1
    )
    temperature: float = hyper(
        0.8, "temperature of the global model's probabilities", source="authors' code", low=0.01
    )
    adjust: float = hyper(
        1.0, "strength of the logit adjustment; 0: none", source="authors' code: tau"
    )

    VOTES: ClassVar = 9  # starts of the mixture, in the authors' code

    card: ClassVar = Card(
        title="FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and "
        "Label Noise Heterogeneity",
        authors="N. Wu, L. Yu, X. Jiang, K.-T. Cheng, Z. Yan",
        venue="IJCAI",
        year=2023,
        bibtex="""@inproceedings{wu2023fednoro,
  title={{FedNoRo}: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and
         Label Noise Heterogeneity},
  author={Wu, Nannan and Yu, Li and Jiang, Xuefeng and Cheng, Kwang-Ting and Yan, Zengqiang},
  booktitle={Proceedings of the International Joint Conference on Artificial Intelligence},
  pages={4424--4432},
  year={2023}
}""",
        summary="find noisy sites by their loss per class, teach them, and trust them by distance",
    )

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin with the warm-up."""
        return Server(start.weights, start.groups, self.warmup, 0, {}, (), {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Need nothing yet of a site that joins late; it is asked for its losses in its turn."""
        return server

    def broadcast(self, server: Server, site: str) -> Warm | Robust:
        """Send the weights, and by the message's type the stage."""
        if server.warmup or site not in server.losses:
            return Warm(server.weights, judge=not server.warmup)
        taught = site in server.noisy
        grown = gaussian_ramp(server.robust, self.ramp)
        return Robust(server.weights, self.trust * grown if taught else 0.0)

    def local_update(
        self, down: Warm | Robust, memory: Memory | None, site: Site
    ) -> tuple[Up | Judged, Memory]:
        """Train on labels, or on labels and the global model; tell the losses where asked."""
        site.load(down.weights)
        judged = self.judge(site) if isinstance(down, Warm) and down.judge else None
        trust = down.trust if isinstance(down, Robust) else 0.0
        if trust:
            site.load(down.weights, TEACHER)
            site.bench.network(TEACHER).eval()
        trained = train_locally(site, self.loss(site, trust))
        told = (site.weights(), trained.images, trained.loss)
        return (Up(*told) if judged is None else Judged(*told, *judged)), Memory()

    def aggregate(self, server: Server, ups: Mapping[str, Up | Judged]) -> Server:
        """Average by images, in the second stage also by distance to clean sites."""
        images = {site: float(up.images) for site, up in ups.items()}
        updates = {site: up.weights for site, up in ups.items()}
        shares = distance_shares(images, distances_to_clean(updates, server.noisy))
        weights, last = reduce_whole(server.weights, updates, shares, server.groups)
        told = {s: (up.background, up.label) for s, up in ups.items() if isinstance(up, Judged)}
        losses = {**server.losses, **told}
        return replace(
            server,
            weights=weights,
            warmup=max(0, server.warmup - 1),
            robust=server.robust + bool(server.losses),
            losses=losses,
            noisy=high_among(losses, self.VOTES) if told else server.noisy,
            last=last,
        )

    def model_for(self, down: Warm | Robust, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def judge(self, site: Site) -> tuple[float | None, float | None]:
        """Return the mean cross-entropy over background pixels and over label pixels."""
        y = site.train.target > 0
        each = pixel_losses(site.foreground(), y)
        parts = [each[~y], each[y]]
        background, label = (float(part.mean()) if len(part) else None for part in parts)
        return background, label

    def loss(self, site: Site, trust: float) -> Loss:
        """Return what a site minimises: its labels' loss, or also how far it is from its teacher."""
        marked = (site.train.target > 0).sum()
        counts = torch.stack((site.train.target.numel() - marked, marked)).float()
        held = {"offsets": self.adjust * class_offsets(counts)[:, None, None]}
        if not trust:
            return site.objective(self.labelled, held)
        return site.objective(self.taught, {**held, "trust": torch.tensor(trust)})

    def labelled(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the cross-entropy of adjusted scores."""
        scores = self._adjusted(bench, batch, held)
        return marginal_cross_entropy(scores, batch.target, batch.known_pixels)

    def taught(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the distilled loss; the teacher's part in it grows from round to round."""
        with torch.no_grad():
            logits = two_rows(bench.learner.logits(bench.network(TEACHER), batch.image))
        soft = (logits / self.temperature).softmax(1)
        scores = self._adjusted(bench, batch, held)
        return distilled_loss(scores, batch.target, soft, held["trust"], batch.known_pixels)

    def _adjusted(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        logits = two_rows(bench.learner.logits(bench.network(), batch.image))
        return logits + held["offsets"] if self.adjust else logits
