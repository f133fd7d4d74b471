"""FedMix (Wicaksana et al., IEEE TMI 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor

from consilia.declare import Federation, Supervision
from consilia.errors import listing
from consilia.methods.contract import Method, Start, hyper
from consilia.methods.papers import FEDMIX
from consilia.ops.adaptive import adaptive_shares
from consilia.ops.losses import dice_flat
from consilia.ops.pseudo import agree, allowed, fills, marks_something, refine
from consilia.ops.reduce import reduce_whole
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.local import Trained, train_locally
from consilia.training.site import Site, Workbench

Model = Annotated[Weights, Group()]
FORMS = {
    Supervision.MASK,
    Supervision.BOX,
    Supervision.ROTATED_BOX,
    Supervision.IMAGE,
    Supervision.NONE,
}


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: nothing but that it is there."""


@dataclass(frozen=True)
class Server:
    """Stays at the server: the two global networks and the last shares."""

    first: Weights
    second: Weights
    groups: Mapping[str, tuple[str, ...]]
    last: Mapping[str, float]


@dataclass(frozen=True)
class Down:
    """Travels to a site: the two global networks."""

    first: Model
    second: Model


@dataclass(frozen=True)
class Up:
    """Leaves a site: the two trained networks, how many images were selected, and the mean loss."""

    first: Model
    second: Model
    selected: int
    loss: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: nothing but the optimisers' moments, which the engine keeps."""


@dataclass(frozen=True)
class Pseudo:
    """What a round trains on at a site without masks: its views, labels for each network, a choice."""

    views: Batch
    for_first: Tensor
    for_second: Tensor
    selected: Tensor


@final
@dataclass(frozen=True)
class FedMix(Method[Intro, Server, Down, Up, Memory]):
    """Two networks label for each other what a site's annotation leaves open (Algorithm 1).

    With masks everywhere and one network it is FedAdaptAgg; with `lam = 0` as well, FedAvg.
    """

    epsilon: float = hyper(0.9, "Dice ε from which two pseudo labels agree", source="Sec. IV-B")
    lam: float = hyper(
        10.0,
        "weight λ of the loss against the image count; 0: no adaptive aggregation",
        source="Sec. IV-B (breast, skin)",
    )
    beta: float = hyper(1.5, "power β of the loss", source="Sec. IV-B (breast)")
    networks: Literal[1, 2] = hyper(
        2, "two networks, or one that labels for itself", source="Sec. III-C"
    )
    require_foreground: bool = hyper(
        False,
        "drop unlabelled images for which both networks predict nothing",
        source="ours; false: Eq. 2, which accepts two empty masks",
    )

    card: ClassVar = FEDMIX

    def unmet(self, federation: Federation) -> str | None:
        """Refuse what it has no rule for: no mask site, other forms, classification."""
        if federation.task != "segmentation":
            return "segments, and this is a classification task"
        forms = {name: federation[name].supervision for name in federation.sites}
        if Supervision.MASK not in forms.values():
            return "needs at least one site with mask supervision; none has it"
        other = [name for name, form in forms.items() if form not in FORMS]
        if other:
            return f"uses masks, boxes, image tags or nothing, but {listing(other)} marked single pixels"
        return None

    def trains_at(self, federation: Federation, site: str) -> bool:
        """Train everywhere."""
        return True

    def introduce(self, site: Site) -> Intro:
        """Say nothing of the site: nothing of it is needed before it has trained."""
        return Intro()

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin with two networks of different first weights."""
        return Server(start.weights, start.draw("second"), start.groups, {})

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Need nothing of a site that joins late."""
        return server

    def broadcast(self, server: Server, site: str) -> Down:
        """Send every site both networks."""
        return Down(server.first, server.second)

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Label, refine, select, train each network on the other's labels."""
        site.load(down.first)
        site.load(down.second, "second")
        if site.declaration.supervision is Supervision.MASK:
            trained = [
                train_locally(site, site.objective(partial(self.supervised, n)), network=n)
                for n in self._names()
            ]
        else:
            trained = self._train_on_pseudo_labels(site)
        losses = [t.loss for t in trained]
        up = Up(
            site.weights(),
            site.weights(network="second"),
            trained[0].images,
            sum(losses) / len(losses),
        )
        return up, Memory()

    def aggregate(self, server: Server, ups: Mapping[str, Up]) -> Server:
        """Average both networks by selected images and losses (Eqs. 3-5)."""
        counts = {site: float(up.selected) for site, up in ups.items()}
        losses = {site: up.loss for site, up in ups.items()}
        shares = adaptive_shares(counts, losses, self.lam, self.beta)
        firsts = {site: up.first for site, up in ups.items()}
        seconds = {site: up.second for site, up in ups.items()}
        first, last = reduce_whole(server.first, firsts, shares, server.groups)
        second, _ = reduce_whole(server.second, seconds, shares, server.groups)
        return replace(server, first=first, second=second, last=last)

    def model_for(self, down: Down, memory: Memory | None, site: Site) -> Weights:
        """Use the first network."""
        return down.first

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.last

    def _names(self) -> tuple[str, ...]:
        return ("main", "second")[: self.networks]

    def supervised(
        self, network: str, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the learner's loss of one network."""
        return bench.learner.loss(bench.network(network), batch)

    def crossed(
        self, network: str, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]
    ) -> Tensor:
        """Return one network's Dice loss with the labels that the other one made (Eq. 1)."""
        p = bench.learner.probabilities(bench.network(network), batch.image)
        return (1 - dice_flat(p, held["labels"])).mean()

    def _train_on_pseudo_labels(self, site: Site) -> list[Trained]:
        pseudo = self.label(site)
        labels = {"main": pseudo.for_first, "second": pseudo.for_second}
        return [
            train_locally(
                site,
                site.objective(partial(self.crossed, n), rows={"labels": labels[n]}),
                network=n,
                only=pseudo.selected,
                views=pseudo.views,
            )
            for n in self._names()
        ]

    def label(self, site: Site) -> Pseudo:
        """Generate, refine and select pseudo labels, once per round, on this round's views."""
        views = site.views()
        predicted = [site.probabilities(views.image, n) > 0.5 for n in self._names()]
        refined = [refine(p, views.constraint) for p in predicted]
        first, second = refined[0], refined[-1]
        chosen = agree(first, second, self.epsilon)
        form = site.declaration.supervision
        if form in {Supervision.BOX, Supervision.ROTATED_BOX}:
            assert views.constraint is not None
            chosen &= fills(first, views.constraint)
        elif form is Supervision.IMAGE:
            assert views.constraint is not None
            chosen &= allowed(views.constraint) & (marks_something(first) | marks_something(second))
        elif self.require_foreground:
            chosen &= marks_something(first) | marks_something(second)
        return Pseudo(views, second.float(), first.float(), chosen.nonzero().flatten())
