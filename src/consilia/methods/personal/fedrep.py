"""FedRep (Collins et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilia.methods.contract import Card, hyper
from consilia.methods.personal.keeping import Keeping, Server, Welcome, joined
from consilia.methods.personal.own_head import Down, Memory, Up
from consilia.training.rows import untaught_rows_stay
from consilia.training.settings import Training
from consilia.training.site import Site
from consilia.training.turns import train_in_turns


@final
@dataclass(frozen=True)
class FedRep(Keeping):
    """Each site has its own head; it trains the head first, then the common body under it."""

    head_part: float = hyper(
        0.4,
        "part of a round's steps that train the head, before the others train the body",
        source="FedLPPA's code: 8 of 20 iterations; the paper has several epochs and one",
        high=1,
    )
    momentum: float = hyper(
        0.0,
        "train by SGD with this momentum; 0: with the run file's optimizer",
        source="ours, as all methods; FedLPPA's code has 0.9 here",
    )

    keeps: ClassVar = ("head",)
    card: ClassVar = Card(
        title="Exploiting Shared Representations for Personalized Federated Learning",
        authors="L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai",
        venue="ICML",
        year=2021,
        bibtex="""@inproceedings{collins2021exploiting,
  title={Exploiting Shared Representations for Personalized Federated Learning},
  author={Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay},
  booktitle={International Conference on Machine Learning},
  pages={2089--2099},
  year={2021}
}""",
        summary="a common body under a head of its own at each site, trained in turns",
    )

    def broadcast(self, server: Server, site: str) -> Welcome | Down:
        """Send the averaged body; the first time, the first head too."""
        return Down(self.shared(server)) if site in server.begun else Welcome(server.weights)

    def local_update(
        self, down: Welcome | Down, memory: Memory | None, site: Site
    ) -> tuple[Up, Memory]:
        """Train the head on the received body, then the body."""
        site.load(joined(down, memory))
        objective = site.objective(self.task)
        settings = self._settings(site.training)
        with untaught_rows_stay(site, self.unknown):
            trained = train_in_turns(site, objective, self.head_part, settings)
        up = Up(site.weights("body", "norm"), trained.images, trained.loss)
        return up, Memory(site.weights(*self.keeps))

    def _settings(self, chosen: Training) -> Training:
        if not self.momentum:
            return chosen
        return chosen.model_copy(update={"optimizer": "sgd", "momentum": self.momentum})
