"""ADELE (Liu et al., CVPR 2022): correct labels when early learning ends, agree across scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from consilia.declare import Federation
from consilia.methods.averaging import AveragingBase, Down, Up
from consilia.methods.contract import Card, hyper
from consilia.methods.needs import masks_of_one_label
from consilia.ops.completeness import correct_missing
from consilia.ops.early import has_slowed, pooled_overlap, scale_disagreement
from consilia.ops.robust import two_rows
from consilia.training.batch import Batch
from consilia.training.learner import least_side
from consilia.training.local import train_locally
from consilia.training.site import Site, Workbench

#: The scales at which an image is predicted.
SCALES = (0.7, 1.0, 1.5)


@dataclass(frozen=True)
class Memory:
    """Stays at a site: the IoU with its labels after each round so far, and whether it has corrected."""

    history: tuple[float, ...]
    corrected: bool


@final
@dataclass(frozen=True)
class ADELE(AveragingBase[Memory]):
    """Watch how fast a site's labels are fitted; when that slows down, add what they miss, once.

    With `consistency = 0` and `drop = 1` it is FedAvg.
    """

    consistency: float = hyper(
        1.0, "weight λ of the divergence between scales", source="FedIA, supplement, Table 1"
    )
    threshold: float = hyper(
        0.8,
        "probability τ above which a missed pixel is added",
        source="FedIA, supplement, Table 1",
        high=1,
    )
    confidence: float = hyper(
        0.8,
        "largest averaged probability ρ from which an image is held consistent",
        source="FedIA, supplement, Table 1",
        high=1,
    )
    drop: float = hyper(
        0.8,
        "relative fall r of the IoU curve's slope that triggers correction",
        source="FedIA, supplement, Table 1 (MS; LUNG uses 0.9)",
        high=1,
    )

    card: ClassVar = Card(
        title="Adaptive Early-Learning Correction for Segmentation from Noisy Annotations",
        authors="S. Liu, K. Liu, W. Zhu, Y. Shen, C. Fernandez-Granda",
        venue="CVPR",
        year=2022,
        bibtex="""@inproceedings{liu2022adaptive,
  title={Adaptive Early-Learning Correction for Segmentation from Noisy Annotations},
  author={Liu, Sheng and Liu, Kangning and Zhu, Weicheng and Shen, Yiqiu and Fernandez-Granda, Carlos},
  booktitle={Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  pages={2606--2616},
  year={2022}
}""",
        summary="FedAvg whose sites add missed pixels when fitting slows down, and agree across scales",
    )

    def unmet(self, federation: Federation) -> str | None:
        """Refuse all but masks of one label."""
        return masks_of_one_label(federation)

    def local_update(self, down: Down, memory: Memory | None, site: Site) -> tuple[Up, Memory]:
        """Correct if it is time, train, then see how well the labels are fitted."""
        memory = memory or Memory((), corrected=False)
        site.load(down.weights)
        due = not memory.corrected and has_slowed(memory.history, self.drop)
        if due:
            p = self.averaged(site)
            site.correct_labels(correct_missing(site.train.target, p, self.threshold))
        trained = train_locally(site, site.objective(self.across_scales))
        history = memory.history
        if not (memory.corrected or due):  # the curve has served once the labels are corrected
            fit = pooled_overlap(site.foreground() > 0.5, site.train.target > 0)
            history = (*history, fit)
        return self.reply(trained, site), Memory(history, memory.corrected or due)

    def averaged(self, site: Site) -> Tensor:
        """Return the label's probability in every training image, averaged over the scales."""
        site.network.eval()
        with torch.no_grad(), site.bench.arithmetic():
            parts = [
                torch.stack(
                    [
                        two_rows(_at_scale(site.bench, part.float() / 255, scale)).softmax(1)[:, 1]
                        for scale in SCALES
                    ]
                ).mean(0)
                for part in torch.split(site.train.image, 32)
            ]
        return torch.cat(parts)

    def across_scales(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        """Return the mean loss over the scales and, at its weight, how far these disagree."""
        if not self.consistency:
            return self.task(bench, batch, held)
        seen = self.seen(batch)
        scores = [_at_scale(bench, seen.image, scale) for scale in SCALES]
        supervised = torch.stack([bench.learner.loss_of(s, seen) for s in scores]).mean()
        p = [two_rows(s).softmax(1) for s in scores]
        apart = scale_disagreement(p, self.confidence, seen.known_pixels)
        return supervised + self.consistency * apart


def _at_scale(bench: Workbench, image: Tensor, scale: float) -> Tensor:
    """Return the scores of a resized image, at the size of the image."""
    if scale == 1:
        return bench.learner.logits(bench.network(), image)
    height, width = image.shape[-2:]
    least = least_side(bench.learner.network)
    size = [max(int(side * scale), least) for side in (height, width)]
    resized = F.interpolate(image, size, mode="bilinear", align_corners=True)
    scores = bench.learner.logits(bench.network(), resized)
    return F.interpolate(scores, [height, width], mode="bilinear", align_corners=True)
