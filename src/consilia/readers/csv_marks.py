"""boxes.csv and points.csv -> marks.

::

    boxes.csv    image,label,left,top,right,bottom[,angle]
    points.csv   image,label,row,column[,radius]

Positions are whole pixels of the stored image, counted from 0; both ends of a box are included. An
angle, in degrees, turns a box clockwise about its centre, and its ends may then have decimals. A
point is one pixel, or all pixels within a radius; its label may be "background".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from consilia.declare import Supervision
from consilia.errors import DataError
from consilia.readers.entries import Annotations, Folder
from consilia.readers.files import Report, printable
from consilia.readers.markup import number
from consilia.readers.shapes import Dots, Mark, Shape, turned
from consilia.readers.tables import Row, read_table
from consilia.weaken import Box

BOXES = ("image", "label", "left", "top", "right", "bottom")
POINTS = ("image", "label", "row", "column")
WHOLE = re.compile(r"-?[0-9]{1,9}(\.0*)?")


def find_boxes(folder: Folder) -> tuple[Path, ...]:
    """Return boxes.csv, where there is one."""
    return (folder.root / "boxes.csv",) if folder.has("boxes.csv") else ()


def find_points(folder: Folder) -> tuple[Path, ...]:
    """Return points.csv, where there is one."""
    return (folder.root / "points.csv",) if folder.has("points.csv") else ()


def read_boxes(
    folder: Folder, files: tuple[Path, ...], images: Mapping[str, str], report: Report
) -> Annotations:
    """Return the boxes of each image."""
    found = Annotations(files[0].name)
    lines: dict[tuple[str, int, Shape], int] = {}
    rows = read_table(folder, "boxes.csv", images, BOXES, (*BOXES, "angle"), report)
    found.damaged = rows is None
    for row in rows or ():
        where = f"boxes.csv of {folder.who}, line {row.line},"
        try:
            label = folder.label(row.cells["label"], where)
            shape = _row_box(folder, row, where)
            first = lines.setdefault((row.image, label, shape), row.line)
            if first != row.line:
                msg = f"{where} repeats line {first}; keep one of them"
                raise DataError(msg)
            found.add(row.image, Mark(where, label, (shape,), exact=True))
        except DataError as problem:
            report("error", str(problem))
            found.unread.add(row.image)
    return found


def _row_box(folder: Folder, row: Row, where: str) -> Shape:
    edges = {}
    angle = number(row.cells.get("angle") or "0", where, "angle")
    if angle and folder.form is Supervision.BOX:
        msg = (
            f"{where} has the angle {angle:g}, but the supervision of {folder.who} is 'box'; leave "
            "it blank or declare supervision 'rotated-box'"
        )
        raise DataError(msg)
    for edge in ("top", "left", "bottom", "right"):
        if angle:
            edges[edge] = number(row.cells[edge], where, edge)
            continue
        if not WHOLE.fullmatch(row.cells[edge]):
            msg = (
                f"{where} has '{printable(row.cells[edge])}' for '{edge}'; expected a whole number"
            )
            raise DataError(msg)
        edges[edge] = int(row.cells[edge].partition(".")[0])
    for first, last in (("left", "right"), ("top", "bottom")):
        if edges[last] < edges[first]:
            msg = (
                f"{where} has {last} {edges[last]} < {first} {edges[first]}; expected {first} <= "
                f"{last}, both included: swap them"
            )
            raise DataError(msg)
    if angle:
        return turned(edges["top"], edges["left"], edges["bottom"] + 1, edges["right"] + 1, angle)
    return Box(**{edge: int(at) for edge, at in edges.items()})


def read_points(
    folder: Folder, files: tuple[Path, ...], images: Mapping[str, str], report: Report
) -> Annotations:
    """Return the points of each image."""
    found = Annotations(files[0].name)
    rows = read_table(folder, "points.csv", images, POINTS, (*POINTS, "radius"), report)
    found.damaged = rows is None
    for row in rows or ():
        where = f"points.csv of {folder.who}, line {row.line},"
        try:
            label = folder.label(row.cells["label"], where)
            at = (
                number(row.cells["row"], where, "row"),
                number(row.cells["column"], where, "column"),
            )
            radius = number(row.cells.get("radius") or "0", where, "radius")
            if radius < 0:
                msg = f"{where} has the radius {radius:g}; expected 0 or more"
                raise DataError(msg)
            dot = Dots(((at[0] + 0.5, at[1] + 0.5),), radius)
            found.add(row.image, Mark(where, label, (dot,), exact=True))
        except DataError as problem:
            report("error", str(problem))
            found.unread.add(row.image)
    return found
