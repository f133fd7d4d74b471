"""MixUp-PME (Dong et al., CVPR Workshops 2022): mixed images, missing labels by maximum entropy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper
from consilia.ops.losses import masked_mass_bce
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
        "masked",
        "what a label that a site does not mark means in the loss",
        source="ours: a missing label is not absent",
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
        source="half: as `least`; predicted: FedPSL Sec. VII-C (pseudo labels)",
    )
    merged: bool = hyper(
        False,
        "train on labels known of either image, not only of the first",
        source="false: as `least`; true: ours, with predicted labels",
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
        seen = self.seen(batch)
        known = seen.known_labels
        known = torch.ones_like(seen.target, dtype=torch.bool) if known is None else known
        present, absent = self.masses(seen, known, site)
        image = mixed(batch.image, batch.image[other], share)
        return masked_mass_bce(
            site.learner.logits(site.network, image),
            mixed(present, present[other], share),
            mixed(absent, absent[other], share),
            known | known[other] if self.merged else known,
        )

    def masses(self, batch: Batch, known: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """Return how much says that each label is there, and that it is not.

        An annotator's label has class weights where the run asks for them; what stands for a missing
        label has none: one half then says nothing in favor of either side.
        """
        target = torch.where(known, batch.target, self.filling(batch, site))
        present, absent, weights = target, 1 - target, site.class_weights
        if weights.positive is not None:
            present = torch.where(known, weights.positive * present, present)
        if weights.entry is not None:
            present = torch.where(known, weights.entry * present, present)
            absent = torch.where(known, weights.entry * absent, absent)
        return present, absent

    def filling(self, batch: Batch, site: Site) -> Tensor:
        """Return what stands for each label, should it be missing."""
        if self.missing == "half":
            return torch.full_like(batch.target, 0.5)
        guess = site.probabilities(batch.image)
        site.network.train()
        return guess
