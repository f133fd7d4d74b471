"""The base of methods that average whole models and change only how sites train or how much they count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.labels.usable import without_usable_labels
from consilia.methods.contract import Method, Start, hyper
from consilia.ops.reduce import Shares, parts, reduce
from consilia.payload import Group, Shape, Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss, Trained, train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site, Workbench


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: how many images carry a usable target, and how many know each label."""

    images: int
    labelled: Annotated[Tensor, Shape(("labels",), torch.int64)]


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global weights, who has introduced themselves, and the last shares."""

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    head_rows: tuple[int | None, ...]
    intros: Mapping[str, Intro]
    last: Mapping[str, float]


@dataclass(frozen=True)
class Down:
    """Travels to a site: the global weights."""

    weights: Annotated[Weights, Group()]


@dataclass(frozen=True)
class Up:
    """Leaves a site: its trained weights, how many images count for them, and its mean loss."""

    weights: Annotated[Weights, Group()]
    images: int
    loss: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: nothing."""


Kept = TypeVar("Kept")


@dataclass(frozen=True)
class AveragingBase(Method[Intro, Server, Down, Up, Kept]):
    """Broadcast the global weights and average what comes back; what a site keeps is left open."""

    unknown: Literal["negative", "masked"] = hyper(
        "negative",
        "what a label that a site does not mark means in its loss",
        source="FedLSM Sec. 2.1",
    )
    rows: Literal["all", "labelled"] = hyper(
        "all",
        "which sites teach a label's output row: all, or those that mark it",
        source="all: FedPSL Eq. 6; labelled: FedPSL Eq. 9",
    )
    counted: Literal["trained", "all"] = hyper(
        "trained",
        "which images make up n_k: those a site trains on, or all it has",
        source="FedPSL Sec. V-B; `all`: FedLSM Sec. 2.1",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse a federation in which no site has labels to train on."""
        idle = without_usable_labels(federation)
        if len(idle) == len(federation.site):
            return "needs at least one site whose annotations mark pixels or images; none does"
        return None

    def introduce(self, site: Site) -> Intro:
        """Count usable images and, per label, those whose annotator marks it."""
        return count_labels(site)

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin from the common weights."""
        return Server(start.weights, start.groups, start.head_rows, dict(intros), {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note a site that joins late."""
        return replace(server, intros={**server.intros, site: intro})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train only where there is something to train on."""
        return tuple(site for site in present if server.intros[site].images)

    def broadcast(self, server: Server, site: str) -> Down:
        """Send every site the same weights."""
        return Down(server.weights)

    def aggregate(self, server: Server, ups: Mapping[str, Up]) -> Server:
        """Average each parameter group by its shares."""
        updates = {site: up.weights for site, up in ups.items()}
        return averaged(server, updates, self.image_shares(ups), self.rows)

    def model_for(self, down: Down, memory: Kept | None, site: Site) -> Weights:
        """Use the global weights."""
        return down.weights

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.last

    def seen(self, batch: Batch) -> Batch:
        """Return the batch as the switch `unknown` reads it."""
        return batch.unknown_as_negative() if self.unknown == "negative" else batch

    def task(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss of a batch, as the switch `unknown` reads it."""
        return bench.task_loss(self.seen(batch), held)

    def reply(self, trained: Trained, site: Site) -> Up:
        """Return what leaves a site that has trained."""
        images = counted_images(site, trained.images, self.counted)
        return Up(site.weights(), images, trained.loss)

    def share_of(self, up: Up) -> float | None:
        """Return the number of images, unless rows of the head count by themselves."""
        return float(up.images) if self.rows == "all" else None

    def image_shares(self, ups: Mapping[str, Up]) -> dict[str, float]:
        """Return how much each site counts: by default its number of images."""
        return {site: float(up.images) for site, up in ups.items()}


@dataclass(frozen=True)
class Averaging(AveragingBase[Memory]):
    """Broadcast the global weights, train, average. Subclasses may change the loss and what counts."""

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Start from the global weights and train."""
        site.load(down.weights)
        with untaught_rows_stay(site, self.unknown, self.also_taught(site)):
            trained = train_locally(site, self.loss(down.weights, site), only=self.used(site))
        return self.reply(trained, site), Memory()

    def loss(self, anchor: Weights, site: Site) -> Loss:
        """Return what a site minimises, starting from the global weights `anchor`."""
        return site.objective(self.task)

    def used(self, site: Site) -> Tensor | None:
        """Return the images a site trains on: `None` for those that carry a usable target."""
        return None

    def also_taught(self, site: Site) -> Tensor | None:
        """Return the labels whose rows learn from more than known labels; `None` for none."""
        return None


def count_labels(site: Site) -> Intro:
    """Return how many images carry a usable target and, per label, how many annotators mark it."""
    used = site.train.supervised()
    known = site.train.known_labels
    if known is None:
        labelled = torch.full((site.train.labels,), len(used), dtype=torch.int64)
    else:
        labelled = known[used].sum(0).cpu()
    # With exclusive labels a marked image rules out labels the site never marks; those it does
    # not teach.
    return Intro(len(used), labelled * site.marks)


def counted_images(site: Site, trained: int, counted: Literal["trained", "all"]) -> int:
    """Return a site's n_k: the images it trained on, or all it has if it trained (decision 0022)."""
    return len(site.train) if trained and counted == "all" else trained


def averaged(
    server: Server,
    updates: Mapping[str, Weights],
    images: Mapping[str, float],
    rows: Literal["all", "labelled"],
) -> Server:
    """Return the server with the sites' mean by images; the head's rows by who teaches them, if asked."""
    shares: dict[str, Shares] = dict.fromkeys(server.groups, images)
    if rows == "labelled":
        shares["head"] = row_shares(server, tuple(updates), images)
    weights = reduce(server.weights, updates, shares, server.groups)
    return replace(server, weights=weights, last=parts(images))


def row_shares(server: Server, sites: tuple[str, ...], images: Mapping[str, float]) -> Shares:
    r"""Return the part of each site in each output row: :math:`n_k^c`, its images that know label c.

    FedPSL's task-dependent aggregation (Eq. 9). The background row, which every site teaches, goes by
    images. A row that nobody teaches keeps its previous value.
    """
    return {
        site: np.array(
            [
                images[site] if label is None else float(server.intros[site].labelled[label])
                for label in server.head_rows
            ]
        )
        for site in sites
    }
