"""FedPU (Lin et al., ICML 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper
from consilia.ops.losses import ClassWeights
from consilia.ops.unlabelled import hidden_risk
from consilia.payload import Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss
from consilia.training.site import Site, Workbench


@final
@dataclass(frozen=True)
class FedPU(Averaging):
    """Learn from labeled images of some classes and unlabeled images of all, by a corrected risk.

    With `weight = 0` it is FedAvg.
    """

    weight: float = hyper(1.0, "weight of the positive-unlabeled risk", source="code: pu_weight")
    floor: float = hyper(
        0.01, "constant ε inside the logarithm", source="code: 0.01", low=1e-6, high=1
    )
    sample: Literal["unlabelled", "all"] = hyper(
        "unlabelled",
        "which images stand for U: those without a label, or all of a site",
        source="code; `all` is unbiased where every image of a marked class is labeled (ours)",
    )
    divided: bool = hyper(
        False,
        "divide what is summed over marked classes, and over hidden ones, by how many there are",
        source="code; false: ours, the sums that the stated idea leads to",
    )

    card: ClassVar = Card(
        title="Federated Learning with Positive and Unlabeled Data",
        authors="X. Lin, H. Chen, Y. Xu, C. Xu, X. Gui, Y. Deng, Y. Wang",
        venue="ICML",
        year=2022,
        bibtex="""@inproceedings{lin2022federated,
  title={Federated Learning with Positive and Unlabeled Data},
  author={Lin, Xinyang and Chen, Hanting and Xu, Yixing and Xu, Chao and Gui, Xiaolin and
          Deng, Yiping and Wang, Yunhe},
  booktitle={International Conference on Machine Learning},
  pages={13344--13355},
  year={2022}
}""",
        summary="each site's hidden classes as the difference of all images and labeled ones",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse all but images of one class each."""
        if federation.task != "classification":
            return "classifies images, and this is a segmentation task"
        if not federation.exclusive:
            return "is for exclusive labels, and these may occur together"
        return super().unmet(federation)

    def used(self, site: Site) -> Tensor | None:
        """Train on all images, labeled or not."""
        if not self.weight:
            return None
        return torch.arange(len(site.train), device=site.bench.device)

    def loss(self, anchor: Weights, site: Site) -> Loss:
        """Return what a site minimises, with its label set and the part of each class in it."""
        if not self.weight:
            return super().loss(anchor, site)
        prior = site.train.target.sum(0).float() / len(site.train)
        return site.objective(self.corrected, held={"marked": site.marks, "prior": prior})

    def corrected(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the cross-entropy of labeled images and the positive-unlabeled risk of all."""
        learner = bench.learner
        scores = learner.logits(bench.network(), batch.image)
        unlabeled = (batch.target.sum(1) == 0) | (self.sample == "all")
        p = learner.probabilities_of(scores)
        risk = hidden_risk(
            p,
            batch.target,
            unlabeled,
            held["marked"],
            held["prior"],
            self.floor,
            divided=self.divided,
        )
        known = learner.loss_of(scores, self.seen(batch), ClassWeights.among(held))
        return known + self.weight * risk
