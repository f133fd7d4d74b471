"""What was drawn on the training images of a site -> its label view, as the site declared it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int8, UInt8

from consilia.labels import LabelView, labels_known
from consilia.readers.entries import UNSEEN, Entry, Folder, Source
from consilia.readers.shapes import as_rotated, render
from consilia.weaken import (
    Box,
    RotatedBox,
    convert_boxes,
    draw_conversion,
    hide_labels,
    recipe_for,
)
from consilia.weaken.regions import BACKGROUND, stream

#: The boxes of one image, by the index of their label.
Boxes = dict[int, list[Box | RotatedBox]]


def _known(folder: Folder, count: int) -> Bool[np.ndarray, "n k"]:
    return labels_known(count, len(folder.federation.labels), folder.annotated)


def view_of_masks(folder: Folder, drawn: UInt8[np.ndarray, "n h w"], source: Source) -> LabelView:
    """Return the view of masks, or of marks, in which some pixels were not looked at."""
    known = _known(folder, len(drawn))
    if source == "mask":
        everything = len(folder.annotated) == len(folder.federation.labels)
        return LabelView(drawn if everything else hide_labels(drawn, folder.annotated), known)
    return LabelView(hide_labels(drawn, folder.annotated), known, drawn != UNSEEN)


def view_of_tags(folder: Folder, tags: Int8[np.ndarray, "n k"]) -> LabelView:
    """Return the view of labels that hold for whole images; -1 is unknown."""
    own = _known(folder, len(tags))
    known, present = (tags >= 0) & own, (tags == 1) & own
    if not folder.segments:
        if folder.federation.exclusive:  # one label that is present says all about the others
            known |= present.any(axis=1, keepdims=True)
        return LabelView(present.astype(np.uint8), known)
    n, k = tags.shape
    h, w = folder.federation.image.size
    possible = (present | ~known)[:, :, None, None]
    return LabelView(
        np.zeros((n, h, w), dtype=np.uint8),
        known,
        np.zeros((n, h, w), dtype=bool),
        np.array(np.broadcast_to(possible, (n, k, h, w))),
    )


def view_of_boxes(folder: Folder, entries: Sequence[Entry], boxes: Sequence[Boxes]) -> LabelView:
    """Return boxes in both encodings, as `consilia.weaken` does (with seed 0)."""
    n, k, (h, w) = len(entries), len(folder.federation.labels), folder.federation.image.size
    target = np.zeros((n, h, w), dtype=np.uint8)
    pixels = np.zeros((n, h, w), dtype=bool)
    constraint = np.ones((n, k, h, w), dtype=bool)
    for at, (entry, drawn) in enumerate(zip(entries, boxes, strict=True)):
        target[at], pixels[at] = _convert(folder, entry, drawn)
        for label, own in drawn.items():
            constraint[at, label - 1] = False
            for box in own:
                constraint[at, label - 1] |= render(box, (h, w))
    return LabelView(target, _known(folder, n), pixels, constraint)


def _convert(
    folder: Folder, entry: Entry, drawn: Boxes
) -> tuple[UInt8[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """Return the sparse pixels that stand for the boxes of one image, of any number per label.

    The converter takes one box per index, so each box gets an index of its own, which then becomes
    its label.
    """
    assert folder.site is not None, "a common test set has masks"
    declaration = folder.federation[folder.site]
    rng = stream(0, folder.site, entry.name, folder.form.value, BACKGROUND)
    conversion = draw_conversion(recipe_for(declaration).convert, rng)
    flat = [(label, box) for label, own in drawn.items() for box in own]
    frames = {index: as_rotated(box) for index, (_, box) in enumerate(flat, start=1)}
    target, known = convert_boxes(frames, conversion, folder.federation.image.size)
    return np.array([0, *(label for label, _ in flat)], dtype=np.uint8)[target], known


def view_of_nothing(folder: Folder, count: int) -> LabelView:
    """Return the view of a site that annotates nothing."""
    known, size = _known(folder, count), folder.federation.image.size
    if not folder.segments:
        return LabelView(np.zeros(known.shape, dtype=np.uint8), known)
    zeros = np.zeros((count, *size), dtype=np.uint8)
    return LabelView(zeros, known, zeros.astype(bool))
