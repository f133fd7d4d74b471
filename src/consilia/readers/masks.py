"""Masks -> class indices, whether they are files or were drawn as shapes."""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8

from consilia.declare import Supervision
from consilia.errors import DataError
from consilia.readers.entries import UNSEEN, Entry, Folder
from consilia.readers.files import Size, quoted
from consilia.readers.images import fit_mask
from consilia.readers.load import Loader
from consilia.readers.shapes import check_inside, paint


def read_mask(loader: Loader, entry: Entry, shape: Size | None) -> UInt8[np.ndarray, "h w"]:
    """Return an image's mask as class indices, and `UNSEEN` where a weak form was not drawn.

    Args:
        loader: Reads mask files, and knows which values there may be.
        entry: The image, which has a mask or marks.
        shape: The height and width of the image; `None` where it could not be read.
    """
    folder = loader.folder
    if entry.mask is None:
        return _paint(folder, entry, shape)
    values = loader.mask(entry)
    if shape is not None and values.shape != shape:
        msg = (
            f"{folder.name(entry.mask, 'mask')} is {values.shape[1]} x {values.shape[0]} pixels (width x "
            f"height), but its image is {shape[1]} x {shape[0]}; export both in the same size"
        )
        raise DataError(msg)
    if values.max() > len(folder.federation.labels):
        values = _settle_255(folder, entry, values, folder.name(entry.mask, "mask"))
    return values.astype(np.uint8, copy=False)


def _paint(folder: Folder, entry: Entry, shape: Size | None) -> UInt8[np.ndarray, "h w"]:
    """Return what was drawn on an image; of an unreadable image, in the size that is stated."""
    size = shape or (entry.stated[0] if entry.stated else folder.federation.image.size)
    check_stated(entry, size)
    for mark in entry.marks:
        check_inside(mark, entry.image.name, size)
    return paint(entry.marks, size, UNSEEN if folder.source(entry.split) == "marks" else 0)


def check_stated(entry: Entry, size: Size) -> None:
    """Refuse annotations that were made on an image of another size."""
    if entry.stated is not None and entry.stated[0] != size:
        (height, width), where = entry.stated
        msg = (
            f"{where} says that image '{entry.image.name}' is {width} x {height} pixels (width x "
            f"height), but it is {size[1]} x {size[0]}; export both in the same size"
        )
        raise DataError(msg)


def _values(mask: np.ndarray) -> np.ndarray:
    """Return the values a mask holds, sorted; for bytes by counting, which is several times faster."""
    if mask.dtype == np.uint8:
        return np.flatnonzero(np.bincount(mask.ravel(), minlength=256))
    return np.unique(mask)


def _settle_255(folder: Folder, entry: Entry, values: np.ndarray, what: str) -> np.ndarray:
    """Return a mask in which 255 has the one meaning it may have here; other values are refused."""
    labels = folder.federation.labels
    if len(labels) == 1 and folder.form is Supervision.MASK:
        marked: np.ndarray = values == UNSEEN
        if np.count_nonzero(values) == np.count_nonzero(marked):  # 0 and 255, as programs save
            return marked.view(np.uint8)
    found = _values(values)
    strange = [int(value) for value in found if value > len(labels) and value != UNSEEN]
    if strange:
        noun = "label" if len(labels) == 1 else "labels"
        msg = (
            f"{what} holds class {strange[0]}, but the federation has {len(labels)} {noun} "
            f"({quoted(labels)}); map its values to 0 to {len(labels)}"
        )
        raise DataError(msg)
    weak = folder.form.marks_pixels and folder.form is not Supervision.MASK
    if weak and entry.split == "train":
        return values
    if weak:
        msg = (
            f"{what} holds 255, 'not looked at', but {entry.split} images need complete labels; "
            f"map its values to 0 to {len(labels)}"
        )
        raise DataError(msg)
    if len(labels) > 1:
        msg = (
            f"{what} holds 255, which stands for a label only where the federation has one, and it "
            f"has {len(labels)}; map its values to 0 to {len(labels)}"
        )
        raise DataError(msg)
    if 1 in found:
        msg = f"{what} holds both 1 and 255 for '{labels[0]}'; use one of them throughout"
        raise DataError(msg)
    return np.asarray(values == UNSEEN)


def fit_marks(marks: UInt8[np.ndarray, "h0 w0"], size: Size) -> UInt8[np.ndarray, "h w"]:
    """Return marks in another size without losing thin ones; labels go before background."""
    if marks.shape == size:
        return marks
    fitted = np.array(fit_mask(marks, size))
    rows, cols = np.nonzero(marks != UNSEEN)
    values = marks[rows, cols]
    order = np.argsort(values, kind="stable")  # of two marks in one pixel, the label is kept
    rows, cols, values = rows[order], cols[order], values[order]
    rows, cols = rows * size[0] // marks.shape[0], cols * size[1] // marks.shape[1]
    lost = fitted[rows, cols] == UNSEEN
    fitted[rows[lost], cols[lost]] = values[lost]
    return fitted
