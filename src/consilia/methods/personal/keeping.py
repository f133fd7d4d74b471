"""The base of methods that keep part of the network at each site and average the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from torch import Tensor

from consilia.declare import Federation
from consilia.errors import RunError, listing
from consilia.labels.usable import without_usable_labels
from consilia.methods.contract import Method, Panel, Start, hyper
from consilia.ops.reduce import reduce
from consilia.payload import Group, Weights, picked, united
from consilia.training.batch import Batch
from consilia.training.site import Site, Workbench


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: how many images it can train on."""

    images: int


@dataclass(frozen=True)
class Server:
    """Stays at the server: the averaged part, the first values of the rest, and who has begun."""

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    images: Mapping[str, int]
    begun: tuple[str, ...]
    last: Mapping[str, float]


@dataclass(frozen=True)
class Welcome:
    """Travels to a site with nothing of its own: the averaged part, and the first values of the rest."""

    weights: Annotated[Weights, Group()]


State = TypeVar("State")
Sent = TypeVar("Sent")
Reply = TypeVar("Reply")
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Personal(Method[Intro, State, Sent, Reply, Kept]):
    """What all methods share whose sites each train a model of their own."""

    unknown: Literal["negative", "masked"] = hyper(
        "negative", "what a label that a site does not mark means in its loss", source="as `fedavg`"
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse sites that could not train a model of their own, and a test set that no site owns."""
        idle = without_usable_labels(federation)
        if idle:
            return (
                "gives each site a model that it trains itself, so every site needs annotations that "
                f"mark pixels or images; {listing(idle)} has none"
            )
        if federation.test is not None:
            return (
                "gives each site a model of its own, so it has none for the common test set "
                f"'{federation.test}'"
            )
        return None

    def introduce(self, site: Site) -> Intro:
        """Count usable images."""
        return Intro(len(site.train.supervised()))

    def seen(self, batch: Batch) -> Batch:
        """Return the batch as the switch `unknown` reads it."""
        return batch.unknown_as_negative() if self.unknown == "negative" else batch

    def task(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss of a batch, as the switch `unknown` reads it."""
        return bench.task_loss(self.seen(batch), held)


@dataclass(frozen=True)
class Keeping(Personal[Server, Any, Any, Any]):
    """Average what is shared by number of images; what is kept never leaves its site.

    Subclasses name the groups they keep and declare their own messages, since these say what travels.
    """

    @property
    @abstractmethod
    def keeps(self) -> tuple[str, ...]:
        """Return the parameter groups that stay at a site."""

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin from the common weights."""
        images = {site: intro.images for site, intro in intros.items()}
        return Server(start.weights, start.groups, images, (), {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note a site that joins late."""
        return replace(server, images={**server.images, site: intro.images})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train only where there is something to train on."""
        return tuple(site for site in present if server.images[site])

    def share_of(self, up: Any) -> float:
        """Return the number of images."""
        return float(up.images)

    def aggregate(self, server: Server, ups: Mapping[str, Any]) -> Server:
        """Average the shared groups by number of images."""
        images = {site: self.share_of(up) for site, up in ups.items()}
        shared = [group for group in server.groups if group not in self.keeps]
        updates = {site: up.weights for site, up in ups.items()}
        return replace(
            server,
            weights=reduce(server.weights, updates, dict.fromkeys(shared, images), server.groups),
            begun=tuple(sorted({*server.begun, *ups})),
            last={site: count / sum(images.values()) for site, count in images.items()},
        )

    def model_for(self, down: Any, memory: Any, site: Site) -> Weights | Panel:
        """Use the averaged part with the site's own; who is no site has no model."""
        if site.name not in site.federation.sites:
            return Panel(())
        return joined(down, memory)

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.last

    def shared(self, server: Server) -> Weights:
        """Return what every site gets of the averaged network."""
        groups = server.groups.items()
        return picked(
            server.weights,
            [name for group, names in groups if group not in self.keeps for name in names],
        )


def joined(down: Any, memory: Any, first: type[Any] = Welcome) -> Weights:
    """Return the weights that came with what a site remembers of its own part; `first` brings all."""
    if memory is not None:
        return united(down.weights, memory.own)
    if not isinstance(down, first):
        msg = "this site has lost its own part of the model; run it again from round 1"
        raise RunError(msg)
    weights: Weights = down.weights
    return weights
