"""MixUp-PME (Dong et al., CVPR Workshops 2022): mixed images, missing labels by maximum entropy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper
from consilia.ops.mixup import mixed
from consilia.payload import Weights
from consilia.training.batch import Batch
from consilia.training.local import Loss
from consilia.training.site import Site


@final
@dataclass(frozen=True)
class MixUpPME(Averaging):
    """Blend each image with another's; a label that one of them lacks is taken as one half.

    With `least = 1` nothing is blended, and it is training on known labels (IML).
    """

    data: ClassVar[Literal["own", "pooled"]] = "pooled"
    unknown: Literal["negative", "masked"] = hyper(
        "masked", "what a label that a site does not mark means in the loss", source="METHODS 5.8"
    )
    least: float = hyper(
        0.75,
        "least share λ of the first image, drawn from U(least, 1)",
        source="another group's code of it; the paper was not at hand",
        high=1,
    )
    missing: Literal["half", "predicted"] = hyper(
        "half",
        "what stands for a missing label: one half, or the network's own probability",
        source="half: as `least`; predicted: METHODS 5.8 (pseudo labels)",
    )
    merged: bool = hyper(
        False,
        "train on labels known of either image, not only of the first",
        source="false: as `least`; true: METHODS 5.8 (labels merged)",
    )

    card: ClassVar = Card(
        title="Revisiting Vicinal Risk Minimization for Partially Supervised Multi-Label "
        "Classification Under Data Scarcity",
        authors="N. Dong, J. Wang, I. Voiculescu",
        venue="CVPR Workshops",
        year=2022,
        bibtex="""@inproceedings{dong2022revisiting,
  title={Revisiting Vicinal Risk Minimization for Partially Supervised Multi-Label
         Classification Under Data Scarcity},
  author={Dong, Nanqing and Wang, Jiayi and Voiculescu, Irina},
  booktitle={Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition Workshops},
  pages={4212--4220},
  year={2022}
}""",
        summary="all images in one place, blended in pairs with their partial labels",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse all but labels that may occur together."""
        if federation.task != "classification":
            return "blends image labels, and this is a segmentation task"
        if federation.exclusive:
            return "is for labels that may occur together, and these are exclusive"
        return super().unmet(federation)

    def loss(self, anchor: Weights, site: Site) -> Loss:
        """Return the learner's loss of blended images and labels."""
        if self.least >= 1:
            return super().loss(anchor, site)
        # Partners and shares are drawn on the host: a partial is not recorded as a GPU's graph.
        return partial(self.blended, site, site.generator("partners"))

    def blended(self, site: Site, randoms: torch.Generator, batch: Batch) -> Tensor:
        """Return the loss of a batch whose images are blended with each other."""
        other = torch.randperm(len(batch), generator=randoms).to(batch.image.device)
        share = self.least + (1 - self.least) * float(torch.rand((), generator=randoms))
        return site.task_loss(self.blend(self.seen(batch), other, share, site))

    def blend(self, batch: Batch, other: Tensor, share: float, site: Site) -> Batch:
        """Return each image blended with its partner, and their labels with what was missing filled in."""
        known = batch.known_labels
        target = batch.target
        if known is not None:
            target = torch.where(known, target, self.filling(batch, site))
        return replace(
            batch,
            image=mixed(batch.image, batch.image[other], share),
            target=mixed(target, target[other], share),
            known_labels=known | known[other] if self.merged and known is not None else known,
        )

    def filling(self, batch: Batch, site: Site) -> Tensor:
        """Return what stands for each label, should it be missing."""
        if self.missing == "half":
            return torch.full_like(batch.target, 0.5)
        guess = site.probabilities(batch.image)
        site.network.train()
        return guess
