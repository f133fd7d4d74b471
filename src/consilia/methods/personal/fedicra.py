"""FedICRA (Lin et al., MLMI 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast, final

from torch import Tensor

from consilia.declare import Federation
from consilia.methods.contract import Card, hyper
from consilia.methods.personal.adaptive import Adaptive
from consilia.training.batch import Batch
from consilia.training.learner import Learner
from consilia.training.local import Trained
from consilia.training.selection import SelectionLearner
from consilia.training.site import Site, Workbench
from consilia.training.turns import train_in_turns


@final
@dataclass(frozen=True)
class FedICRA(Adaptive):
    """Channel selection by site, decoders that follow as they learn to, and losses on image structure.

    The loss is the learner's plus tree energy at all scales and gated CRF, minus the distance between
    sites' channel weights.
    """

    alpha: float = hyper(
        1.0, "weight α of the distance between sites' channel weights", source="authors' code"
    )
    tree: float = hyper(0.1, "weight of the tree energy", source="authors' code")
    crf: float = hyper(0.1, "weight of the gated CRF", source="authors' code")
    side: int = hyper(
        512, "hidden width of the score maps at each scale", source="authors' code", low=1
    )
    head_part: float = hyper(
        0.4,
        "part of a round's steps that train the head, before the others train the rest",
        source="authors' code: the rest has 3 iterations; of 5: FedLPPA's code",
        high=1,
    )

    card: ClassVar = Card(
        title="Unifying and Personalizing Weakly-Supervised Federated Medical Image Segmentation via "
        "Adaptive Representation and Aggregation",
        authors="L. Lin, J. Wu, Y. Liu, K. K. Y. Wong, X. Tang",
        venue="MLMI",
        year=2023,
        bibtex="""@inproceedings{lin2023unifying,
  title={Unifying and Personalizing Weakly-Supervised Federated Medical Image Segmentation via
         Adaptive Representation and Aggregation},
  author={Lin, Li and Wu, Jiewei and Liu, Yixiang and Wong, Kenneth K. Y. and Tang, Xiaoying},
  booktitle={International Workshop on Machine Learning in Medical Imaging},
  pages={196--206},
  year={2023}
}""",
        summary="sparse pixels: channels selected by site, learned aggregation, tree energy and CRF",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse classification, and a federation in which no site can train."""
        if federation.task != "segmentation":
            return "segments by tree energy and CRF, and this is a classification task"
        return super().unmet(federation)

    def learner(self, chosen: Learner) -> Learner:
        """Add channel selection and side heads to what the run file chose."""
        return SelectionLearner.around(chosen, self.side)

    def train(self, site: Site) -> Trained:
        """Train the head on the mixture, then the rest."""
        return train_in_turns(site, site.objective(self.structured), self.head_part)

    def structured(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the whole loss of a batch."""
        learner = cast(SelectionLearner, bench.learner)
        return learner.structured_loss(
            bench, self.seen(batch), held, alpha=self.alpha, tree=self.tree, crf=self.crf
        )
