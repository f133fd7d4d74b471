"""Fine-tuning (FedLPPA Sec. IV-C, "FT"): FedAvg, then each site trains the final model on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, final

from consilia.declare import Federation
from consilia.methods.averaging import Averaging, Down, Intro, Server, Up
from consilia.methods.contract import Card, Method, Start, hyper
from consilia.payload import Group, Weights
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site


@dataclass(frozen=True)
class TuningServer:
    """Stays at the server: FedAvg's state, and how many rounds are left before tuning begins."""

    averaging: Server
    rounds_to_average: int


@dataclass(frozen=True)
class Tune:
    """Travels to a site in the tuning rounds: the final global weights, for a site that has no own."""

    weights: Annotated[Weights, Group()]


@dataclass(frozen=True)
class Tuned:
    """Leaves a site in the tuning rounds: its mean loss, and no weights."""

    images: int
    loss: float


@dataclass(frozen=True)
class TuningMemory:
    """Stays at a site: its own fine-tuned weights, once tuning has begun."""

    own: Annotated[Weights, Group()] | None


@final
@dataclass(frozen=True)
class FineTune(Method[Intro, TuningServer, Down | Tune, Up | Tuned, TuningMemory]):
    """Average for most of the run; in its last rounds each site goes on alone and keeps its model."""

    unknown: Literal["negative", "masked"] = hyper(
        "negative", "what a label that a site does not mark means in its loss", source="as `fedavg`"
    )
    rows: Literal["all", "labelled"] = hyper(
        "all",
        "which sites teach a label's output row: all, or those that mark it",
        source="as `fedavg`",
    )
    counted: Literal["trained", "all"] = hyper(
        "trained",
        "which images make up n_k: those a site trains on, or all it has",
        source="as `fedavg`",
    )
    tuning: int = hyper(5, "rounds at the end in which sites train alone", source="ours; not given")

    card: ClassVar = Card(
        title="Fine-tuning after federated averaging",
        authors="",
        venue="",
        year=0,
        bibtex="",
        summary="FedAvg, then each site goes on alone",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse what FedAvg refuses."""
        return self._averaging.unmet(federation)

    def introduce(self, site: Site) -> Intro:
        """Introduce a site as FedAvg does."""
        return self._averaging.introduce(site)

    def start(self, start: Start, intros: Mapping[str, Intro]) -> TuningServer:
        """Plan at least one round of averaging."""
        return TuningServer(
            self._averaging.start(start, intros), max(1, start.rounds - self.tuning)
        )

    def admit(self, server: TuningServer, site: str, intro: Intro) -> TuningServer:
        """Note a site that joins late."""
        return replace(server, averaging=self._averaging.admit(server.averaging, site, intro))

    def invite(self, server: TuningServer, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train only where there is something to train on."""
        return self._averaging.invite(server.averaging, present)

    def broadcast(self, server: TuningServer, site: str) -> Down | Tune:
        """Send the global weights, and by the message's type the phase."""
        if server.rounds_to_average:
            return self._averaging.broadcast(server.averaging, site)
        return Tune(server.averaging.weights)

    def local_update(
        self, down: Down | Tune, memory: TuningMemory | None, site: Site
    ) -> tuple[Up | Tuned, TuningMemory]:
        """Train for all, or for oneself."""
        if isinstance(down, Down):
            up, _ = self._averaging.local_update(down, None, site)
            return up, TuningMemory(None)
        site.load(self.model_for(down, memory, site))
        with untaught_rows_stay(site, self.unknown):
            trained = train_locally(site, self._averaging.loss(down.weights, site))
        return Tuned(trained.images, trained.loss), TuningMemory(site.weights())

    def aggregate(self, server: TuningServer, ups: Mapping[str, Up | Tuned]) -> TuningServer:
        """Average while there are weights to average."""
        shared = {site: up for site, up in ups.items() if isinstance(up, Up)}
        if not shared:
            return server
        averaged = self._averaging.aggregate(server.averaging, shared)
        return TuningServer(averaged, server.rounds_to_average - 1)

    def model_for(self, down: Down | Tune, memory: TuningMemory | None, site: Site) -> Weights:
        """Use the site's own weights once it has some."""
        own = memory.own if memory and isinstance(down, Tune) else None
        return down.weights if own is None else own

    def shares(self, server: TuningServer) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return self._averaging.shares(server.averaging) if server.rounds_to_average else {}

    @property
    def _averaging(self) -> Averaging:
        return Averaging(self.unknown, self.rows, self.counted)
