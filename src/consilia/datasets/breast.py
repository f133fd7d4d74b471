"""Breast ultrasound of FedMix: BUSI, BUSIS and UDIAT as sites."""

from __future__ import annotations

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import paired, picture_exam, pictures
from consilia.datasets.source import Exam, FileDataset, Place
from consilia.datasets.split import shuffled
from consilia.declare import ImageShape

KINDS = ("benign", "malignant", "normal")


def index(place: Place, site: str) -> list[Exam]:
    """Return the images of one source; healthy ones (of BUSI) are for training only.

    The study `breast` gives one half of the healthy images to BUSI and the other to BUSIS, where a site
    has no labels, and leaves them out elsewhere: FedMix speaks of two sets, its code of such sites.
    """
    if site == "busi":
        return _busi(place)
    if site in {"busi-sick", "busi-half"}:
        return [*_sick(place), *(_half(place, 0) if site == "busi-half" else ())]
    if site == "busis-half":
        return [*index(place, "busis"), *_half(place, 1)]
    home = place.find(site.upper(), site)
    images = place.find("original", "Original", "images", within=home)
    return paired(place, images, place.find("GT", "gt", "masks", within=home))


def _sick(place: Place) -> list[Exam]:
    return [exam for exam in _busi(place) if exam.split is None]


def _half(place: Place, half: int) -> list[Exam]:
    """Return every other healthy image, in an order that depends on names alone."""
    healthy = {exam.name: exam for exam in _busi(place) if exam.split == "train"}
    return [healthy[name] for name in shuffled(healthy, "healthy")[half::2]]


def _busi(place: Place) -> list[Exam]:
    home = place.find("BUSI", "busi", "Dataset_BUSI_with_GT")
    home = home / "Dataset_BUSI_with_GT" if (home / "Dataset_BUSI_with_GT").is_dir() else home
    exams = []
    for kind in KINDS:
        files = pictures(place.find(kind, within=home))
        masks = {name: path for name, path in files.items() if "_mask" in name}
        for name, image in files.items():
            if name in masks:
                continue
            own = [path for mask, path in masks.items() if mask.partition("_mask")[0] == name]
            split = "train" if kind == "normal" else None
            exams.append(picture_exam(place, image, own if split is None else (), split=split))
    return exams


BREAST = FileDataset(
    DatasetCard(
        "breast",
        "Tumors on breast ultrasound, the FedMix study",
        "segmentation",
        ("tumor",),
        ("busi", "busis", "udiat"),
        source="BUSI: scholar.cu.edu.eg/?q=afahmy/pages/dataset; BUSIS: cvprip.cs.usu.edu/busbench; "
        "UDIAT: from its authors on request",
        licence="BUSI: CC0 as its page says; BUSIS and UDIAT: research use, by agreement",
        citation="Al-Dhabyani et al. Data in Brief 2020; Zhang et al. BUSIS. Healthcare 2022; "
        "Yap et al. IEEE JBHI 2018.",
        layout="breast/BUSI/{benign,malignant,normal}/*.png with *_mask.png beside each image, "
        "breast/BUSIS/{original,GT}/* and breast/UDIAT/{original,GT}/* with equal names (patients "
        "are not told apart by file names: splits go by image); also as 'busi-sick' without healthy "
        "images, 'busi-half' with one half of them and 'busis-half' with the other",
    ),
    ImageShape(size=(224, 224), channels=1),
    index,
    variants=("busi-sick", "busi-half", "busis-half"),
)
