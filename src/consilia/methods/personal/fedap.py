"""FedAP (Lu et al., IEEE Transactions on Big Data 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

from consilia.methods.contract import Card, Panel, Start, hyper
from consilia.methods.personal.keeping import Intro, Personal, joined
from consilia.methods.personal.own_norm import Shared, Up
from consilia.ops.batchnorm import affinity_shares
from consilia.ops.reduce import mixtures, reduce
from consilia.payload import Group, Weights
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site
from consilia.training.taps import norm_statistics


@dataclass(frozen=True)
class Server:
    """Stays at the server: what each site sent last, its statistics, and the mixture made for it.

    Attributes:
        weights: The average over all sites, for those that have none of their own yet.
        latest: The shared part that each site sent last.
        means: The mean of each site's features, by layer; missing until it has measured them.
        deviations: Their standard deviation.
        models: Each site's own mixture.
        warmup: Rounds left before statistics are asked for.
    """

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    images: Mapping[str, int]
    latest: Mapping[str, Weights]
    means: Mapping[str, Weights]
    deviations: Mapping[str, Weights]
    models: Mapping[str, Weights]
    warmup: int
    last: Mapping[str, float]


@dataclass(frozen=True)
class Welcome:
    """Travels to a site that has not trained yet: the averaged part, and the first values of the rest."""

    weights: Annotated[Weights, Group()]
    measure: bool


@dataclass(frozen=True)
class Down:
    """Travels to a site: everything but the normalisation layers, mixed for this site."""

    weights: Shared
    measure: bool


@dataclass(frozen=True)
class Measured:
    """Leaves a site once, after the warm-up: the same with the statistics of its features.

    One mean and one standard deviation for each channel that enters a normalisation layer of the
    encoder, over all its images.
    """

    weights: Shared
    images: int
    loss: float
    means: Weights
    deviations: Weights


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its normalisation layers, statistics included."""

    own: Annotated[Weights, Group(("norm",))]


@final
@dataclass(frozen=True)
class FedAP(Personal[Server, Welcome | Down, Up | Measured, Memory]):
    """Mix for each site the models of those whose features are distributed as its own.

    The warm-up is FedBN. With `momentum = 1` and no warm-up it is local training.
    """

    momentum: float = hyper(
        0.5, "a site's part m in its own mixture", source="authors' code", high=1
    )
    warmup: int = hyper(
        15,
        "rounds of FedBN before features are compared",
        source="FedLPPA's code: 150 iterations, here of 10 a round",
    )

    card: ClassVar = Card(
        title="Personalized Federated Learning with Adaptive Batchnorm for Healthcare",
        authors="W. Lu, J. Wang, Y. Chen, X. Qin, R. Xu, D. Dimitriadis, T. Qin",
        venue="IEEE Transactions on Big Data",
        year=2022,
        bibtex="""@article{lu2022personalized,
  title={Personalized Federated Learning with Adaptive Batchnorm for Healthcare},
  author={Lu, Wang and Wang, Jindong and Chen, Yiqiang and Qin, Xin and Xu, Renjun and
          Dimitriadis, Dimitrios and Qin, Tao},
  journal={IEEE Transactions on Big Data},
  year={2022}
}""",
        summary="for each site a mixture of the models of sites with like features",
    )

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin from the common weights, with the warm-up."""
        images = {site: intro.images for site, intro in intros.items()}
        return Server(start.weights, start.groups, images, {}, {}, {}, {}, self.warmup, {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note a site that joins late."""
        return replace(server, images={**server.images, site: intro.images})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train only where there is something to train on."""
        return tuple(site for site in present if server.images[site])

    def broadcast(self, server: Server, site: str) -> Welcome | Down:
        """Send a site its mixture, and ask for statistics that are due."""
        measure = not server.warmup and site not in server.means
        if site in server.models:
            return Down(server.models[site], measure)
        return Welcome(server.weights, measure)

    def local_update(
        self, down: Welcome | Down, memory: Memory | None, site: Site
    ) -> tuple[Up | Measured, Memory]:
        """Train the mixture together with the site's own layers; measure features where asked."""
        site.load(joined(down, memory, Welcome))
        with untaught_rows_stay(site, self.unknown):
            trained = train_locally(site, site.objective(self.task))
        told = (site.weights("body", "head"), trained.images, trained.loss)
        kept = Memory(site.weights("norm"))
        return (Measured(*told, *norm_statistics(site)) if down.measure else Up(*told)), kept

    def aggregate(self, server: Server, ups: Mapping[str, Up | Measured]) -> Server:
        """Average for all in the warm-up, then mix for each site by affinity."""
        images = {site: float(up.images) for site, up in ups.items()}
        updates = {site: up.weights for site, up in ups.items()}
        shared = dict.fromkeys(("body", "head"), images)
        weights = reduce(server.weights, updates, shared, server.groups)
        told = {site: up for site, up in ups.items() if isinstance(up, Measured)}
        after = replace(
            server,
            weights=weights,
            latest={**server.latest, **{site: dict(up.weights) for site, up in ups.items()}},
            means={**server.means, **{site: dict(up.means) for site, up in told.items()}},
            deviations={
                **server.deviations,
                **{site: dict(up.deviations) for site, up in told.items()},
            },
            warmup=max(0, server.warmup - 1),
            last={site: count / sum(images.values()) for site, count in images.items()},
        )
        return replace(after, models=self._mixed(after))

    def model_for(self, down: Welcome | Down, memory: Memory | None, site: Site) -> Weights | Panel:
        """Use the site's mixture with its own layers; who is no site has no model."""
        return joined(down, memory, Welcome) if site.name in site.federation.sites else Panel(())

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the average of the warm-up; mixtures differ from site to site."""
        return {} if server.means else server.last

    def _mixed(self, server: Server) -> dict[str, Weights]:
        """Return a model for each site; one without statistics gets the average."""
        names = tuple(name for group in ("body", "head") for name in server.groups[group])
        common = {name: server.weights[name] for name in names}
        matrix = affinity_shares(server.means, server.deviations, self.momentum)
        fallback = {site: {n: server.latest[site][n] for n in names} for site in matrix}
        mixed = mixtures(server.latest, matrix, fallback, names)
        return {site: mixed.get(site, common) for site in server.latest}
