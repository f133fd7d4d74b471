"""NR-Dice (Wang et al., IEEE TMI 2020): its noise-robust Dice loss, under FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper
from consilia.ops.robust import noise_robust_dice_loss
from consilia.payload import Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss
from consilia.training.site import Site, Workbench


@final
@dataclass(frozen=True)
class NRDice(Averaging):
    """Let pixels that disagree with their label weigh less than in the Dice loss."""

    gamma: float = hyper(
        1.5,
        "power γ of a pixel's error; 2: Dice, 1: mean absolute error",
        source="FedIA, supplement, Table 1",
        low=1,
        high=2,
    )

    card: ClassVar = Card(
        title="A Noise-Robust Framework for Automatic Segmentation of COVID-19 Pneumonia Lesions From "
        "CT Images",
        authors="G. Wang, X. Liu, C. Li, Z. Xu, J. Ruan, H. Zhu, T. Meng, K. Li, N. Huang, S. Zhang",
        venue="IEEE Transactions on Medical Imaging",
        year=2020,
        bibtex="""@article{wang2020noise,
  title={A Noise-Robust Framework for Automatic Segmentation of {COVID-19} Pneumonia Lesions From
         {CT} Images},
  author={Wang, Guotai and Liu, Xinglong and Li, Chaoping and Xu, Zhiyong and Ruan, Jiugen and
          Zhu, Haifeng and Meng, Tao and Li, Kang and Huang, Ning and Zhang, Shaoting},
  journal={IEEE Transactions on Medical Imaging},
  volume={39},
  number={8},
  pages={2653--2663},
  year={2020}
}""",
        summary="FedAvg with a Dice loss that trusts pixels less where they disagree with their label",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse classification, and a federation without usable labels."""
        if federation.task != "segmentation":
            return "segments, and this is a classification task"
        return super().unmet(federation)

    def loss(self, anchor: Weights, site: Site) -> Loss:
        """Replace the learner's loss."""
        return site.objective(self.robust)

    def robust(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the noise-robust Dice loss of a batch, as the switch `unknown` reads it."""
        seen = self.seen(batch)
        p = bench.learner.probabilities(bench.network(), seen.image)
        return noise_robust_dice_loss(p, seen.planes(), self.gamma, seen.known_planes())
