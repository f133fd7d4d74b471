"""What a dataset hands over: cases of a site, split by patient, and a card that says where from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from consilia.labels import LabelView


@dataclass(frozen=True)
class Cases:
    """Images of one site and one split, with the truth where it exists.

    Attributes:
        image: Intensities.
        truth: Index map (segmentation, 0 is background) or one column per label (classification);
            `None` where nobody knows it, as at a real site with weak labels.
        case: A name per image, unique within the site.
        group: The patient (or lesion) each image belongs to; splits and statistics go by it.
        volume: The volume each slice was cut from, where images are slices; else `None`.
    """

    image: UInt8[np.ndarray, "n c h w"]
    truth: UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n k"] | None
    case: tuple[str, ...]
    group: tuple[str, ...]
    volume: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.image)

    def take(self, index: np.ndarray) -> Cases:
        """Return some of the cases, in the order of `index`."""
        return Cases(
            self.image[index],
            None if self.truth is None else self.truth[index],
            tuple(self.case[i] for i in index),
            tuple(self.group[i] for i in index),
            None if self.volume is None else tuple(self.volume[i] for i in index),
        )


@dataclass(frozen=True)
class SiteData:
    """Everything one site brings: training cases with their label view, and cases to be judged on."""

    train: Cases
    view: LabelView
    validation: Cases | None
    test: Cases


@dataclass(frozen=True)
class DatasetCard:
    """Where a dataset comes from and on what terms."""

    name: str
    title: str
    task: str
    labels: tuple[str, ...]
    sites: tuple[str, ...]
    source: str
    licence: str
    citation: str
    layout: str = "drawn on the fly; no file is read"
