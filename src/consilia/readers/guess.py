"""What a bare folder seems to hold, where nobody has declared it: a federation of that one site."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from consilia.declare import Federation, Supervision
from consilia.declare.read import validate
from consilia.errors import DataError, listing
from consilia.readers.entries import BACKGROUND, UNSEEN, Folder
from consilia.readers.files import Severity, image_folder, list_files
from consilia.readers.formats import FORMATS
from consilia.readers.images import IMAGE_TYPES, MASK_TYPES, read_image, read_index_map
from consilia.readers.load import Loader
from consilia.readers.patients import assign
from consilia.readers.shapes import Mark
from consilia.readers.survey import (
    BESIDE,
    case_names,
    chosen_shape,
    find_pictures,
    images_elsewhere,
)
from consilia.readers.tables import column_names
from consilia.readers.tags import TABLES
from consilia.readers.volumes import VOLUME_TYPES, is_deep, read_geometry, read_mask_planes
from consilia.weaken import Box

#: What shapes are most likely meant as; what says most comes first, but polygons that are all
#: rectangles are boxes.
FORMS = (
    Supervision.ROTATED_BOX,
    Supervision.MASK,
    Supervision.BOX,
    Supervision.SCRIBBLE,
    Supervision.POINT,
    Supervision.BLOCK,
)
#: What a file is taken for of which no shape can be read, so that the inspection opens it.
UNREAD = (Supervision.MASK, Supervision.BOX, Supervision.POINT)
SITE = "folder"


@dataclass(frozen=True)
class _Listening(Folder):
    """A folder that takes every label it is asked for, and remembers them."""

    heard: list[str] = field(default_factory=list)

    def label(self, found: str, where: str) -> int:
        """Return the place of a label among those heard so far."""
        del where
        if found == BACKGROUND:
            return 0
        if found not in self.heard:
            self.heard.append(found)
        return self.heard.index(found) + 1


def guess_federation(root: Path) -> Federation:
    """Return the federation that a folder would be the only site of, judging by what it holds.

    Masks are looked at for the classes they use, other annotations for the labels they name. Masks
    of only some images beside other annotations are those of test images. A folder without any is
    taken for unlabelled images of a segmentation task.

    Raises:
        DataError: There are no images, or nothing that can be read.
    """
    size, channels = _image_shape(root)
    form, labels, segments = _annotations(root)
    classifies = form is Supervision.IMAGE and not segments
    table: dict[str, Any] = {
        "name": SITE,
        "task": "classification" if classifies else "segmentation",
        "labels": list(labels),
        "exclusive": not classifies,
        "image": {"size": list(size), "channels": channels},
        "site": [{"name": SITE, "data": ".", "supervision": form}],
    }
    return validate(Federation, table, f"folder '{root.name}'")


def _pass_over(severity: Severity, sentence: str) -> None:
    """Say nothing: what is wrong is reported by the inspection that follows."""


def _images(root: Path) -> dict[str, Path]:
    place, types = image_folder(root), (*IMAGE_TYPES, *VOLUME_TYPES)
    if not place.is_dir():
        msg = f"folder '{root}' has no folder 'images'; {images_elsewhere(root)}"
        raise DataError(msg)
    return list_files(
        place,
        root,
        "image",
        "the folder",
        types,
        _pass_over,
        beside=BESIDE,
        series=True,
        nested=True,
    )


def _image_shape(root: Path) -> tuple[tuple[int, int], int]:
    """Return the size and channels of the first image that can be read."""
    types = (*IMAGE_TYPES, *VOLUME_TYPES)
    files = list(_images(root).values())
    for path in files:
        try:
            if is_deep(path):
                _, height, width = read_geometry(path, root, path.name).shape
                channels = 1
            else:
                pixels = read_image(path, path.name)
                height, width = pixels.shape[:2]
                channels = pixels.shape[2] if pixels.ndim == 3 else 1
        except DataError:
            continue
        # An alpha channel is no channel of an image.
        return (_side(height), _side(width)), {2: 1, 4: 3}.get(channels, channels)
    place = f"'{image_folder(root).name}' of folder '{root}'"
    if not files:
        msg = f"{place} holds no images; expected files of type {listing(types, 'or')}"
        raise DataError(msg)
    folders = sum(path.is_dir() for path in files)
    kinds = "folders" if folders == len(files) else "files and folders" if folders else "files"
    msg = f"none of the {len(files)} {kinds} in {place} can be read as an image"
    raise DataError(msg)


def _side(length: int) -> int:
    return min(max(length, 8), 4096)


def _annotations(root: Path) -> tuple[Supervision, tuple[str, ...], bool]:
    """Return the form and the labels of what is annotated, and whether there are masks.

    Masks of all images, or of training images where nothing else says what these show, are what a
    model is trained on. Masks of some images beside other annotations are those of test images.
    """
    folder = Folder(root, _stand_in(root), SITE)
    pictures = find_pictures(Loader(folder), _pass_over)
    images = case_names(folder, pictures)
    assigned = assign(folder, pictures, _pass_over, images.refused)
    train = [name for name, (_, split) in assigned.items() if split == "train"]
    masks = _masks(root)
    if masks and all(name in masks for name in pictures):
        return (*_from_masks(root), True)
    drawn = _from_shapes(folder, images, set(train)) or _from_tables(folder)
    if drawn is None and any(name in masks for name in train):
        return (*_from_masks(root), True)
    form, labels = drawn or _from_unread(folder) or (Supervision.NONE, ())
    if masks:  # what test images show may be more than annotations name
        labels += _from_masks(root)[1][len(labels) :]
    return form, labels or ("unknown",), bool(masks)


def _stand_in(root: Path) -> Federation:
    table = {
        "name": SITE,
        "task": "segmentation",
        "labels": ["unknown"],
        "image": {"size": [8, 8]},
        "site": [{"name": SITE, "data": "."}],
    }
    return validate(Federation, table, root.name)


def _from_shapes(
    folder: Folder, images: Mapping[str, str], train: set[str]
) -> tuple[Supervision, tuple[str, ...]] | None:
    """Return the form and labels of shapes on training images, else on any; `None` without any."""
    for way in FORMATS:
        listening = _Listening(folder.root, folder.federation, folder.site)
        files = way.find(listening)
        found = way.read(listening, files, images, _pass_over).marks if files else {}
        own = {name: marks for name, marks in found.items() if name.partition(":")[0] in train}
        marks = [mark for marks in (own or found).values() for mark in marks]
        if marks:
            return _form_of(marks, way.forms), tuple(listening.heard)
    return None


def _from_tables(folder: Folder) -> tuple[Supervision, tuple[str, ...]] | None:
    """Return the labels that a table of tags has columns for; `None` where there is no table."""
    for name in TABLES:
        if (folder.root / name).is_file():
            columns = column_names(folder, name)
            return Supervision.IMAGE, tuple(c for c in columns if c != "image")
    return None


def _from_unread(folder: Folder) -> tuple[Supervision, tuple[str, ...]] | None:
    """Return the form of annotation files that hold no shape, so that the inspection opens them."""
    for way in FORMATS:
        if way.find(folder):
            return next(form for form in UNREAD if form in way.forms), ()
    return None


def _form_of(marks: list[Mark], able: Collection[Supervision]) -> Supervision:
    """Return what all marks can stand for; where nothing fits all, what fits some."""
    forms = [form for form in FORMS if form in able]
    if any(mark.label == 0 for mark in marks):  # who marks background marks only some pixels
        forms = [form for form in forms if form.marks_pixels and form is not Supervision.MASK]
    if all(isinstance(mark.shape, Box) for mark in marks):
        forms = [form for form in forms if form is not Supervision.ROTATED_BOX]
    for fits in (all, any):
        for form in forms:
            if fits(chosen_shape(mark, form) is not None for mark in marks):
                return form
    return Supervision.MASK


def _from_masks(root: Path) -> tuple[Supervision, tuple[str, ...]]:
    """Return the form and labels of mask files: 255 beside a background of 0 is one label."""
    values: set[int] = set()
    for found in _mask_values(root):
        values |= {int(value) for value in np.unique(found)}
    highest = max((value for value in values if value != UNSEEN), default=0)
    if UNSEEN in values and highest == 0:
        return Supervision.MASK, ("class-1",)
    labels = tuple(f"class-{number}" for number in range(1, max(1, highest) + 1))
    return Supervision.SCRIBBLE if UNSEEN in values else Supervision.MASK, labels


def _masks(root: Path) -> dict[str, Path]:
    """Return the mask files by the names of their images."""
    if not (root / "masks").is_dir():
        return {}
    types = (*MASK_TYPES, *VOLUME_TYPES)
    return list_files(root / "masks", root, "mask", "the folder", types, _pass_over, nested=True)


def _mask_values(root: Path) -> Iterator[np.ndarray]:
    """Yield the values of each mask that can be read; what cannot is reported by the inspection."""
    images = _images(root)
    for name, path in _masks(root).items():
        try:
            if path.name.lower().endswith(VOLUME_TYPES):
                image = images[name]
                onto = read_geometry(image, root, image.name)
                yield read_mask_planes(path, path.name, onto, ("unknown",))
            else:
                yield read_index_map(path, path.name)
        except (DataError, KeyError):
            continue
