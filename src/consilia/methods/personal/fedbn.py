"""FedBN (Li et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from consilia.methods.contract import Card
from consilia.methods.personal.keeping import Keeping, Server, Welcome, joined
from consilia.methods.personal.own_norm import Shared, Up
from consilia.payload import Group, Weights
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site


@dataclass(frozen=True)
class Down:
    """Travels to a site: everything but the normalisation layers, averaged."""

    weights: Shared


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its normalisation layers, statistics included."""

    own: Annotated[Weights, Group(("norm",))]


@final
@dataclass(frozen=True)
class FedBN(Keeping):
    """Average all layers but the normalisation layers, which each site keeps.

    With one site it is local training; with a network without such layers it is FedAvg.
    """

    keeps: ClassVar = ("norm",)
    card: ClassVar = Card(
        title="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
        authors="X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou",
        venue="ICLR",
        year=2021,
        bibtex="""@inproceedings{li2021fedbn,
  title={{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization},
  author={Li, Xiaoxiao and Jiang, Meirui and Zhang, Xiaofei and Kamp, Michael and Dou, Qi},
  booktitle={International Conference on Learning Representations},
  year={2021}
}""",
        summary="FedAvg in which each site keeps its normalization layers",
    )

    def broadcast(self, server: Server, site: str) -> Welcome | Down:
        """Send the averaged part; the first time, the first normalisation layers too."""
        return Down(self.shared(server)) if site in server.begun else Welcome(server.weights)

    def local_update(
        self, down: Welcome | Down, memory: Memory | None, site: Site
    ) -> tuple[Up, Memory]:
        """Train the averaged part together with the site's own layers."""
        site.load(joined(down, memory))
        with untaught_rows_stay(site, self.unknown):
            trained = train_locally(site, site.objective(self.task))
        up = Up(site.weights("body", "head"), trained.images, trained.loss)
        return up, Memory(site.weights(*self.keeps))
