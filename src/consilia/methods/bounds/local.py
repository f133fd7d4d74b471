"""Local training: each site alone, the bound that every federation has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor

from consilia.declare import Federation
from consilia.errors import RunError
from consilia.labels.usable import without_usable_labels
from consilia.methods.contract import Card, Method, Panel, Start, hyper
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site, Workbench

Model = Annotated[Weights, Group()]


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: how many images it can train on."""

    images: int


@dataclass(frozen=True)
class Server:
    """Stays at the server: the common start, who trains, and the models that sites lend to others."""

    start: Weights
    images: Mapping[str, int]
    begun: tuple[str, ...]
    lends: bool
    lent: Mapping[str, Weights]


@dataclass(frozen=True)
class Alone:
    """Travels to a site that can train: the start weights, the first time only."""

    start: Model | None
    lend: bool


@dataclass(frozen=True)
class Borrow:
    """Travels to whoever has no labels of its own: the models of the sites that have."""

    models: tuple[Model, ...]


@dataclass(frozen=True)
class Kept:
    """Leaves a site: how many images trained, and its mean loss; no weights."""

    images: int
    loss: float


@dataclass(frozen=True)
class Lent:
    """Leaves a site only where others have no labels: its model, for scoring there."""

    weights: Model
    images: int
    loss: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its own weights."""

    own: Model


@final
@dataclass(frozen=True)
class Local(Method[Intro, Server, Alone | Borrow, Kept | Lent, Memory]):
    """Train every site alone from the same start (FedMix Sec. IV-B, "LL").

    A site without usable labels, and a test set that no site owns, are scored with the mean of the
    labelled sites' models' scores.
    """

    unknown: Literal["negative", "masked"] = hyper(
        "masked",
        "what a label that a site does not mark means in its loss",
        source="ours; as `central`",
    )

    card: ClassVar = Card(
        title="Local training",
        authors="",
        venue="",
        year=0,
        bibtex="",
        summary="each site alone: the lower bound",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse a federation in which no site can train."""
        if len(without_usable_labels(federation)) == len(federation.site):
            return "needs at least one site whose annotations mark pixels or images; none does"
        return None

    def introduce(self, site: Site) -> Intro:
        """Count usable images."""
        return Intro(len(site.train.supervised()))

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Give all sites the same start, and ask for models only where somebody needs them."""
        images = {site: intro.images for site, intro in intros.items()}
        lends = start.federation.test is not None or bool(without_usable_labels(start.federation))
        return Server(start.weights, images, (), lends, {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note a site that joins late."""
        return replace(server, images={**server.images, site: intro.images})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train only where there is something to train on."""
        return tuple(site for site in present if server.images[site])

    def broadcast(self, server: Server, site: str) -> Alone | Borrow:
        """Send the start once, or the others' models to a site that has none."""
        if server.images.get(site, 0):
            return Alone(None if site in server.begun else server.start, server.lends)
        return Borrow(tuple(server.lent[name] for name in sorted(server.lent)))

    def local_update(
        self, down: Alone | Borrow, memory: Memory | None, site: Site
    ) -> tuple[Kept | Lent, Memory]:
        """Go on from the site's own weights."""
        assert isinstance(down, Alone)
        site.load(memory.own if memory else _start(down))
        with untaught_rows_stay(site, self.unknown):
            trained = train_locally(site, site.objective(self.task))
        own = site.weights()
        if down.lend:
            return Lent(own, trained.images, trained.loss), Memory(own)
        return Kept(trained.images, trained.loss), Memory(own)

    def aggregate(self, server: Server, ups: Mapping[str, Kept | Lent]) -> Server:
        """Keep what was lent; average nothing."""
        lent = {site: dict(up.weights) for site, up in ups.items() if isinstance(up, Lent)}
        begun = tuple(sorted({*server.begun, *ups}))
        return replace(server, begun=begun, lent={**server.lent, **lent})

    def model_for(self, down: Alone | Borrow, memory: Memory | None, site: Site) -> Weights | Panel:
        """Use the site's own weights, or all that were lent."""
        if isinstance(down, Borrow):
            return Panel(down.models)
        return memory.own if memory else _start(down)

    def task(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss of a batch, as the switch `unknown` reads it."""
        seen = batch.unknown_as_negative() if self.unknown == "negative" else batch
        return bench.task_loss(seen, held)


def _start(down: Alone) -> Weights:
    if down.start is None:
        msg = "this site has lost the model it was training; run it again from round 1"
        raise RunError(msg)
    return down.start
