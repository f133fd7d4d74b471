"""MetaFed (Chen et al., IEEE TNNLS 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from consilia.errors import RunError
from consilia.methods.contract import Card, Panel, Start, hyper
from consilia.methods.personal.keeping import Intro, Personal
from consilia.ops.distill import distillation_strength, label_divergence
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.held import hold_out, score
from consilia.training.local import train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site, Workbench
from consilia.training.taps import settle, tapped

Model = Annotated[Weights, Group()]
Shared = Annotated[Weights, Group(("body", "head"))]
TEACHER = "teacher"


@dataclass(frozen=True)
class Server:
    """Stays at the server: the start, what each site sent last, and where the cycle stands.

    Attributes:
        images: How many images each site of the cycle has; the cycle goes by name.
        models: What each site sent last, without normalisation layers.
        begun: The sites that have a model of their own.
        turn: The site whose model has come furthest: it trained last, or is the last of the cycle.
        common: Rounds left of the common-knowledge stage.
    """

    start: Weights
    images: Mapping[str, int]
    models: Mapping[str, Weights]
    begun: tuple[str, ...]
    turn: str | None
    common: int


@dataclass(frozen=True)
class Accumulate:
    """Travels to a site in the common-knowledge stage: its neighbor's model; the first time, a start."""

    teacher: Shared | None
    start: Model | None


@dataclass(frozen=True)
class Personalise:
    """Travels to a site in the personalisation stage: the model that went round the cycle."""

    teacher: Shared
    start: Model | None


@dataclass(frozen=True)
class Up:
    """Leaves a site in the common-knowledge stage: its model without normalisation layers."""

    weights: Shared
    images: int
    loss: float


@dataclass(frozen=True)
class Kept:
    """Leaves a site in the personalisation stage: image count and mean loss, no weights."""

    images: int
    loss: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its whole model, and whether it is good enough to learn from a teacher."""

    own: Model
    able: bool


@final
@dataclass(frozen=True)
class MetaFed(Personal[Server, Accumulate | Personalise, Up | Kept, Memory]):
    """Hand models round a cycle: take the neighbor's, or learn from it; then make them personal.

    Without distillation and copying (`lam = 0`, `threshold = -1`, `held_out = 0`) it is local training.
    """

    lam: float = hyper(0.5, "weight λ of the distillation", source="FedLPPA's code; paper: 1")
    threshold: float = hyper(
        0.6,
        "Dice from which a site learns from its teacher; below, it takes over its weights",
        source="authors' code, for accuracy",
        low=-1,
        high=1,
    )
    common: int = hyper(
        40,
        "rounds of the common-knowledge stage; at least the last round is personal",
        source="FedLPPA's code: 400 iterations, here of 10 a round",
        low=1,
    )
    turns: bool = hyper(
        False,
        "one site trains in each round, as in the paper; else all do, after their neighbor's last model",
        source="ours: so that all methods train equally much",
    )
    held_out: float = hyper(
        0.2,
        "part of a site's images that only judge teacher and student; 0: the training images do",
        source="ours; the paper has validation sets",
        high=0.5,
    )

    card: ClassVar = Card(
        title="MetaFed: Federated Learning Among Federations With Cyclic Knowledge Distillation for "
        "Personalized Healthcare",
        authors="Y. Chen, W. Lu, X. Qin, J. Wang, X. Xie",
        venue="IEEE Transactions on Neural Networks and Learning Systems",
        year=2023,
        bibtex="""@article{chen2023metafed,
  title={{MetaFed}: Federated Learning Among Federations With Cyclic Knowledge Distillation for
         Personalized Healthcare},
  author={Chen, Yiqiang and Lu, Wang and Qin, Xin and Wang, Jindong and Xie, Xing},
  journal={IEEE Transactions on Neural Networks and Learning Systems},
  year={2023}
}""",
        summary="models go round a cycle of sites and teach each other, then become personal",
    )

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Plan the two stages."""
        images = {site: intro.images for site, intro in intros.items()}
        return Server(
            start.weights, images, {}, (), None, min(self.common, max(1, start.rounds - 1))
        )

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Take a late site into the cycle."""
        return replace(server, images={**server.images, site: intro.images})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Invite all that can train or, in turns, the next of the cycle; personal rounds are for all."""
        able = tuple(site for site in present if server.images[site])
        if not (self.turns and server.common and able):
            return able
        later = [site for site in able if server.turn is None or site > server.turn]
        return (min(later or able),)

    def broadcast(self, server: Server, site: str) -> Accumulate | Personalise:
        """Send the model of the one before in the cycle or, at the end, the one that went round it."""
        start = None if site in server.begun else server.start
        if not server.common and server.turn is not None:
            return Personalise(server.models[server.turn], start)
        before = [other for other in sorted(server.models) if other < site]
        after = [other for other in sorted(server.models) if other > site]
        teacher = (before or after)[-1:]
        return Accumulate(server.models[teacher[0]] if teacher else None, start)

    def local_update(
        self, down: Accumulate | Personalise, memory: Memory | None, site: Site
    ) -> tuple[Up | Kept, Memory]:
        """Take over the teacher's weights, or train with it as a teacher."""
        own, able = _own(down, memory), memory is not None and memory.able
        held, used = hold_out(site, self.held_out)
        site.load(own)
        loss = site.objective(self.task)
        if down.teacher is not None and not able and isinstance(down, Accumulate):
            site.load(down.teacher)
        elif down.teacher is not None:
            site.load({**own, **down.teacher}, TEACHER)
            settle(site, used, TEACHER)  # it came without statistics
            lam = self._strength(down, site, self.seen(site.train.cut(held)))
            if lam:
                loss = site.objective(self.distilled, {"lam": torch.tensor(lam)})
        with untaught_rows_stay(site, self.unknown):
            trained = train_locally(site, loss, only=used)
        able = able or score(site, self.seen(site.train.cut(held))) > self.threshold
        kept = Memory(site.weights(), able)
        if isinstance(down, Personalise):
            return Kept(trained.images, trained.loss), kept
        return Up(site.weights("body", "head"), trained.images, trained.loss), kept

    def aggregate(self, server: Server, ups: Mapping[str, Up | Kept]) -> Server:
        """Keep what was sent, and move the cycle on."""
        sent = {site: dict(up.weights) for site, up in ups.items() if isinstance(up, Up)}
        models = {**server.models, **sent}
        furthest = max(sent) if self.turns and sent else max(models, default=None)
        return replace(
            server,
            models=models,
            begun=tuple(sorted({*server.begun, *ups})),
            turn=furthest if sent else server.turn,
            common=max(0, server.common - 1),
        )

    def model_for(
        self, down: Accumulate | Personalise, memory: Memory | None, site: Site
    ) -> Weights | Panel:
        """Use the site's own model; who is no site has none."""
        return _own(down, memory) if site.name in site.federation.sites else Panel(())

    def distilled(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Add λ times the distance from the teacher's features and outputs, with a gradient."""
        head, taught = (
            net.get_submodule("head") for net in (bench.network(), bench.network(TEACHER))
        )
        with tapped((head,), "in") as features, tapped((head,)) as scores:
            loss = self.task(bench, batch, held)
        with torch.no_grad(), tapped((taught,), "in") as example:
            target = bench.learner.logits(bench.network(TEACHER), batch.image)
        follow = F.mse_loss(features[head], example[taught])
        say = bench.learner.probabilities_of
        return loss + held["lam"] * (follow + label_divergence(say(scores[head]), say(target)))

    def _strength(self, down: Accumulate | Personalise, site: Site, held: Batch) -> float:
        if isinstance(down, Accumulate):
            return self.lam
        teacher, student = (score(site, held, net) for net in (TEACHER, "main"))
        return distillation_strength(teacher, student, self.lam)


def _own(down: Accumulate | Personalise, memory: Memory | None) -> Weights:
    if memory is not None:
        return memory.own
    if down.start is None:
        msg = "this site has lost the model it was training; run it again from round 1"
        raise RunError(msg)
    return down.start
