"""FedPSL (Dong et al., IEEE TMI 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.labels.usable import without_usable_labels
from consilia.methods.averaging import (
    Down,
    Intro,
    Memory,
    Server,
    averaged,
    count_labels,
    counted_images,
)
from consilia.methods.contract import Card, Method, Start, hyper
from consilia.ops.bilevel import Adam, Move, Named, Plain, adam_rates, inner_step, outer_gradient
from consilia.ops.losses import ClassWeights
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.local import Step, train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.scores import Scores
from consilia.training.settings import Training
from consilia.training.site import Site, Workbench


@dataclass(frozen=True)
class Up:
    """Leaves a site: its trained weights, and nothing else; its counts came with the introduction."""

    weights: Annotated[Weights, Group()]


@final
@dataclass(frozen=True)
class FedPSL(Method[Intro, Server, Down, Up, Memory]):
    """A label's row is taught by who marks it; features are judged on images that did not train them.

    Without decoupling it is FedAvg on known labels with rows by labelled counts; where every site
    marks every label as well, FedAvg to the bit.
    """

    rows: Literal["all", "labelled"] = hyper(
        "labelled",
        "task-dependent aggregation: a label's output row by labelled counts, or all rows by images",
        source="Eq. 9; Table II, ablation",
    )
    counted: Literal["trained", "all"] = hyper(
        "trained",
        "which images make up n_k: those a site trains on, or all it has",
        source="Sec. V-B; `all`: FedLSM Sec. 2.1",
    )
    decoupled: bool = hyper(
        True, "task-agnostic decoupling learning", source="Algorithm 1; Table II, ablation"
    )
    second_order: bool = hyper(
        True,
        "whether the features' gradient runs through the virtual step",
        source="Eq. 11; false: ours, cheaper",
    )
    alpha: float = hyper(1e-3, "size α of the virtual step", source="Sec. VII-D")
    virtual: Literal["plain", "adam", "higher"] = hyper(
        "plain",
        "the virtual step: α times the gradient, divided as Adam divides its real steps, or all of "
        "Adam's, with the head's in the graph",
        source="Algorithm 1, line 6; adam, higher: other readings of Sec. VII-D",
    )
    weighted: Literal["none", "positive", "entry"] = hyper(
        "positive",
        "class weights: of what is present, of all that is said of a label, or none",
        source="Sec. VII-D; entry: another reading of it",
    )

    card: ClassVar = Card(
        title="Federated Partially Supervised Learning with Limited Decentralized Medical Images",
        authors="N. Dong, M. Kampffmeyer, I. Voiculescu, E. Xing",
        venue="IEEE Transactions on Medical Imaging",
        year=2023,
        bibtex="""@article{dong2023fedpsl,
  title={Federated Partially Supervised Learning with Limited Decentralized Medical Images},
  author={Dong, Nanqing and Kampffmeyer, Michael and Voiculescu, Irina and Xing, Eric},
  journal={IEEE Transactions on Medical Imaging},
  volume={42},
  number={7},
  pages={1944--1954},
  year={2023}
}""",
        summary="label sets that differ, few images: rows by labelled counts, bi-level features",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation, and a federation in which no site marks anything."""
        if federation.task != "classification":
            return "classifies images, and this is a segmentation task"
        if len(without_usable_labels(federation)) == len(federation.site):
            return "needs at least one site that marks a label; none does"
        return None

    def unmet_by(self, training: Training) -> str | None:
        """Refuse another optimizer than the one whose step is thought of."""
        if training.optimizer == "adam" or self.virtual != "higher" or not self.decoupled:
            return None
        return (
            "thinks of a step of Adam (method.virtual is 'higher'), but training.optimizer is "
            f"'{training.optimizer}'; set it to 'adam', or method.virtual to 'plain'"
        )

    def introduce(self, site: Site) -> Intro:
        """Count the images that count, and labelled ones per label."""
        told = count_labels(site)
        return replace(told, images=counted_images(site, told.images, self.counted))

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin from the common weights."""
        return Server(start.weights, start.groups, start.head_rows, dict(intros), {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note the counts of a site that joins late."""
        return replace(server, intros={**server.intros, site: intro})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train only where there is something to train on."""
        return tuple(site for site in present if server.intros[site].images)

    def broadcast(self, server: Server, site: str) -> Down:
        """Send every site the same weights."""
        return Down(server.weights)

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Train on known labels, weighted by class; decoupled, or features and head at once."""
        site.load(down.weights)
        weights = site.weighed(self.weighted)
        with untaught_rows_stay(site, "masked"):
            train_locally(
                site,
                site.objective(coupled, weights=weights),
                step=self._decoupled(site, weights) if self.decoupled else None,
            )
        return Up(site.weights()), Memory()

    def aggregate(self, server: Server, ups: Mapping[str, Up]) -> Server:
        """Average features by images and each label's row by its labelled counts (Eq. 9)."""
        images = {site: float(server.intros[site].images) for site in ups}
        return averaged(server, {s: up.weights for s, up in ups.items()}, images, self.rows)

    def model_for(self, down: Down, memory: Memory | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average of the features."""
        return server.last

    def _decoupled(self, site: Site, weights: ClassWeights) -> Step:
        """Return the update of Algorithm 1, lines 5-9: head by one half batch, body by the other."""
        scores = Scores(site.learner, site.network)
        of_head = set(site.bench.groups["head"])
        parameters = dict(site.network.named_parameters())
        head = {name: p for name, p in parameters.items() if name in of_head}
        body = {name: p for name, p in parameters.items() if name not in of_head}

        def loss(half: Batch, tensors: Named) -> Tensor:
            with site.bench.arithmetic():
                return site.learner.loss_of(scores.at(tensors, half.image), half, weights)

        def step(batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
            fit, check = halves(batch)
            # The head moves before the second gradient runs through the first: use a copy of it.
            before = {name: p.detach().clone().requires_grad_() for name, p in head.items()}
            inner = inner_step(
                lambda b, h: loss(fit, {**b, **h}),
                body,
                before,
                self._virtual(parameters, optimizer),
                self.second_order,
                through_head=self.virtual == "higher",
            )
            for name, p in head.items():
                p.grad = laid_like(p, inner.head_gradient[name])
            optimizer.step()
            optimizer.zero_grad()
            # The statistics of this half are thrown away.
            others = inner.judged_with(head)
            others |= {name: b.clone() for name, b in site.network.named_buffers()}
            gradient = outer_gradient(
                lambda b: loss(check, {**b, **others}), inner, body, self.second_order
            )
            for name, p in body.items():
                p.grad = laid_like(p, gradient[name])
            optimizer.step()
            return inner.loss

        return step

    def _virtual(self, parameters: Named, optimizer: torch.optim.Optimizer) -> Move:
        """Return the virtual step, which goes by what the optimizer remembers at this moment."""
        if self.virtual == "plain":
            return Plain(self.alpha)
        if self.virtual == "adam":
            return Plain(adam_rates(parameters, optimizer, self.alpha))
        return Adam.of(optimizer, parameters, self.alpha)


def coupled(bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
    """Return the weighted loss of known labels, for features and head at once."""
    return bench.task_loss(batch, held)


def laid_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Return a gradient laid out in memory as its parameter, which a fused optimizer relies on."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return the two halves of a shuffled batch; a single image is both."""
    if len(batch) == 1:
        return batch, batch
    positions = torch.arange(len(batch), device=batch.image.device)
    cut = (len(batch) + 1) // 2
    return batch.take(positions[:cut]), batch.take(positions[cut:])
