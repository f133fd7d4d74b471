"""LabelMe files: one JSON file for each image, beside it or in `annotations`.

Rectangles are boxes, line strips are scribbles, points are single pixels, circles are dots with a
radius; oriented rectangles, and polygons of four square corners, can be rotated boxes.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from consilia.errors import DataError
from consilia.readers.entries import Annotations, Folder
from consilia.readers.files import Report, check_values, guarded, printable
from consilia.readers.images import STRICTLY
from consilia.readers.markup import head, number, paired, read_json
from consilia.readers.shapes import Bitmap, Dots, Line, Mark, Point, Polygon, Shape, touched

PLACES = ("images", "annotations", "labels")
#: The fewest points that each kind of shape has.
FEWEST = {
    "rectangle": 2,
    "circle": 2,
    "mask": 2,
    "point": 1,
    "points": 1,
    "line": 2,
    "linestrip": 2,
    "polygon": 3,
    "oriented_rectangle": 4,
}


def find(folder: Folder) -> tuple[Path, ...]:
    """Return the LabelMe files of a folder."""
    for place in PLACES:
        files = folder.beside(place, "*.json")
        if files and (place == "images" or any(_is_labelme(path, folder) for path in files)):
            return files
    return ()


def _is_labelme(path: Path, folder: Folder) -> bool:
    return b'"shapes"' in head(path, folder.root)


def read(
    folder: Folder, files: tuple[Path, ...], images: Mapping[str, str], report: Report
) -> Annotations:
    """Return what LabelMe files say about the images of the same names."""
    found = Annotations(
        f"'{folder.place(files[0])[0]}'",
        listed=set(),
        missing="has no LabelMe file; save one, even without a shape",
    )
    for path, case, what in paired(folder, files, images, found, report):
        try:
            table = read_json(path, folder)
            if not isinstance(table.get("shapes"), list):
                msg = f"{what} has no list 'shapes'; expected a LabelMe file: export it again"
                raise DataError(msg)
            if table.get("imageHeight") and table.get("imageWidth"):
                sides = [int(number(table[s], what, s)) for s in ("imageHeight", "imageWidth")]
                found.sizes[case] = (sides[0], sides[1]), what
        except DataError as problem:
            report("error", str(problem))
            found.unread.add(case)
            continue
        for at, row in enumerate(table["shapes"], start=1):
            try:
                found.add(case, _mark(folder, row, f"{what}, shape {at},"))
            except DataError as problem:
                report("error", str(problem))
                found.unread.add(case)
    return found


def _mark(folder: Folder, row: Any, where: str) -> Mark:
    if not isinstance(row, dict):
        msg = f"{where} is no table; export it again"
        raise DataError(msg)
    label, kind = folder.label(str(row.get("label")), where), str(row.get("shape_type", "polygon"))
    if kind not in FEWEST:
        msg = f"{where} has the shape type '{printable(kind)}'; expected one of {', '.join(FEWEST)}"
        raise DataError(msg)
    points = _points(row.get("points"), where)
    if len(points) < FEWEST[kind]:
        msg = f"{where} has {len(points)} points; a {kind} has {FEWEST[kind]} or more"
        raise DataError(msg)
    return Mark(where, label, (_shape(kind, points, row, where),))


def _points(found: Any, where: str) -> tuple[Point, ...]:
    if not isinstance(found, list) or not all(isinstance(p, list) and len(p) == 2 for p in found):
        msg = f"{where} has points that are not x, y pairs; export it again"
        raise DataError(msg)
    return tuple((number(y, where, "points"), number(x, where, "points")) for x, y in found)


def _shape(kind: str, points: tuple[Point, ...], row: dict[str, Any], where: str) -> Shape:
    (top, left), (bottom, right) = np.min(points, axis=0).tolist(), np.max(points, axis=0).tolist()
    match kind:
        case "rectangle":  # dragged from any corner
            return touched(top, left, bottom, right)
        case "circle":
            return Dots(points[:1], math.dist(*points[:2]))
        case "point" | "points":
            return Dots(points)
        case "line" | "linestrip":
            return Line(points)
        case "mask":
            return _bitmap(row.get("mask"), (round(top), round(left)), where)
    return Polygon((points,))


def _bitmap(found: Any, at: tuple[int, int], where: str) -> Shape:
    """Return the pixels of a small PNG inside the JSON, whose first corner is at a position."""
    with guarded(f"the mask of {where.rstrip(',')}"):
        data = base64.b64decode(found, validate=True)
        with STRICTLY, Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            check_values((image.height, image.width), where)
            return Bitmap.of(np.asarray(image.convert("L")) > 0, *at)
