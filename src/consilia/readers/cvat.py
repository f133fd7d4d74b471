"""CVAT's "CVAT for images 1.1": one XML file for all images.

Boxes may be rotated, polylines are scribbles, points are single pixels, ellipses are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree.ElementTree import Element

from consilia.declare import Supervision
from consilia.errors import DataError
from consilia.readers import runs
from consilia.readers.entries import Annotations, Folder
from consilia.readers.files import Report, check_values, printable
from consilia.readers.markup import check_edges, head, number, read_xml, resolve
from consilia.readers.shapes import (
    Bitmap,
    Dots,
    Line,
    Mark,
    Point,
    Polygon,
    Shape,
    touched,
    turned,
)

#: The fewest points that each kind of shape has.
FEWEST = {"polygon": 3, "polyline": 2, "points": 1}
KINDS = ("box", *FEWEST, "mask")


def find(folder: Folder) -> tuple[Path, ...]:
    """Return the CVAT files of a folder."""
    return tuple(
        path
        for path in sorted(folder.root.glob("*.xml"))
        if path.name == "annotations.xml" or b"<annotations" in head(path, folder.root)
    )


def read(
    folder: Folder, files: tuple[Path, ...], images: Mapping[str, str], report: Report
) -> Annotations:
    """Return what CVAT files say about the images that they list."""
    found = Annotations(
        files[0].name,
        listed=set(),
        missing=f"is not listed in {files[0].name}; export all images of the task",
    )
    for path in files:
        what = f"{path.name} of {folder.who}"
        try:
            tree = read_xml(path, folder)
            if tree.tag != "annotations":
                msg = f"{what} begins with <{printable(tree.tag)}>; export 'CVAT for images 1.1'"
                raise DataError(msg)
        except DataError as problem:
            report("error", str(problem))
            found.damaged = True
            found.listed = None  # what cannot be read is told once, not again for each image
            continue
        for image in tree.iter("image"):
            _read_image(folder, image, what, images, found, report)
    return found


def _read_image(
    folder: Folder,
    image: Element,
    what: str,
    images: Mapping[str, str],
    found: Annotations,
    report: Report,
) -> None:
    name = image.get("name") or ""
    case = resolve(name, images, what, report)
    if case is None:
        return
    if found.listed is not None:
        found.listed.add(case)
    where = f"{what}, image '{printable(name)}',"
    try:
        if image.get("height") and image.get("width"):
            sides = [int(number(image.get(s), where, s)) for s in ("height", "width")]
            found.sizes[case] = (sides[0], sides[1]), what
    except DataError as problem:
        report("error", str(problem))
    for at, thing in enumerate((t for t in image if t.get("label") is not None), start=1):
        place = f"{where} shape {at},"
        try:
            if thing.tag == "tag":  # holds for the image as a whole
                continue
            label = folder.label(str(thing.get("label")), place)
            found.add(case, Mark(place, label, (_shape(folder, thing, place),)))
        except DataError as problem:
            report("error", str(problem))
            found.unread.add(case)


def _shape(folder: Folder, thing: Element, where: str) -> Shape:
    if thing.tag == "box":
        left, top, right, bottom = (
            number(thing.get(edge), where, edge) for edge in ("xtl", "ytl", "xbr", "ybr")
        )
        check_edges(where, top, left, bottom, right)
        degrees = number(thing.get("rotation", "0"), where, "rotation")
        if degrees % 360 or folder.form is Supervision.ROTATED_BOX:
            return turned(top, left, bottom, right, degrees)
        return touched(top, left, bottom, right)
    if thing.tag == "mask":
        return _bitmap(thing, where)
    if thing.tag not in FEWEST:
        msg = f"{where} is of the kind '{printable(thing.tag)}'; expected one of {', '.join(KINDS)}"
        raise DataError(msg)
    points = _points(thing.get("points") or "", where)
    if len(points) < FEWEST[thing.tag]:
        msg = f"{where} has {len(points)} points; a {thing.tag} has {FEWEST[thing.tag]} or more"
        raise DataError(msg)
    if thing.tag == "polygon":
        return Polygon((points,))
    return Line(points) if thing.tag == "polyline" else Dots(points)


def _points(text: str, where: str) -> tuple[Point, ...]:
    pairs = [pair.split(",") for pair in text.split(";") if pair]
    if any(len(pair) != 2 for pair in pairs):
        msg = f"{where} has points that are not x,y pairs; export it again"
        raise DataError(msg)
    return tuple((number(y, where, "points"), number(x, where, "points")) for x, y in pairs)


def _bitmap(thing: Element, where: str) -> Shape:
    left, top, width, height = (
        int(number(thing.get(name), where, name)) for name in ("left", "top", "width", "height")
    )
    check_values((height, width), where)
    try:
        lengths = [int(run) for run in (thing.get("rle") or "").split(",")]
        return Bitmap.of(runs.decode(lengths, (height, width), "C"), top, left)
    except (ValueError, OverflowError):
        msg = f"{where} has a run-length mask that is damaged; export it again"
        raise DataError(msg) from None
