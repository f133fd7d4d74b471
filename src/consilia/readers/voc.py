"""Pascal VOC files: one XML file of upright boxes for each image.

Pixels are counted from 1 and both ends are included, as VOC defines it. Tools that count from 0
instead give boxes that begin one pixel early.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree.ElementTree import Element

from consilia.errors import DataError
from consilia.readers.entries import Annotations, Folder
from consilia.readers.files import Report
from consilia.readers.markup import check_edges, head, number, paired, read_xml
from consilia.readers.shapes import Mark, touched

PLACES = ("annotations", "Annotations", "images")


def find(folder: Folder) -> tuple[Path, ...]:
    """Return the VOC files of a folder."""
    for place in PLACES:
        files = folder.beside(place, "*.xml")
        if files and any(b"<annotations" not in head(path, folder.root) for path in files):
            return files
    return ()


def read(
    folder: Folder, files: tuple[Path, ...], images: Mapping[str, str], report: Report
) -> Annotations:
    """Return what VOC files say about the images of the same names."""
    found = Annotations(
        f"'{folder.place(files[0])[0]}'",
        listed=set(),
        missing="has no VOC file; save one, even without an object",
    )
    for path, case, what in paired(folder, files, images, found, report):
        try:
            tree = read_xml(path, folder)
            size = tree.find("size")
            if size is not None:
                sides = [int(number(size.findtext(s), what, s)) for s in ("height", "width")]
                if all(sides):  # some tools write 0 where they do not know
                    found.sizes[case] = (sides[0], sides[1]), what
        except DataError as problem:
            report("error", str(problem))
            found.unread.add(case)
            continue
        for at, thing in enumerate(tree.iter("object"), start=1):
            try:
                found.add(case, _mark(folder, thing, f"{what}, object {at},"))
            except DataError as problem:
                report("error", str(problem))
                found.unread.add(case)
    return found


def _mark(folder: Folder, thing: Element, where: str) -> Mark:
    label, box = folder.label((thing.findtext("name") or "").strip(), where), thing.find("bndbox")
    if box is None:
        msg = f"{where} has no 'bndbox'; remove it or export it again"
        raise DataError(msg)
    left, top, right, bottom = (
        number(box.findtext(edge), where, edge) for edge in ("xmin", "ymin", "xmax", "ymax")
    )
    check_edges(where, top, left, bottom, right, "<=")
    return Mark(where, label, (touched(max(0, top - 1), max(0, left - 1), bottom, right),))
