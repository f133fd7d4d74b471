"""JSON and XML files of annotation tools -> plain values, with nothing in them that could explode."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any
from xml.etree import ElementTree

from consilia.errors import DataError
from consilia.readers.entries import Annotations, Folder, Names
from consilia.readers.files import (
    Report,
    check_bytes,
    guarded,
    printable,
    split_name,
    stay_inside,
)
from consilia.readers.tables import find_image, was_refused

#: The largest file of annotations that is read, in bytes.
LARGEST_MARKUP = 512 << 20
#: How much of a file is looked at to tell what it is, in bytes.
HEAD = 1 << 16
EXPLOSIVE = re.compile(r"<!\s*(DOCTYPE|ENTITY)", re.IGNORECASE)


def head(path: Path, root: Path) -> bytes:
    """Return the beginning of a file, or nothing of one that cannot or must not be read."""
    try:
        stay_inside(path, root, "")
        if not path.is_file():  # a pipe would wait for its writer
            return b""
        with path.open("rb") as file:
            return file.read(HEAD)
    except (OSError, DataError):
        return b""


def read_markup(path: Path, folder: Folder, *, may_be_empty: bool = False) -> str:
    """Return the text of a file, which is inside the folder and not too large."""
    name = folder.place(path)[1]
    what = f"{name} of {folder.who}"
    stay_inside(path, folder.root, f"file '{name}' of {folder.who}")
    with guarded(what):
        check_bytes(path.stat().st_size or int(may_be_empty), what, LARGEST_MARKUP)
        try:
            return path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            msg = f"{what} is not UTF-8 text; export it again as UTF-8"
            raise DataError(msg) from None


def read_json(path: Path, folder: Folder) -> dict[str, Any]:
    """Return the table that a JSON file holds."""
    what, text = f"{folder.place(path)[1]} of {folder.who}", read_markup(path, folder)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        msg = f"{what} is not valid JSON; it is damaged or cut short: export it again"
        raise DataError(msg) from None
    if not isinstance(found, dict):
        msg = f"{what} holds no table at its top; export it again"
        raise DataError(msg)
    return found


def read_xml(path: Path, folder: Folder) -> ElementTree.Element:
    """Return the outermost element of an XML file, which may define no entities."""
    what, text = f"{folder.place(path)[1]} of {folder.who}", read_markup(path, folder)
    if EXPLOSIVE.search(text):
        msg = (
            f"{what} has a DOCTYPE or ENTITY, which can unpack without end and is never read; "
            "export it again"
        )
        raise DataError(msg)
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError):
        msg = f"{what} is not valid XML; it is damaged or cut short: export it again"
        raise DataError(msg) from None


def number(value: object, where: str, what: str) -> float:
    """Return a finite number, which XML and tables write as text."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        found = float(value)
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        text = "nothing" if value is None else f"'{printable(str(value))}'"
        msg = f"{where} has {text} for '{what}'; expected a number"
        raise DataError(msg)
    return found


def check_edges(
    where: str, top: float, left: float, bottom: float, right: float, relation: str = "<"
) -> None:
    """Refuse a box whose ends are the wrong way round."""
    for first, last, low, high in (
        ("left", "right", left, right),
        ("top", "bottom", top, bottom),
    ):
        if high < low or (high == low and relation == "<"):
            msg = (
                f"{where} has {last} {high:.10g} {'<' if high < low else '='} {first} {low:.10g}; "
                f"expected {first} {relation} {last}: swap or correct them"
            )
            raise DataError(msg)


def resolve(found: str, images: Mapping[str, str], where: str, report: Report) -> str | None:
    """Return the image that a tool means: folders above ours do not matter, nor does its type."""
    parts = PureWindowsPath(found.replace("\\", "/")).parts
    for start in range(len(parts)):
        shelf = "".join(f"{part}/" for part in parts[start:-1])
        for name in (parts[-1], parts[-1].rpartition(".")[0]):
            if shelf + name in images:
                return images[shelf + name]
            if was_refused(shelf + name, images):
                return None
    plain = parts[-1] if parts else found
    shared = images.shared if isinstance(images, Names) else ()
    found = plain if plain in shared else found
    return find_image(found, images, where, report, "the entry")


def no_image(folder: Folder, what: str) -> str:
    """Return that a file of annotations has no image, for a report."""
    return f"{what} has no image of the same name in '{folder.images.name}'; rename or remove it"


def paired(
    folder: Folder,
    files: Iterable[Path],
    images: Mapping[str, str],
    found: Annotations,
    report: Report,
) -> Iterator[tuple[Path, str, str]]:
    """Yield each file that speaks of the image of its name, that case, and the file for sentences."""
    for path in files:
        name = folder.place(path)[1]
        what, stem = f"{name} of {folder.who}", split_name(name)[0]
        if was_refused(stem, images):
            continue
        if stem not in images:
            report("error", no_image(folder, what))
            continue
        case = images[stem]
        assert found.listed is not None
        found.listed.add(case)
        yield path, case, what
