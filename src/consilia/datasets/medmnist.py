"""MedMNIST v2: twelve small sets of 2-D images in .npz files, divided at random over sites."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import read_npz
from consilia.datasets.pack import FINDINGS
from consilia.datasets.source import Exam, FileDataset, Frame, Place
from consilia.declare import ImageShape
from consilia.errors import DataError

ORGANS = (
    "bladder femur-left femur-right heart kidney-left kidney-right liver lung-left lung-right "
    "pancreas spleen"
)
#: Channels, and labels in the order of their numbers.
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    name: (channels, tuple(labels.split()))
    for name, channels, labels in (
        (
            "pathmnist",
            3,
            "adipose no-tissue debris lymphocytes mucus smooth-muscle normal-mucosa stroma tumor",
        ),
        ("chestmnist", 1, " ".join(FINDINGS)),
        ("dermamnist", 3, "akiec bcc bkl df mel nv vasc"),
        ("octmnist", 1, "cnv dme drusen normal"),
        ("pneumoniamnist", 1, "normal pneumonia"),
        ("retinamnist", 3, "grade-0 grade-1 grade-2 grade-3 grade-4"),
        ("breastmnist", 1, "malignant benign"),
        (
            "bloodmnist",
            3,
            "basophil eosinophil erythroblast immature-granulocyte lymphocyte monocyte neutrophil platelet",
        ),
        (
            "tissuemnist",
            1,
            "collecting-duct glomerular-endothelial interstitial-endothelial leukocyte podocyte "
            "proximal-tubule thick-limb distal-tubule",
        ),
        ("organamnist", 1, ORGANS),
        ("organcmnist", 1, ORGANS),
        ("organsmnist", 1, ORGANS),
    )
}


@lru_cache(maxsize=2)
def _arrays(path: Path, place: Place) -> dict[str, np.ndarray]:
    return read_npz(path, place)


def index(kind: str, place: Place, site: str) -> list[Exam]:
    """Return all images: the official test set is tested on, the rest is for training."""
    del site
    path = place.find(
        *(f"medmnist/{kind}{end}.npz" for end in ("", "_64", "_128", "_224")), within=place.root
    )
    arrays = _arrays(path, place)
    exams = []
    splits: tuple[tuple[str, Literal["train", "test"]], ...] = (
        ("train", "train"),
        ("val", "train"),
        ("test", "test"),
    )
    for part, split in splits:
        images, labels = arrays.get(f"{part}_images"), arrays.get(f"{part}_labels")
        if images is None or labels is None or len(images) != len(labels):
            msg = f"{place.what(path)} has no arrays '{part}_images' and '{part}_labels' of one length"
            raise DataError(msg)
        truth = labels.astype(np.uint8)
        if truth.ndim == 1 or truth.shape[1] == 1:
            if truth.max(initial=0) >= len(place.card.labels):
                count = len(place.card.labels)
                msg = f"{place.what(path)} has the class {truth.max()}; expected {count} from 0"
                raise DataError(msg)
            truth = np.eye(len(place.card.labels), dtype=np.uint8)[truth.reshape(-1)]
        for at in range(len(images)):
            name = f"{part}-{at:06d}"
            exams.append(Exam(name, name, partial(_frame, name, images, truth, at), split))
    return exams


def _frame(name: str, images: np.ndarray, truth: np.ndarray, at: int) -> list[Frame]:
    return [Frame(name, images[at], truth[at])]


MEDMNIST = tuple(
    FileDataset(
        DatasetCard(
            f"medmnist-{kind}",
            f"{kind} of MedMNIST v2",
            "classification",
            labels,
            ("all",),
            source="medmnist.com",
            licence="CC BY 4.0 (dermamnist: CC BY-NC 4.0)",
            citation="Yang et al. MedMNIST v2. Scientific Data 2023.",
            layout=f"medmnist/{kind}.npz (or {kind}_64.npz, _128, _224), as downloaded",
            parts=4,
        ),
        ImageShape(size=(28, 28), channels=channels),
        partial(index, kind),
        exclusive=kind != "chestmnist",
        common=True,
    )
    for kind, (channels, labels) in KINDS.items()
)
