"""FedProx (Li et al., MLSys 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper
from consilia.ops.losses import proximal_term
from consilia.payload import Weights
from consilia.training.local import Loss
from consilia.training.site import Site


@final
@dataclass(frozen=True)
class FedProx(Averaging):
    """Keep each site's model near the global one while it trains (Eq. 2). With `mu = 0` it is FedAvg."""

    mu: float = hyper(
        0.001, "weight μ of the proximal term", source="METHODS 3.8, 5.8; originals tune it"
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
        plain = super().loss(anchor, site)
        if not self.mu:
            return plain
        parameters = list(site.network.named_parameters())
        fixed = {name: anchor[name].to(value.device) for name, value in parameters}
        return lambda batch: plain(batch) + proximal_term(parameters, fixed, self.mu)
