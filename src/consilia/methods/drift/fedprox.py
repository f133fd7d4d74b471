"""FedProx (Li et al., MLSys 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper
from consilia.ops.losses import proximal_term
from consilia.payload import Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss
from consilia.training.site import Site, Workbench
from consilia.training.transfer import sent


@final
@dataclass(frozen=True)
class FedProx(Averaging):
    """Keep each site's model near the global one while it trains. With `mu = 0` it is FedAvg."""

    mu: float = hyper(
        0.001, "weight μ of the proximal term", source="FedPSL Sec. VII-C; the original tunes it"
    )

    card: ClassVar = Card(
        title="Federated Optimization in Heterogeneous Networks",
        authors="T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith",
        venue="MLSys",
        year=2020,
        bibtex="""@inproceedings{li2020federated,
  title={Federated Optimization in Heterogeneous Networks},
  author={Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and
          Talwalkar, Ameet and Smith, Virginia},
  booktitle={Proceedings of Machine Learning and Systems},
  volume={2},
  pages={429--450},
  year={2020}
}""",
        summary="FedAvg with a pull towards the global weights",
    )

    def loss(self, anchor: Weights, site: Site) -> Loss:
        """Add the proximal term to the learner's loss."""
        if not self.mu:
            return super().loss(anchor, site)
        there = sent(anchor, site.bench.device)  # in one piece
        return site.objective(
            self.near, held={name: there[name] for name, _ in site.network.named_parameters()}
        )

    def near(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss and the proximal term; `held` are the global parameters."""
        parameters = list(bench.network().named_parameters())
        return self.task(bench, batch, held) + proximal_term(parameters, held, self.mu)
