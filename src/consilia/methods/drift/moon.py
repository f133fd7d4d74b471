"""MOON (Li et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.errors import UsageError
from consilia.methods.averaging import AveragingBase, Down, Up
from consilia.methods.contract import Card, hyper
from consilia.ops.contrast import model_contrast
from consilia.ops.losses import ClassWeights
from consilia.payload import Group, Weights
from consilia.training.batch import Batch
from consilia.training.learner import Learner, PlainLearner
from consilia.training.local import Loss, train_locally
from consilia.training.rows import untaught_rows_stay
from consilia.training.site import Site, Workbench


@dataclass(frozen=True)
class Memory:
    """Stays at a site: the weights it sent last, which its next features are pushed away from."""

    previous: Annotated[Weights, Group()]


@final
@dataclass(frozen=True)
class MOON(AveragingBase[Memory]):
    """Draw each site's features to the global model's and away from its own last.

    With `mu = 0` it is FedAvg. With `unknown = "masked"` and `rows = "labelled"` it is FedLSM's MOON*.
    """

    mu: float = hyper(
        1.0, "weight μ of the contrastive term", source="authors' code; the paper tunes it"
    )
    temperature: float = hyper(
        0.5, "temperature τ of the contrast", source="authors' code", low=1e-3
    )
    width: int = hyper(
        256, "width of the projection that the head reads; 0: none", source="authors' code"
    )

    card: ClassVar = Card(
        title="Model-Contrastive Federated Learning",
        authors="Q. Li, B. He, D. Song",
        venue="CVPR",
        year=2021,
        bibtex="""@inproceedings{li2021model,
  title={Model-Contrastive Federated Learning},
  author={Li, Qinbin and He, Bingsheng and Song, Dawn},
  booktitle={Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  pages={10713--10722},
  year={2021}
}""",
        summary="FedAvg with features drawn to the global model's and away from the site's last",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse segmentation, for whose maps the paper has no feature vector."""
        if federation.task != "classification":
            return "contrasts one feature vector per image, and this is a segmentation task"
        return super().unmet(federation)

    def learner(self, chosen: Learner) -> Learner:
        """Put the projection between features and head, unless nothing is contrasted."""
        if not self.mu:
            return chosen
        if not isinstance(chosen, PlainLearner):
            msg = "method 'moon' contrasts the features of the learner 'plain'; set learner.name to it"
            raise UsageError(msg)
        return replace(chosen, projection=self.width)

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Start from the global weights and train; keep the result."""
        site.load(down.weights)
        with untaught_rows_stay(site, self.unknown):
            trained = train_locally(site, self.loss(down, memory, site))
        up = self.reply(trained, site)
        return up, Memory(up.weights)

    def loss(self, down: Down, memory: Memory | None, site: Site) -> Loss:
        """Return what a site minimises; in its first round it has nothing to move away from."""
        if not self.mu or memory is None:
            return site.objective(self.task)
        for name, weights in (("global", down.weights), ("previous", memory.previous)):
            site.load(weights, name)
            site.bench.network(name).eval()
        return site.objective(self.contrasted)

    def contrasted(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the learner's loss and the contrast of features with the two fixed networks'."""
        learner, network = bench.learner, bench.network()
        assert isinstance(learner, PlainLearner)
        z = learner.features(network, batch.image)
        scores = network.head(z).float()  # type: ignore[operator]  # nn.Module
        with torch.no_grad():
            z_glob, z_prev = (
                learner.features(bench.network(name), batch.image).float()
                for name in ("global", "previous")
            )
        known = learner.loss_of(scores, self.seen(batch), ClassWeights.among(held))
        return known + self.mu * model_contrast(z.float(), z_glob, z_prev, self.temperature)
