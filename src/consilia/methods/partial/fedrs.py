"""FedRS (Li and Zhan, KDD 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper
from consilia.ops.losses import ClassWeights
from consilia.ops.restrict import restriction
from consilia.payload import Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss
from consilia.training.site import Site, Workbench


@final
@dataclass(frozen=True)
class FedRS(Averaging):
    """Restrict the softmax: scores of labels a site never sees are scaled down while it trains.

    With `alpha = 1` it is FedAvg. Predictions are never scaled.
    """

    alpha: float = hyper(
        0.5,
        "scale α of the scores of missing labels",
        source="paper's default",
        high=1,
    )
    present: Literal["seen", "share"] = hyper(
        "seen",
        "scale by whether a label is there, or by its share of the images",
        source="paper: seen; the authors' later code: share",
    )

    card: ClassVar = Card(
        title="FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data",
        authors="X.-C. Li, D.-C. Zhan",
        venue="KDD",
        year=2021,
        bibtex="""@inproceedings{li2021fedrs,
  title={FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data},
  author={Li, Xin-Chun and Zhan, De-Chuan},
  booktitle={Proceedings of the ACM SIGKDD Conference on Knowledge Discovery and Data Mining},
  pages={995--1005},
  year={2021}
}""",
        summary="FedAvg whose sites hold back the scores of labels they never see",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation, where every image shows background."""
        if federation.task != "classification":
            return "restricts the scores of image labels, and this is a segmentation task"
        return super().unmet(federation)

    def loss(self, anchor: Weights, site: Site) -> Loss:
        """Return what a site minimises, with the scale of each label's score."""
        scale = restriction(self.presence(site), self.alpha)
        return site.objective(self.restricted, held={"scale": scale})

    def restricted(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss of restricted scores."""
        scores = bench.learner.logits(bench.network(), batch.image) * held["scale"]
        return bench.learner.loss_of(scores, self.seen(batch), ClassWeights.among(held))

    def presence(self, site: Site) -> Tensor:
        """Return how present each label is at a site.

        A label is seen if an image shows it; where labels may occur together, if the site marks it.
        """
        shown = site.train.target.sum(0).float()
        if self.present == "share":
            return shown
        seen = shown > 0 if site.train.exclusive else site.marks.to(shown.device)
        return seen.float()
