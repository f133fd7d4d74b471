"""FedLC (Wang et al., ECCV 2022), as FedLPPA compares with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast, final

from torch import Tensor

from consilia.declare import Federation
from consilia.methods.contract import Card, hyper
from consilia.methods.personal.keeping import Keeping, Server, Welcome, joined
from consilia.methods.personal.own_head import Down, Memory, Up
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.learner import Learner
from consilia.training.selection import SelectionLearner
from consilia.training.site import Site, Workbench
from consilia.training.turns import train_in_turns


@dataclass(frozen=True)
class Whole:
    """Leaves a site where heads are shared: its whole network, image count and mean loss."""

    weights: Annotated[Weights, Group()]
    images: int
    loss: float


@dataclass(frozen=True)
class Nothing:
    """Stays at a site where heads are shared: nothing."""

    own: ClassVar[Weights] = {}


@final
@dataclass(frozen=True)
class FedLC(Keeping):
    """Select the bottleneck's channels by site, keep sites apart in them, and keep heads at home.

    Without selection it is FedRep.
    """

    alpha: float = hyper(
        0.1,
        "weight α of the distance between sites' channel weights",
        source="FedLPPA's code (polyp)",
    )
    head_part: float = hyper(
        0.6,
        "part of a round's steps that train the head, before the others train the body",
        source="FedLPPA's code (polyp): the body has 2 of 5 iterations",
        high=1,
    )
    head: Literal["own", "shared"] = hyper(
        "own", "the head stays at its site, or is averaged too", source="shared: FedLPPA's code"
    )

    card: ClassVar = Card(
        title="Personalizing Federated Medical Image Segmentation via Local Calibration",
        authors="J. Wang, Y. Jin, L. Wang",
        venue="ECCV",
        year=2022,
        bibtex="""@inproceedings{wang2022personalizing,
  title={Personalizing Federated Medical Image Segmentation via Local Calibration},
  author={Wang, Jiacheng and Jin, Yueming and Wang, Liansheng},
  booktitle={European Conference on Computer Vision},
  pages={456--472},
  year={2022}
}""",
        summary="a common body that selects channels by site, under a head of its own at each site",
    )

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return the head, where it is a site's own."""
        return ("head",) if self.head == "own" else ()

    def unmet(self, federation: Federation) -> str | None:
        """Refuse classification, and sites that could not train a head."""
        if federation.task != "segmentation":
            return (
                "selects channels at the bottleneck of a U-Net, and this is a classification task"
            )
        return super().unmet(federation)

    def learner(self, chosen: Learner) -> Learner:
        """Add channel selection to what the run file chose."""
        return SelectionLearner.around(chosen)

    def broadcast(self, server: Server, site: str) -> Welcome | Down:
        """Send the averaged body; the head too, the first time or where heads are shared."""
        own = self.head == "own" and site in server.begun
        return Down(self.shared(server)) if own else Welcome(server.weights)

    def local_update(
        self, down: Welcome | Down, memory: Memory | Nothing | None, site: Site
    ) -> tuple[Up | Whole, Memory | Nothing]:
        """Train the head on the received body, then the body."""
        site.load(joined(down, memory))
        trained = train_in_turns(site, site.objective(self.separated), self.head_part)
        if self.head == "shared":
            return Whole(site.weights(), trained.images, trained.loss), Nothing()
        up = Up(site.weights("body", "norm"), trained.images, trained.loss)
        return up, Memory(site.weights(*self.keeps))

    def separated(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss minus α times how far this site's channel weights are from others'."""
        learner = cast(SelectionLearner, bench.learner)
        return learner.separated_loss(bench, self.seen(batch), held, self.alpha)
