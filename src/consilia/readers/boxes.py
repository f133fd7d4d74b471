"""Boxes, upright or rotated: where they must lie, and what they are in the federation's size."""

from __future__ import annotations

from consilia.errors import DataError
from consilia.readers.entries import Entry, Folder
from consilia.readers.files import Report, Size
from consilia.readers.shapes import check_inside, fit_box
from consilia.readers.views import Boxes
from consilia.weaken import Box, RotatedBox

#: One converted box needs one value of a byte.
MOST_BOXES = 254


def check_boxes(folder: Folder, entry: Entry, shape: Size, report: Report) -> None:
    """Report boxes that do not lie in their image, which has this height and width."""
    for mark in entry.marks:
        try:
            check_inside(mark, entry.image.name, shape)
        except DataError as problem:
            report("error", str(problem))
    if len(entry.marks) > MOST_BOXES:
        report(
            "error",
            f"{folder.name(entry.image)} has {len(entry.marks)} boxes; expected at most "
            f"{MOST_BOXES}: unite some of them",
        )


def fit_boxes(folder: Folder, entry: Entry, stored: Size) -> Boxes:
    """Return the boxes of each label that the site marks, in pixels of the federation's size."""
    size = folder.federation.image.size
    fitted: Boxes = {index + 1: [] for index in folder.annotated}
    for mark in entry.marks:
        assert isinstance(mark.shape, Box | RotatedBox), "the survey has chosen boxes"
        if mark.label in fitted:
            fitted[mark.label].append(fit_box(mark.shape, stored, size))
    return fitted
