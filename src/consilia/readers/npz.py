"""A site's images in one .npz file, for those who have arrays and no folder of pictures.

| array | shape | meaning |
|---|---|---|
| `image` | n h w, or n h w c | numbers of any kind, brought to 8 bits as those of files are |
| `mask` | n h w | 0 is background, c the c-th label, 255 not looked at (weak forms) |
| `label` | n k | 1 present, 0 absent, -1 unknown, a column per label of the federation |
| `patient` | n | names or numbers; left out, every image is a patient of its own |
| `split` | n | "train", "validation" or "test"; left out, a hash of the patient decides |
| `case` | n | names; left out, numbers |

Nothing is unpickled. Boxes need a folder with boxes.csv.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast
from zlib import crc32

import numpy as np

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import Federation
from consilia.errors import DataError, listing, suggestion
from consilia.readers.entries import SPLITS, UNSEEN, Folder, Split
from consilia.readers.files import Report, check_bytes, check_values, guarded, printable, refuse
from consilia.readers.images import check_finite, fit_image, fit_mask, index_values
from consilia.readers.masks import fit_marks
from consilia.readers.patients import check_leaks, drawn_split, report_copy
from consilia.readers.views import view_of_masks, view_of_nothing, view_of_tags

ARRAYS = ("image", "mask", "label", "patient", "split", "case")
SUFFIX = ".npz"


def read_npz_site(
    path: Path, federation: Federation, site: str | None, report: Report = refuse
) -> SiteData:
    """Return everything a site's .npz file holds, with its label view as the site declared it.

    Args:
        path: The file.
        federation: Gives the labels, the image size and the site's declaration.
        site: Whose file it is; `None` for a common test set, of which all cases are test cases.
        report: Hears of images and patients that are in several splits, and of copies.

    Raises:
        DataError: Something in the file cannot be used; the sentence says what, and the way out.
    """
    folder = Folder(path.parent, federation, site)
    what = f"file '{path.name}' of {folder.who}"
    arrays = _read(path, what)
    count = len(arrays["image"])
    groups = _texts(arrays.get("patient"), count)
    names = _texts(arrays.get("case"), count)
    splits = _splits(folder, arrays.get("split"), groups, what)
    check_leaks(folder, zip(groups, splits, strict=True), report)
    _note_copies(folder, arrays["image"], names, splits, report)
    parts = {
        split: np.array([at for at, own in enumerate(splits) if own == split], dtype=np.int64)
        for split in SPLITS
    }
    images = np.stack(
        [
            fit_image(
                check_finite(one, what), federation.image.size, federation.image.channels, what
            )
            for one in arrays["image"]
        ]
    )
    whole = Cases(images, None, names, groups)
    judged = {
        split: _judged(folder, whole.take(parts[split]), arrays, parts[split], what)
        for split in ("validation", "test")
    }
    train = whole.take(parts["train"])
    source = folder.source("train")
    at = parts["train"]
    if source == "tags":
        view = view_of_tags(folder, _labels(folder, arrays, at, what))
    elif source in {"mask", "marks"}:
        view = view_of_masks(
            folder, _masks(folder, arrays, at, what, weak=source == "marks"), source
        )
    elif source == "nothing":
        view = view_of_nothing(folder, len(at))
    else:
        msg = f"{what} cannot hold boxes; use a folder with a table boxes.csv"
        raise DataError(msg)
    if site is not None and not len(at):
        msg = f"{what} has no training images; mark some as 'train' in its array `split`"
        raise DataError(msg)
    complete = site is None or federation[site].complete
    known = complete and bool(view.known_labels.all())
    if known and source == ("mask" if folder.segments else "tags"):
        train = Cases(train.image, view.target, train.case, train.group)
    validation = judged["validation"]
    return SiteData(train, view, validation if len(validation) else None, judged["test"])


def _read(path: Path, what: str) -> dict[str, np.ndarray]:
    if not path.is_file():
        msg = f"{what} does not exist; check `data` and where relative paths begin"
        raise DataError(msg)
    check_bytes(path.stat().st_size, what)
    with guarded(what), np.load(path, allow_pickle=False) as held:
        arrays = {name: _array(held, name, what) for name in held.files}
    unknown = [name for name in arrays if name not in ARRAYS]
    if unknown:
        near = suggestion(unknown[0], ARRAYS)
        msg = f"{what} holds the array '{unknown[0]}'{near} (known: {', '.join(ARRAYS)})"
        raise DataError(msg)
    if "image" not in arrays or arrays["image"].ndim not in {3, 4}:
        msg = f"{what} has no array `image` of n x height x width (x channels) numbers; add it"
        raise DataError(msg)
    if not len(arrays["image"]):
        msg = f"{what} has 0 images in its array `image`; save it again with some"
        raise DataError(msg)
    check_values(arrays["image"].shape, what)
    count = len(arrays["image"])
    for name, array in arrays.items():
        if not array.ndim or len(array) != count:
            found = len(array) if array.ndim else "a single value"
            msg = f"{what} has {count} images, but {found} in its array `{name}`; give one for each"
            raise DataError(msg)
    return arrays


def _array(held: Mapping[str, np.ndarray], name: str, what: str) -> np.ndarray:
    try:
        return held[name]
    except ValueError as problem:
        if "allow_pickle" not in str(problem):
            raise
        msg = (
            f"{what} holds Python objects in its array `{printable(name)}`, which are pickled and "
            "never read; save plain numbers or texts (`dtype=str`)"
        )
        raise DataError(msg) from None


def _texts(array: np.ndarray | None, count: int) -> tuple[str, ...]:
    return tuple(str(value) for value in (range(count) if array is None else array.tolist()))


def _splits(
    folder: Folder, array: np.ndarray | None, groups: tuple[str, ...], what: str
) -> tuple[Split, ...]:
    if not folder.site:
        return tuple(SPLITS[-1] for _ in groups)
    if array is None:
        return tuple(drawn_split(patient) for patient in groups)
    found = tuple(str(value) for value in array.tolist())
    strange = [split for split in found if split not in SPLITS]
    if strange:
        near = suggestion(strange[0], SPLITS)
        msg = f"{what} has the split '{strange[0]}'; expected {listing(SPLITS, 'or')}{near}"
        raise DataError(msg)
    return cast("tuple[Split, ...]", found)


def _note_copies(
    folder: Folder,
    images: np.ndarray,
    names: tuple[str, ...],
    splits: tuple[Split, ...],
    report: Report,
) -> None:
    """Report images that have the same values as one before, unless they are constant."""
    first: dict[int, int] = {}
    order = sorted(range(len(images)), key=lambda at: SPLITS.index(splits[at]))
    for at in order:  # splits in the order in which a folder's are read
        same = first.setdefault(crc32(np.ascontiguousarray(images[at]).data), at)
        if same == at or images[at].min() == images[at].max():
            continue
        if np.array_equal(images[at], images[same]):
            report_copy(folder, (names[same], splits[same]), (names[at], splits[at]), report)


def _judged(
    folder: Folder, cases: Cases, arrays: dict[str, np.ndarray], at: np.ndarray, what: str
) -> Cases:
    """Return images that models are judged on, with complete labels."""
    if folder.segments:
        truth = _masks(folder, arrays, at, what, weak=False)
    else:
        tags = _labels(folder, arrays, at, what)
        if (tags < 0).any():
            msg = f"{what} has test images with unknown labels (-1); fill them in or put them in 'train'"
            raise DataError(msg)
        truth = tags.astype(np.uint8)
    return Cases(cases.image, truth, cases.case, cases.group)


def _masks(
    folder: Folder, arrays: dict[str, np.ndarray], at: np.ndarray, what: str, *, weak: bool
) -> np.ndarray:
    size, labels = folder.federation.image.size, folder.federation.labels
    if not len(at):
        return np.zeros((0, *size), dtype=np.uint8)
    masks = arrays.get("mask")
    if masks is None or masks.shape != arrays["image"].shape[:3]:
        found = "none" if masks is None else " x ".join(map(str, masks.shape))
        wanted = " x ".join(map(str, arrays["image"].shape[:3]))
        msg = f"{what} needs an array `mask` of {wanted} class indices, found {found}; add it"
        raise DataError(msg)
    values = index_values(masks[at], what)
    if not weak and len(labels) == 1 and set(np.unique(values).tolist()) <= {0, UNSEEN}:
        values = values == UNSEEN  # as most programs save a mask
    strange = values > len(labels)
    if weak:
        strange &= values != UNSEEN
    if strange.any():
        msg = (
            f"{what} has class {int(values[strange][0])} in `mask`, but the federation has "
            f"{len(labels)} label{'s' * (len(labels) > 1)}; map its values to 0 to {len(labels)}"
        )
        raise DataError(msg)
    plain = values.astype(np.uint8)
    return np.stack([fit_marks(m, size) if weak else fit_mask(m, size) for m in plain])


def _labels(folder: Folder, arrays: dict[str, np.ndarray], at: np.ndarray, what: str) -> np.ndarray:
    count, tags = len(folder.federation.labels), arrays.get("label")
    if tags is None or tags.ndim != 2 or tags.shape[1] != count:
        found = "none" if tags is None else " x ".join(map(str, tags.shape))
        msg = f"{what} needs an array `label` with {count} columns, found {found}; add it"
        raise DataError(msg)
    if not np.isin(tags, (-1, 0, 1)).all():
        msg = f"{what} has values other than 1 (present), 0 (absent) and -1 (unknown) in `label`"
        raise DataError(msg)
    return np.asarray(tags[at], dtype=np.int8)
