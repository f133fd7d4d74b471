"""The base of methods whose sites follow the averaged model number by number (FedALA, FedICRA)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from consilia.methods.averaging import AveragingBase, Down, Up
from consilia.methods.contract import hyper
from consilia.ops.personal import interpolate
from consilia.payload import Weights, picked
from consilia.training.batch import Batch
from consilia.training.local import Trained
from consilia.training.personal import learn_shares
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site, Workbench


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its own decoder and head, how far each number follows the server, and rounds.

    Attributes:
        own: Decoder and head as the site trained them last.
        follow: The matrix W of each of their parameters; 1 follows the server.
        rounds: How often the site has trained.
    """

    own: Weights
    follow: Weights
    rounds: int


@dataclass(frozen=True)
class Adaptive(AveragingBase[Memory]):
    """Average whole models; a site mixes the average's upper layers with its own before it trains."""

    eta: float = hyper(
        1.0, "step size η of W; 0: follow the server, as FedAvg", source="FedALA's code"
    )
    steady: float = hyper(
        0.1,
        "standard deviation of the last ten losses below which W has converged",
        source="FedALA's code",
    )
    longest: int = hyper(
        20, "most passes over the images when W is first learned", source="ours: a cap", low=1
    )
    portion: float = hyper(
        0.8,
        "part s of the images that teach W in later rounds, drawn anew",
        source="FedALA's code: 80 %",
        high=1,
    )

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Mix, from the second time on; train; remember the own decoder and how far it follows."""
        site.load(down.weights)
        upper = site.learner.upper(site.network)
        if memory is None:
            follow: Weights = {
                name: torch.ones(value.shape)
                for name, value in site.network.named_parameters()
                if name in upper
            }
        elif self.eta:
            first = memory.rounds == 1
            follow = learn_shares(
                site,
                memory.own,
                down.weights,
                memory.follow,
                site.objective(self.task),
                eta=self.eta,
                passes=self.longest if first else 1,
                threshold=self.steady if first else None,
                portion=1.0 if first else self.portion,
            )
        else:
            follow = dict(memory.follow)
        with untaught_rows_stay(site, self.unknown):
            trained = self.train(site)
        up = self.reply(trained, site)
        own = picked(up.weights, upper)
        rounds = 1 if memory is None else memory.rounds + 1
        return up, Memory(own, follow, rounds)

    def model_for(self, down: Down, memory: Memory | None, site: Site) -> Weights:
        """Use the average, its upper layers mixed with the site's own as it last learned to."""
        if memory is None:
            return down.weights
        return interpolate(memory.own, down.weights, memory.follow)

    def following(self, memory: Memory) -> Weights:
        """Return W."""
        return memory.follow

    @abstractmethod
    def train(self, site: Site) -> Trained:
        """Train from the mixture."""

    def task(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss of a batch, as the switch `unknown` reads it."""
        return bench.task_loss(self.seen(batch), held)
