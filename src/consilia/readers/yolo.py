"""YOLO text files: a class and its box, its four corners, or its polygon, in parts of the image.

::

    classes.txt          one class in each line
    labels/<image>.txt   class x y width height  |  class x1 y1 x2 y2 x3 y3 ...

An image without a file shows none of the site's labels, as YOLO has it. Positions depend on the size
of the image, so its header is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from consilia.declare import Supervision
from consilia.errors import DataError
from consilia.readers.entries import Annotations, Folder
from consilia.readers.files import Report, Size, list_files, printable, split_name
from consilia.readers.images import IMAGE_TYPES, read_size
from consilia.readers.markup import no_image, number, read_markup
from consilia.readers.shapes import Mark, Polygon, Shape, touched
from consilia.readers.tables import was_refused

CLASSES = ("classes.txt", "labels/classes.txt")


def find(folder: Folder) -> tuple[Path, ...]:
    """Return the text files of a folder's labels."""
    return tuple(p for p in folder.beside("labels", "*.txt") if p.stem != "classes")


def read(
    folder: Folder, files: tuple[Path, ...], images: Mapping[str, str], report: Report
) -> Annotations:
    """Return what YOLO files say about the images of the same names."""
    found = Annotations("labels")
    try:
        classes = _classes(folder)
    except DataError as problem:
        report("error", str(problem))
        found.damaged = True
        return found
    pictures = list_files(
        folder.images,
        folder.root,
        "image",
        folder.who,
        IMAGE_TYPES,
        lambda *_: None,
        nested=True,
    )
    for path in files:
        name = folder.place(path)[1]
        what, stem = f"{name} of {folder.who}", split_name(name)[0]
        if was_refused(stem, images):
            continue
        case = images.get(stem, stem)
        if case not in pictures:
            report("error", no_image(folder, what))
            continue
        picture = pictures[case]
        try:
            text = read_markup(path, folder, may_be_empty=True)
            size = read_size(picture, folder.name(picture))
        except DataError as problem:
            report("error", str(problem))
            found.unread.add(case)
            continue
        for at, line in enumerate(text.splitlines(), start=1):
            try:
                if line.strip():
                    mark = _mark(folder, classes, line.split(), size, f"{what}, line {at},")
                    found.add(case, mark)
            except DataError as problem:
                report("error", str(problem))
                found.unread.add(case)
    return found


def _classes(folder: Folder) -> list[str]:
    name = next((name for name in CLASSES if folder.has(name)), None)
    if name is None:
        msg = (
            f"{folder.who} has no file classes.txt, which names the classes of its labels; add one "
            "with a class in each line"
        )
        raise DataError(msg)
    lines = read_markup(folder.root / name, folder).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.strip() for line in lines]


def _mark(folder: Folder, classes: list[str], cells: Sequence[str], size: Size, where: str) -> Mark:
    if not re.fullmatch(r"\d{1,6}", cells[0]) or int(cells[0]) >= len(classes):
        msg = (
            f"{where} has the class '{printable(cells[0])}', but classes.txt names {len(classes)}; "
            f"expected 0 to {len(classes) - 1}"
        )
        raise DataError(msg)
    label = folder.label(classes[int(cells[0])], where)
    values = [number(cell, where, "position") for cell in cells[1:]]
    beyond = 1.0 if folder.form is Supervision.ROTATED_BOX else 0.01  # its corners may lie outside
    outside = [value for value in values if not -beyond <= value <= 1 + beyond]
    if outside:
        msg = f"{where} has the position {outside[0]:g}; expected 0 to 1, in parts of the image"
        raise DataError(msg)
    return Mark(where, label, (_shape(values, size, where),))


def _shape(values: list[float], size: Size, where: str) -> Shape:
    height, width = size
    if len(values) == 4:
        x, y, across, down = values
        if min(across, down) <= 0:
            msg = f"{where} has a box of {across:g} x {down:g}; expected more than 0: correct it"
            raise DataError(msg)
        return touched(
            (y - down / 2) * height,
            (x - across / 2) * width,
            (y + down / 2) * height,
            (x + across / 2) * width,
        )
    if len(values) < 6 or len(values) % 2:
        msg = (
            f"{where} has {len(values)} numbers after its class; expected 4 for a box, or x and y of "
            "3 or more corners"
        )
        raise DataError(msg)
    ring = zip(values[1::2], values[::2], strict=True)
    return Polygon((tuple((y * height, x * width) for y, x in ring),))
