"""Packs: NAME.npz and NAME.json, small collections of real images found in the data folder.

Images are JPEG bytes one after another (`image_jpeg` from `image_offset[i]` to `[i + 1]`) or an
array (`image`); masks, labels, sites and groups are arrays. Nothing is unpickled.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import read_npz
from consilia.datasets.source import UNSEEN, Exam, FileDataset, Frame, Place
from consilia.declare import ImageShape
from consilia.errors import DataError

#: The arrays of a pack, images decoded.
Arrays = dict[str, np.ndarray]

FINDINGS = (
    "atelectasis",
    "cardiomegaly",
    "effusion",
    "infiltration",
    "mass",
    "nodule",
    "pneumonia",
    "pneumothorax",
    "consolidation",
    "edema",
    "emphysema",
    "fibrosis",
    "pleural-thickening",
    "hernia",
)
HAM_LABELS = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
HAM_SITES = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")


def read_pack(root: Path, name: str) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays of a pack, images decoded, and its card as it is written."""
    card = DatasetCard(name, name, "", (), (), "", "", "", f"{name}.npz and {name}.json")
    place = Place(card, root)
    data, words = (place.find(f"{name}{end}", within=root) for end in (".npz", ".json"))
    return _read(data, words, name, data.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read(data: Path, words: Path, name: str, changed: int) -> tuple[Arrays, dict[str, Any]]:
    del changed  # a key of the cache: a file that was written again is read again
    place = Place(DatasetCard(name, name, "", (), (), "", "", ""), data.parent)
    arrays = read_npz(data, place)
    try:
        card: dict[str, Any] = json.loads(words.read_text(encoding="utf-8"))
        if "image_jpeg" in arrays:
            joined = arrays.pop("image_jpeg").tobytes()
            offset = arrays.pop("image_offset").tolist()
            arrays["image"] = np.stack([_decode(joined[a:b]) for a, b in pairwise(offset)])
    except Exception:  # a damaged file can raise anything at all in a decoder
        msg = f"pack '{name}' in '{data.parent}' is damaged; copy {name}.npz and {name}.json again"
        raise DataError(msg) from None
    return arrays, card


def _decode(jpeg: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
        return np.asarray(image)


@dataclass(frozen=True)
class Layout:
    """Which arrays of a pack say what.

    Attributes:
        sites: Names of ours for the numbers in the array `site`; a single name takes all images.
        groups: Returns the group of each image.
        names: Returns the name of each image.
        classes: How many labels a number in `label` can be; 0 where `label` has a column for each.
        segments: Whether the truth is the array `mask`, else it is `label`.
        volumes: The array that names the volume of each slice.
        marks: The array with the authors' own labels of each form.
    """

    sites: tuple[str, ...]
    groups: Callable[[Arrays], Sequence[str]]
    names: Callable[[Arrays], Sequence[str]]
    classes: int = 0
    segments: bool = True
    volumes: str | None = None
    marks: tuple[tuple[str, str], ...] = ()


def _index(pack: str, layout: Layout, place: Place, site: str) -> list[Exam]:
    arrays, _ = read_pack(place.root, pack)
    count = len(arrays["image"])
    number = arrays["site"] if len(layout.sites) > 1 else np.zeros(count, dtype=np.uint8)
    mine = np.flatnonzero(number == layout.sites.index(site)).tolist()
    groups, names = layout.groups(arrays), layout.names(arrays)
    if layout.volumes:
        return _volumes(arrays, mine, groups, names, arrays[layout.volumes].tolist())
    splits: list[Literal["train", "test"] | None] = [None] * count
    if "split" in arrays:
        splits = ["test" if value else "train" for value in arrays["split"].tolist()]
    return [
        Exam(
            str(names[i]),
            str(groups[i]),
            partial(_frames, arrays, layout, [i], names),
            splits[i],
            marks=partial(_marks, arrays, dict(layout.marks), i) if layout.marks else None,
        )
        for i in mine
    ]


def _volumes(
    arrays: Arrays, mine: list[int], groups: Sequence[str], names: Sequence[str], of: list[str]
) -> list[Exam]:
    slices: dict[str, list[int]] = {}
    for i in mine:
        slices.setdefault(of[i], []).append(i)
    layout = Layout((), lambda _: (), lambda _: ())
    return [
        Exam(name, str(groups[at[0]]), partial(_frames, arrays, layout, at, names), volume=True)
        for name, at in slices.items()
    ]


def _frames(arrays: Arrays, layout: Layout, at: list[int], names: Sequence[str]) -> list[Frame]:
    if layout.segments:
        truth = arrays["mask"]
    else:
        truth = arrays["label"]
        if layout.classes:
            truth = np.eye(layout.classes, dtype=np.uint8)[truth[at]]
            return [
                Frame(str(names[i]), arrays["image"][i], t) for i, t in zip(at, truth, strict=True)
            ]
    return [Frame(str(names[i]), arrays["image"][i], truth[i]) for i in at]


def _marks(arrays: Arrays, forms: dict[str, str], at: int, form: str) -> np.ndarray | None:
    """Return the authors' marks of one image: 2 is "not marked" in a pack, 255 "no annotation"."""
    if form not in forms:
        return None
    drawn = arrays[forms[form]][at]
    return None if (drawn == UNSEEN).all() else np.where(drawn == 2, UNSEEN, drawn).astype(np.uint8)


def _filenames(arrays: Arrays) -> list[str]:
    return [str(name).removesuffix(".png") for name in arrays["filename"].tolist()]


def _named(prefix: str, key: str) -> Callable[[Arrays], list[str]]:
    return lambda arrays: [f"{prefix}{value}" for value in arrays[key].tolist()]


def _split_filenames(arrays: Arrays) -> list[str]:
    """Return names that tell training and test images apart: both begin again at 1."""
    splits = ["test" if value else "train" for value in arrays["split"].tolist()]
    return [f"{split}-{name}" for split, name in zip(splits, _filenames(arrays), strict=True)]


FAZ = Layout(
    ("fazid", "octa500-3m", "octa500-6m", "octa-25k", "rose"),
    _named("g", "group"),
    _split_filenames,
    marks=(
        ("scribble", "weak_scribble"),
        ("scribble_noisy", "weak_scribble_noisy"),
        ("point", "weak_keypoint"),
        ("block", "weak_block"),
        ("box", "weak_box"),
    ),
)
SKIN = Layout(HAM_SITES, _named("lesion-", "group"), _filenames)
NUCLEI = Layout(
    ("fluorescence", "fluorescence-large", "purple", "stained", "bright-field"),
    _filenames,
    _filenames,
)
MS = Layout(
    ("mslesseg", "pubmri"),
    # three scans of one patient are one group: MSLesSeg_P14_T1, _T2 and _T3
    lambda arrays: [str(name).rpartition("_")[0] for name in arrays["patient"].tolist()],
    lambda arrays: [
        f"{name}-s{at:03d}"
        for name, at in zip(arrays["patient"].tolist(), arrays["slice_index"].tolist(), strict=True)
    ],
    volumes="patient",
)
HAM = Layout(HAM_SITES, SKIN.groups, _filenames, classes=7, segments=False)
NIH = Layout(("nih",), _named("p", "patient"), _filenames, segments=False)


def _pack(
    pack: str,
    title: str,
    labels: tuple[str, ...],
    layout: Layout,
    size: int,
    channels: int,
    *,
    name: str | None = None,
    licence: str,
    citation: str,
    parts: int = 0,
    **more: Any,
) -> FileDataset:
    card = DatasetCard(
        name or pack,
        title,
        "segmentation" if layout.segments else "classification",
        labels,
        layout.sites,
        source=f"a pack, found through --data or CONSILIA_DATA; {pack}.json says from where",
        licence=licence,
        citation=citation,
        layout=f"{pack}.npz and {pack}.json",
        parts=parts,
    )
    shape = ImageShape(size=(size, size), channels=channels)
    return FileDataset(card, shape, partial(_index, pack, layout), common=bool(parts), **more)


_FAZ: dict[str, Any] = {
    "labels": ("faz",),
    "layout": FAZ,
    "size": 128,
    "channels": 1,
    "licence": "none stated by llmir/FedICRA; the sources ask for research use",
    "citation": "Lin et al. Unifying and personalizing weakly-supervised federated medical image "
    "segmentation via adaptive representation and aggregation. MLMI 2023.",
}
_HAM: dict[str, Any] = {
    "channels": 3,
    "licence": "CC BY-NC 4.0 (HAM10000)",
    "citation": "Tschandl et al. The HAM10000 dataset. Scientific Data 2018.",
}

PACKS = (
    _pack("faz128", "Foveal avascular zone on OCTA, five sources; weak labels are drawn", **_FAZ),
    _pack(
        "faz128",
        "The same with the weak labels that the authors drew themselves",
        name="faz128-authors",
        authors=True,
        **_FAZ,
    ),
    _pack("skinseg128", "Skin lesions, four sources of HAM10000", ("lesion",), SKIN, 128, **_HAM),
    _pack(
        "nuclei256",
        "Nuclei on microscopy, kinds of acquisition as sites",
        ("nucleus",),
        NUCLEI,
        256,
        1,
        licence="CC0",
        citation="Caicedo et al. Nucleus segmentation across imaging experiments. Nature Methods 2019.",
        parts=4,
    ),
    _pack(
        "mslesion224",
        "MS lesions on FLAIR slices, five patients in all",
        ("lesion",),
        MS,
        224,
        1,
        licence="none stated in the source repositories",
        citation="MSLesSeg (2025); Lesjak et al. A novel public MR image dataset. Neuroinformatics 2018.",
        parts=4,
    ),
    _pack(
        "ham64", "Skin lesions of seven kinds, four sources", HAM_LABELS, HAM, 64, parts=5, **_HAM
    ),
    _pack(
        "nih64",
        "Fourteen findings on chest radiographs, the first 4,999 of ChestX-ray14",
        FINDINGS,
        NIH,
        64,
        1,
        licence="no restriction; the NIH Clinical Center asks for citation and acknowledgement",
        citation="Wang et al. ChestX-ray8. CVPR 2017.",
        parts=8,
        exclusive=False,
        test=1000,
    ),
)
