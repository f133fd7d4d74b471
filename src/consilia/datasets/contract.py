"""What a dataset hands over: cases of a site, split by patient, and a card that says where from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, UInt8

from consilia.declare import ImageShape, SiteDeclaration
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
        marked: Which of the federation's labels the truth knows of; `None` means all. A label that
            it does not know of is not judged.
        spacing: The millimetres from one plane, row and column of each image to the next, at the
            size that images were brought to; `None` where files do not say.
        known: Where that differs between images of a classification task, which labels the truth
            knows of each; it stands for `marked`.
    """

    image: UInt8[np.ndarray, "n c h w"]
    truth: UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n k"] | None
    case: tuple[str, ...]
    group: tuple[str, ...]
    volume: tuple[str, ...] | None = None
    marked: tuple[bool, ...] | None = None
    spacing: Float[np.ndarray, "n 3"] | None = None
    known: Bool[np.ndarray, "n k"] | None = None

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
            self.marked,
            None if self.spacing is None else self.spacing[index],
            None if self.known is None else self.known[index],
        )


@dataclass(frozen=True)
class SiteData:
    """Everything one site brings: training cases with their label view, and cases to be judged on."""

    train: Cases
    view: LabelView
    validation: Cases | None
    test: Cases

    @property
    def fingerprint(self) -> str:
        """A hash of every image, label and name, by which a resumed run knows its data again."""
        digest = hashlib.blake2b(digest_size=16)
        view = self.view
        for part in (view.target, view.known_labels, view.known_pixels, view.constraint):
            _feed(digest, part)
        for cases in (self.train, self.validation, self.test):
            for array in (None, None) if cases is None else (cases.image, cases.truth):
                _feed(digest, array)
            digest.update(repr(None if cases is None else (cases.case, cases.group)).encode())
        return digest.hexdigest()


def _feed(digest: hashlib.blake2b, array: np.ndarray | None) -> None:
    digest.update(repr(None if array is None else (array.shape, array.dtype.str)).encode())
    if array is not None:
        digest.update(np.ascontiguousarray(array).data)


@dataclass(frozen=True)
class DatasetCard:
    """Where a dataset comes from and on what terms.

    `layout` says what a user puts on disk. `parts` is the usual number of sites where a dataset can
    also be divided at random (sites "1-of-4", "2-of-4", ...); 0 where it cannot.
    """

    name: str
    title: str
    task: str
    labels: tuple[str, ...]
    sites: tuple[str, ...]
    source: str
    licence: str
    citation: str
    layout: str = "drawn on the fly; no file is read"
    parts: int = 0


class Dataset(ABC):
    """Cases of several sites, all read or drawn in one way.

    Attributes:
        card: Name, labels, sites, origin and terms.
        shape: The size and channels that images are brought to unless a federation says otherwise.
        exclusive: Whether an image (classification) or a pixel has at most one label.
    """

    card: DatasetCard
    shape: ImageShape
    exclusive: bool

    @abstractmethod
    def load(self, site: str, root: Path, shape: ImageShape, seed: int = 0) -> tuple[Cases, Cases]:
        """Return a site's training and test cases, which never share a patient.

        Args:
            site: One of the sites on the card, or "i-of-k" where the dataset can be divided.
            root: The folder that datasets are looked for in.
            shape: The size and channels that images are brought to.
            seed: Decides who is tested on and how patients are dealt to sites.
        """

    @abstractmethod
    def common_test(self, root: Path, shape: ImageShape, seed: int = 0) -> Cases | None:
        """Return the test set that all sites share; `None` where each site has only its own."""

    def annotation(
        self,
        site: str,
        declaration: SiteDeclaration,
        root: Path,
        shape: ImageShape,
        seed: int = 0,
    ) -> LabelView | None:
        """Return the dataset's own weak labels of the training cases, in the declared form.

        Labels and cases are in the dataset's order. `None` where it has none of that form, or none
        to be used: then the form is drawn from the full labels.
        """
        del site, declaration, root, shape, seed
        return None
