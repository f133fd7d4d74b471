"""HAM10000 (ISIC 2018): lesion masks and seven kinds of lesion, its four sources as sites."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import picture_exam, pictures, read_rows
from consilia.datasets.pack import HAM_LABELS, HAM_SITES
from consilia.datasets.source import Exam, FileDataset, Place
from consilia.declare import ImageShape
from consilia.errors import DataError

TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata")
IMAGES = ("images", "HAM10000_images", "HAM10000_images_part_1", "ISIC2018_Task3_Training_Input")
MASKS = ("masks", "HAM10000_segmentations_lesion_tschandl")
_HOME = (
    "ham10000/HAM10000_metadata.csv (columns lesion_id, image_id, dx, dataset), "
    "ham10000/images/ISIC_*.jpg"
)
_CITATION = "Tschandl, Rosendahl, Kittler. The HAM10000 dataset. Scientific Data 2018."


@lru_cache(maxsize=4)
def _files(home: Path, place: Place) -> tuple[dict[str, Path], tuple[dict[str, str], ...]]:
    table = place.find(*TABLES, within=home)
    rows = read_rows(table, place, ("lesion_id", "image_id", "dx", "dataset"))
    images = pictures(place.find(*IMAGES, within=home))
    second = home / "HAM10000_images_part_2"
    return {**images, **(pictures(second) if second.is_dir() else {})}, tuple(rows)


def index(segments: bool, place: Place, site: str) -> list[Exam]:
    """Return the images of one source, grouped by lesion."""
    home = place.find("ham10000", within=place.root)
    images, rows = _files(home, place)
    masks = pictures(place.find(*MASKS, within=home)) if segments else {}
    exams = []
    for row in rows:
        name = row["image_id"]
        if row["dataset"] != site:
            continue
        drawn = masks.get(f"{name}_segmentation", masks.get(name))
        if name not in images or (segments and drawn is None) or row["dx"] not in HAM_LABELS:
            msg = (
                f"row '{name}' of the table of dataset '{place.card.name}' has no image, no mask or "
                "no known dx; complete the download"
            )
            raise DataError(msg)
        label = np.eye(len(HAM_LABELS), dtype=np.uint8)[HAM_LABELS.index(row["dx"])]
        drawn_masks = [drawn] if drawn is not None else []
        exams.append(
            picture_exam(
                place,
                images[name],
                drawn_masks,
                group=row["lesion_id"],
                label=None if segments else label,
            )
        )
    return exams


HAM10000 = FileDataset(
    DatasetCard(
        "ham10000",
        "Skin lesions of seven kinds (ISIC 2018 task 3), the FedLSM study",
        "classification",
        HAM_LABELS,
        HAM_SITES,
        source="doi.org/10.7910/DVN/DBW86T",
        licence="CC BY-NC 4.0",
        citation=_CITATION,
        layout=_HOME,
        parts=5,
    ),
    ImageShape(size=(224, 224), channels=3),
    partial(index, False),
    common=True,
)
HAM10000_MASKS = FileDataset(
    DatasetCard(
        "ham10000-masks",
        "Outlines of skin lesions, the FedMix study",
        "segmentation",
        ("lesion",),
        HAM_SITES,
        source="doi.org/10.7910/DVN/DBW86T",
        licence="CC BY-NC 4.0",
        citation=_CITATION,
        layout=f"{_HOME} and ham10000/masks/ISIC_*_segmentation.png",
        parts=4,
    ),
    ImageShape(size=(224, 224), channels=3),
    partial(index, True),
    common=True,
)
