"""OCTA and fundus images in the .h5 files of FedICRA and FedLPPA, with the authors' weak labels."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import natural, read_h5
from consilia.datasets.source import UNSEEN, Exam, FileDataset, Frame, Place
from consilia.declare import ImageShape
from consilia.errors import DataError

#: Names that the authors' files have for our forms.
KEYS = {
    "scribble": ("scribble",),
    "scribble_noisy": ("scribble_noisy", "scribble2"),
    "point": ("keypoint", "point"),
    "block": ("block",),
    "box": ("box",),
    "rotated-box": ("rotated_box", "rbox"),
}
FAZ_SITES = ("fazid", "octa500-3m", "octa500-6m", "octa-25k", "rose")
ODOC_SITES = ("drishti-gs1", "rim-one-r3", "refuge-train", "refuge-val", "gamma")


def index(sites: tuple[str, ...], place: Place, site: str) -> list[Exam]:
    """Return the images of one site in the authors' split; equal images are one group."""
    folder = place.card.name.removesuffix("-authors")
    number = sites.index(site) + 1
    home = place.find(f"{folder}/Domain{number}", f"{folder}/Site{number}", within=place.root)
    exams: list[Exam] = []
    for split in ("train", "test"):
        files = place.find(split, within=home).glob("*.h5")
        exams += [
            _exam(path, place, split) for path in sorted(files, key=lambda path: natural(path.name))
        ]
    return exams


def _exam(path: Path, place: Place, split: str) -> Exam:
    labels = len(place.card.labels)
    image = _array(path, place, "image")
    name = f"{split}-{path.stem}"

    def read() -> list[Frame]:
        pixels = _array(path, place, "image")
        if pixels.ndim == 3 and pixels.shape[0] in {1, 3}:
            pixels = pixels.transpose(1, 2, 0).squeeze()
        if pixels.dtype.kind == "f" and pixels.min() >= 0 and pixels.max() <= 255:
            scale = 255 if pixels.max() <= 1 else 1  # all images of a site on one scale
            pixels = np.rint(pixels * scale).astype(np.uint8)
        mask = _array(path, place, "mask").astype(np.uint8)
        if mask.shape != pixels.shape[:2] or mask.max() > labels:
            msg = f"the mask of {place.what(path)} does not fit its image, or has values beyond {labels}"
            raise DataError(msg)
        return [Frame(name, pixels, mask)]

    def marks(form: str) -> np.ndarray | None:
        for key in KEYS[form]:
            drawn = read_h5(path, place, key)
            if drawn is not None:
                return np.where(drawn > labels, UNSEEN, drawn).astype(np.uint8)
        return None

    group = hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()[:16]
    return Exam(name, group, read, "train" if split == "train" else "test", marks=marks)


def _array(path: Path, place: Place, key: str) -> np.ndarray:
    found = read_h5(path, place, key)
    if found is None:
        msg = f"{place.what(path)} has no array '{key}'; expected {place.card.layout}"
        raise DataError(msg)
    return found


def _dataset(
    name: str, title: str, labels: tuple[str, ...], sites: tuple[str, ...], shape: ImageShape
) -> tuple[FileDataset, FileDataset]:
    """Return the dataset with weak labels that are drawn, and the one with the authors' own."""
    layout = (
        f"{name}/Domain{{1..{len(sites)}}}/{{train,test}}/*.h5 (or Site1, ...), each with arrays "
        "image (h, w or 3, h, w), mask (0 background, 1 to "
        f"{len(labels)} labels) and, in train, scribble, scribble_noisy, keypoint, block, box "
        f"(values as in mask, {len(labels) + 1} where nothing is marked)"
    )
    plain, own = (
        FileDataset(
            DatasetCard(
                name + end,
                title + more,
                "segmentation",
                labels,
                sites,
                source="github.com/llmir/FedICRA (FAZ) and github.com/llmir/FedLPPA",
                licence="none stated; the sources ask for research use",
                citation="Lin et al. FedLPPA. IEEE TMI 2024; Lin et al. FedICRA. MLMI 2023.",
                layout=layout,
            ),
            shape,
            partial(index, sites),
            authors=bool(end),
        )
        for end, more in (("", ""), ("-authors", ", with the authors' own weak labels"))
    )
    return plain, own


FEDICRA = (
    *_dataset(
        "octa-faz",
        "Foveal avascular zone on OCTA",
        ("faz",),
        FAZ_SITES,
        ImageShape(size=(256, 256), channels=1),
    ),
    *_dataset(
        "odoc",
        "Optic cup and disc on fundus images",
        ("cup", "disc"),
        ODOC_SITES,
        ImageShape(size=(384, 384), channels=3),
    ),
)
