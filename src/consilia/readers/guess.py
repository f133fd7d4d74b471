"""What a bare folder seems to hold, where nobody has declared it: a federation of that one site."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from consilia.declare import Federation, Supervision
from consilia.declare.read import validate
from consilia.errors import DataError
from consilia.readers.entries import BACKGROUND, UNSEEN, Folder
from consilia.readers.files import Severity, list_files
from consilia.readers.formats import FORMATS
from consilia.readers.images import IMAGE_TYPES, MASK_TYPES, read_image, read_index_map
from consilia.readers.shapes import Bitmap, Dots, Line, Polygon, Shape
from consilia.readers.tables import column_names
from consilia.readers.tags import TABLES
from consilia.readers.volumes import VOLUME_TYPES, is_deep, read_geometry, read_mask_planes
from consilia.weaken import Box, RotatedBox

#: What a shape is most likely meant as; what says most comes first.
FORMS: tuple[tuple[tuple[type, ...], Supervision], ...] = (
    ((Polygon, Bitmap), Supervision.MASK),
    ((RotatedBox,), Supervision.ROTATED_BOX),
    ((Box,), Supervision.BOX),
    ((Line,), Supervision.SCRIBBLE),
    ((Dots,), Supervision.POINT),
)
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

    Masks are looked at for the classes they use, other annotations for the labels they name. A
    folder without any is taken for unlabelled images of a segmentation task.

    Raises:
        DataError: There are no images, or nothing that can be read.
    """
    size, channels = _image_shape(root)
    form, labels = _annotations(root)
    table: dict[str, Any] = {
        "name": SITE,
        "task": "classification" if form is Supervision.IMAGE else "segmentation",
        "labels": list(labels),
        "exclusive": form is not Supervision.IMAGE,
        "image": {"size": list(size), "channels": channels},
        "site": [{"name": SITE, "data": ".", "supervision": form}],
    }
    return validate(Federation, table, f"folder '{root.name}'")


def _pass_over(severity: Severity, sentence: str) -> None:
    """Say nothing: what is wrong is reported by the inspection that follows."""


def _images(root: Path) -> list[Path]:
    if not (root / "images").is_dir():
        msg = f"folder '{root}' has no folder 'images'; put its images there"
        raise DataError(msg)
    types = (*IMAGE_TYPES, *VOLUME_TYPES)
    files = list_files(
        root / "images",
        root,
        "image",
        "the folder",
        types,
        _pass_over,
        beside=(".json", ".xml"),
        series=True,
    )
    return list(files.values())


def _image_shape(root: Path) -> tuple[tuple[int, int], int]:
    """Return the size and channels of the first image that can be read."""
    files = _images(root)
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
    msg = f"none of the {len(files)} files in 'images' of folder '{root}' can be read as an image"
    raise DataError(msg)


def _side(length: int) -> int:
    return min(max(length, 8), 4096)


def _annotations(root: Path) -> tuple[Supervision, tuple[str, ...]]:
    if (root / "masks").is_dir():
        return _from_masks(root)
    stand_in = validate(
        Federation,
        {
            "name": SITE,
            "task": "segmentation",
            "labels": ["unknown"],
            "image": {"size": [8, 8]},
            "site": [{"name": SITE, "data": "."}],
        },
        root.name,
    )
    images = {path.name: path.stem for path in _images(root)}
    images |= {stem: stem for stem in images.values()}
    for way in FORMATS:
        folder = _Listening(root, stand_in, SITE)
        files = way.find(folder)
        if not files:
            continue
        found = way.read(folder, files, images, _pass_over)
        shapes = [mark.shape for marks in found.marks.values() for mark in marks]
        if shapes:
            return _form_of(shapes), tuple(folder.heard)
    for name in TABLES:
        if (root / name).is_file():
            columns = column_names(Folder(root, stand_in, SITE), name)
            return Supervision.IMAGE, tuple(c for c in columns if c != "image")
    return Supervision.NONE, ("unknown",)


def _form_of(shapes: list[Shape]) -> Supervision:
    kinds = {type(shape) for shape in shapes}
    return next(form for types, form in FORMS if kinds & set(types))


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


def _mask_values(root: Path) -> Iterator[np.ndarray]:
    """Yield the values of each mask that can be read; what cannot is reported by the inspection."""
    types = (*MASK_TYPES, *VOLUME_TYPES)
    masks = list_files(root / "masks", root, "mask", "the folder", types, _pass_over)
    images = {path.name.partition(".")[0]: path for path in _images(root)}
    for path in masks.values():
        try:
            if path.name.lower().endswith(VOLUME_TYPES):
                image = images[path.name.partition(".")[0]]
                onto = read_geometry(image, root, image.name)
                yield read_mask_planes(path, path.name, onto, ("unknown",))
            else:
                yield read_index_map(path, path.name)
        except (DataError, KeyError):
            continue
