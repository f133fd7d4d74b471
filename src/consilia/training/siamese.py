"""Learning from images alone: a classifier whose features of two views predict each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from consilia.errors import UsageError
from consilia.ops.losses import UNWEIGHTED, ClassWeights
from consilia.ops.siamese import siamese_loss
from consilia.training.batch import Batch
from consilia.training.learner import Learner, PlainLearner
from consilia.training.local import Loss, Trained, train_locally
from consilia.training.site import Site
from consilia.training.strong import strong_view

#: The group of the layers that only learning from images alone needs.
SIAMESE = "siamese"
#: The groups of the classifier itself, and those that learn without labels.
CLASSIFIER, WITHOUT_LABELS = ("body", "norm", "head"), ("body", "norm", SIAMESE)


@final
@dataclass(frozen=True)
class SiameseLearner(Learner):
    """A plain classifier with SimSiam's projection and prediction layers beside its head.

    Attributes:
        plain: The classifier.
        width: Of the projection; the prediction narrows to a quarter of it.
    """

    network: str
    objective: str
    plain: PlainLearner
    width: int

    @classmethod
    def of(cls, chosen: Learner, width: int, method: str) -> SiameseLearner:
        """Return the learner around the one that the run file chose."""
        if not isinstance(chosen, PlainLearner):
            msg = f"method '{method}' learns from the features of the learner 'plain'; set learner.name to it"
            raise UsageError(msg)
        return cls(chosen.network, chosen.objective, chosen, width)

    def build(self) -> nn.Module:
        """Return a new network; its start is drawn from torch's global generator."""
        network = self.plain.build()
        wide, d = cast("nn.Linear", network.head).in_features, self.width
        network.project = nn.Sequential(
            nn.Linear(wide, d, bias=False),
            nn.BatchNorm1d(d),
            nn.ReLU(inplace=True),
            nn.Linear(d, d, bias=False),
            nn.BatchNorm1d(d, affine=False),
        )
        narrow = max(1, d // 4)
        network.predict = nn.Sequential(
            nn.Linear(d, narrow, bias=False),
            nn.BatchNorm1d(narrow),
            nn.ReLU(inplace=True),
            nn.Linear(narrow, d),
        )
        return network

    def groups(self, network: nn.Module) -> dict[str, tuple[str, ...]]:
        """Return the classifier's groups, and `siamese`."""
        ours = tuple(n for n in network.state_dict() if n.startswith(("project.", "predict.")))
        groups = self.plain.groups(network)
        return {
            **{group: tuple(n for n in names if n not in ours) for group, names in groups.items()},
            SIAMESE: ours,
        }

    def twins(self, network: nn.Module, one: Tensor, other: Tensor) -> Float[Tensor, ""]:
        """Return SimSiam's loss of two views of the same images."""
        project, predict = cast("nn.Module", network.project), cast("nn.Module", network.predict)
        z = [project(self.plain.features(network, view)) for view in (one, other)]
        return siamese_loss((predict(z[0]), predict(z[1])), (z[0], z[1]))

    def logits(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Tensor:
        """Return the classifier's scores."""
        return self.plain.logits(network, image)

    def loss_of(
        self, logits: Tensor, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return the classifier's supervised loss."""
        return self.plain.loss_of(logits, batch, weights)

    def probabilities_of(self, logits: Tensor) -> Tensor:
        """Return the classifier's probabilities."""
        return self.plain.probabilities_of(logits)

    def head_rows(self) -> tuple[int | None, ...]:
        """Return the label of each output row."""
        return self.plain.head_rows()


def train_without_labels(site: Site) -> Trained:
    """Train a site's network on two strong views of each of its images; no label is read."""
    every = torch.arange(len(site.train), device=site.bench.device)
    if len(every) < 2:  # batch normalization of single vectors is not defined
        return Trained(0.0, 0, 0)
    head = set(site.bench.groups["head"])
    parameters = [name for name, _ in site.network.named_parameters() if name not in head]
    return train_locally(
        site, _alike(site), only=every, parameters=parameters, purpose="without labels"
    )


def _alike(site: Site) -> Loss:
    learner = cast("SiameseLearner", site.learner)
    randoms = site.generator("siamese views")

    def alike(batch: Batch) -> Tensor:
        image = site.train.cut(batch.index).image
        if len(image) < 2:  # a last batch of one image teaches nothing
            return torch.stack([p.sum() for p in site.network.parameters()]).sum() * 0.0
        return learner.twins(site.network, strong_view(image, randoms), strong_view(image, randoms))

    return alike
