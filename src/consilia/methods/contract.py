"""The contract of a method: read this first.

A method is a frozen dataclass whose fields are its hyper-parameters. It keeps no state: what the
server knows is handed to it and handed back, and so is what a site remembers. Its moments, in order
of time:

======================  ==========  =======================================================
`introduce`             at a site   once, before its first round: what the server may know of it
`start`                 server      the first server state
`admit`                 server      a site that joins later
`invite`                server      who takes part in the next round
`broadcast`             server      what travels to a site
`local_update`          at a site   training; what leaves the site, and what it remembers
`aggregate`             server      the next server state
`model_for`             at a site   the weights it evaluates and predicts with
======================  ==========  =======================================================

What leaves a site is a *type*: the return annotations of `introduce` and `local_update`. Messages may
be unions of dataclasses, one member per phase. The engine reads these annotations (`wire_of`), checks
every message against them at both ends, and writes each field to the ledger.

A loss is a pure method of the class, wrapped with the tensors it reads: `site.objective(self.near,
held=...)`. Then a GPU records the training step once for all sites and rounds (`training/capture.py`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torch import Tensor

from consilia.declare import Federation
from consilia.labels.usable import has_usable_labels
from consilia.payload import Weights
from consilia.training.learner import Learner
from consilia.training.settings import Training
from consilia.training.site import Site

Intro = TypeVar("Intro")
Server = TypeVar("Server")
Down = TypeVar("Down")
Up = TypeVar("Up")
Memory = TypeVar("Memory")


@dataclass(frozen=True)
class Card:
    """Where a method comes from, and how to cite it."""

    title: str
    authors: str
    venue: str
    year: int
    bibtex: str
    summary: str


def hyper(
    default: Any, meaning: str, *, source: str, low: float | None = 0, high: float | None = None
) -> Any:
    """Return a dataclass field for a hyper-parameter: its value, its meaning and where it is from.

    Args:
        default: The value, the paper's where it gives one.
        meaning: What it does, with the paper's symbol.
        source: A place in the paper, a line in the authors' code, or "ours" with a reason.
        low: The least a number may be; `None` for no bound.
        high: The most a number may be.
    """
    told = {"meaning": meaning, "source": source, "low": low, "high": high}
    return dataclasses.field(default=default, metadata=told)


@dataclass(frozen=True)
class Panel:
    """Several models of equal standing, for a site that has none of its own: scores are averaged."""

    models: tuple[Weights, ...]


@dataclass(frozen=True)
class Start:
    """What a run starts from, besides the introductions.

    Attributes:
        weights: The common first weights of the main network.
        draw: Returns the first weights of a further network by name; always drawn from the run's
            seed, also where the main ones are read from a file.
        groups: The names of the tensors in each parameter group.
        head_rows: For each output row of group `head`, the label it predicts; `None` is background.
        rounds: How many rounds the run has.
        seed: The run's seed, for what the server draws at random.
    """

    weights: Weights
    draw: Callable[[str], Weights]
    groups: Mapping[str, tuple[str, ...]]
    head_rows: tuple[int | None, ...]
    federation: Federation
    rounds: int
    seed: int = 0


@dataclass(frozen=True)
class Findings:
    """What the server learned about the sites besides a model, for the report.

    Attributes:
        affinity: How alike it holds two sites, by their names.
        maps: Small maps `(h, w)` that were learned, by name.
    """

    affinity: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    maps: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


class Method(ABC, Generic[Intro, Server, Down, Up, Memory]):
    """The moments of a federated run. Concrete methods are final."""

    #: "pooled": the central baselines, which see one site that holds all; never across hospitals.
    data: ClassVar[Literal["own", "pooled"]] = "own"
    #: "full": trained as if every site had marked everything (the oracle).
    labels: ClassVar[Literal["declared", "full"]] = "declared"
    card: ClassVar[Card]

    def unmet(self, federation: Federation) -> str | None:
        """Return why this method cannot serve a federation, in one sentence, or `None` if it can."""
        return None

    def unmet_by(self, training: Training) -> str | None:
        """Return why sites cannot train as a run file says, in one sentence, or `None` if they can."""
        return None

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Return whether a site's images will be trained on: by default where a target is usable."""
        return has_usable_labels(federation, site)

    def learner(self, chosen: Learner) -> Learner:
        """Return what learns: by default what the run file chose."""
        return chosen

    @abstractmethod
    def introduce(self, site: Site) -> Intro:
        """Return what the server may know about a site before its first round."""

    @abstractmethod
    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Return the first server state."""

    @abstractmethod
    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Return the server state after a site has joined late."""

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of the present sites take part in the next round."""
        return present

    @abstractmethod
    def broadcast(self, server: Server, site: str) -> Down:
        """Return what travels to a site."""

    @abstractmethod
    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Train at a site; return what leaves it and what it remembers."""

    @abstractmethod
    def aggregate(self, server: Server, ups: Mapping[str, Up]) -> Server:
        """Return the next server state; sites may be missing."""

    def share_of(self, up: Up) -> float | None:
        """Return what a reply counts in a mean of whole replies, if nothing but the reply decides that.

        Then replies of many sites are summed as they come, and `aggregate`, which must average with these
        very shares, finds weights that only the reducer can read. By default `aggregate` reads them all.
        """
        return None

    @abstractmethod
    def model_for(self, down: Down, memory: Memory | None, site: Site) -> Weights | Panel:
        """Return the weights a site evaluates and predicts with."""

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average, for the log; empty where there was none."""
        return {}

    def counts(self, server: Server) -> Mapping[str, Mapping[str, int]]:
        """Return what each site counted per label in the last round, for the log; empty where none did."""
        return {}

    def findings(self, server: Server) -> Findings:
        """Return what the server learned about the sites, for the report."""
        return Findings()

    def following(self, memory: Memory) -> Weights:
        """Return how far each number of a site's model follows the server, where that is learned."""
        return {}


@dataclass(frozen=True)
class Wire:
    """The types of everything that is sent or kept."""

    intro: Any
    server: Any
    down: Any
    up: Any
    memory: Any

    @staticmethod
    def members(kind: Any) -> tuple[Any, ...]:
        """Return the dataclasses a message type may be: itself, or the members of its union."""
        origin = typing.get_origin(kind)
        return typing.get_args(kind) if origin in (typing.Union, types.UnionType) else (kind,)


@cache
def wire_of(method: type[Method[Any, Any, Any, Any, Any]]) -> Wire:
    """Return a method's wire types, as the annotations of its moments declare them."""

    def returned(moment: str) -> Any:
        return typing.get_type_hints(getattr(method, moment), include_extras=True)["return"]

    up, memory = typing.get_args(returned("local_update"))
    return Wire(returned("introduce"), returned("start"), returned("broadcast"), up, memory)


AnyMethod = Method[Any, Any, Any, Any, Any]
