"""FedALA (Zhang et al., AAAI 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilia.methods.contract import Card
from consilia.methods.personal.adaptive import Adaptive
from consilia.training.local import Trained, train_locally
from consilia.training.site import Site


@final
@dataclass(frozen=True)
class FedALA(Adaptive):
    """Each site learns how far every number of its decoder and head follows the average.

    With W fixed at 1 (`eta = 0`) it is FedAvg.
    """

    card: ClassVar = Card(
        title="FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
        authors="J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan",
        venue="AAAI",
        year=2023,
        bibtex="""@inproceedings{zhang2023fedala,
  title={{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning},
  author={Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui and
          Ma, Ruhui and Guan, Haibing},
  booktitle={Proceedings of the AAAI Conference on Artificial Intelligence},
  volume={37},
  number={9},
  pages={11237--11244},
  year={2023}
}""",
        summary="FedAvg in which each site learns how far every number of its decoder follows",
    )

    def train(self, site: Site) -> Trained:
        """Train the whole network from the mixture."""
        return train_locally(site, site.objective(self.task))
