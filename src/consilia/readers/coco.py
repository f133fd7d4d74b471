"""COCO files: boxes, polygons and run-length masks, with categories by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consilia.errors import DataError
from consilia.readers import runs
from consilia.readers.entries import Annotations, Folder
from consilia.readers.files import Report, Size, check_values
from consilia.readers.markup import head, number, read_json, resolve
from consilia.readers.shapes import Bitmap, Mark, Polygon, Shape, touched

PARTS = ("images", "annotations", "categories")


def find(folder: Folder) -> tuple[Path, ...]:
    """Return the COCO files of a folder."""
    return tuple(
        path
        for place in (folder.root, folder.root / "annotations")
        for path in sorted(place.glob("*.json"))
        if _is_coco(path, folder)
    )


def _is_coco(path: Path, folder: Folder) -> bool:
    start = head(path, folder.root)
    if path.parent == folder.root and path.name in {"annotations.json", "coco.json"}:
        return True
    return b'"shapes"' not in start and (b'"images"' in start or b'"annotations"' in start)


def read(
    folder: Folder, files: tuple[Path, ...], images: Mapping[str, str], report: Report
) -> Annotations:
    """Return what COCO files say about the images that they list."""
    found = Annotations(
        files[0].name,
        listed=set(),
        missing=f"is not listed in {files[0].name}; add it under 'images' or remove it",
    )
    for path in files:
        try:
            table = read_json(path, folder)
            _check_parts(table, f"{path.name} of {folder.who}")
        except DataError as problem:
            report("error", str(problem))
            found.damaged = True
            found.listed = None  # what cannot be read is told once, not again for each image
            continue
        _read_file(folder, path, table, images, found, report)
    return found


def _check_parts(table: dict[str, Any], what: str) -> None:
    for part in PARTS:
        if not isinstance(table.get(part), list):
            msg = f"{what} has no list '{part}'; expected a COCO file with {', '.join(PARTS)}"
            raise DataError(msg)
        if not all(isinstance(row, dict) for row in table[part]):
            msg = f"{what} has an entry of '{part}' that is no table; export it again"
            raise DataError(msg)


def _read_file(
    folder: Folder,
    path: Path,
    table: dict[str, Any],
    images: Mapping[str, str],
    found: Annotations,
    report: Report,
) -> None:
    what = f"{path.name} of {folder.who}"
    cases: dict[Any, str | None] = {}
    for at, row in enumerate(table["images"], start=1):
        where = f"{what}, image {at},"
        case = cases[_key(row, "id")] = resolve(str(row.get("file_name")), images, where, report)
        if case is None:
            continue
        if found.listed is not None:
            found.listed.add(case)
        try:
            if "height" in row or "width" in row:
                found.sizes[case] = _size(row, where), what
        except DataError as problem:
            report("error", str(problem))
    names = {_key(row, "id"): str(row.get("name")) for row in table["categories"]}
    labels: dict[Any, int | None] = {}
    for at, row in enumerate(table["annotations"], start=1):
        where = f"{what}, annotation {row['id'] if isinstance(row.get('id'), int) else at},"
        try:
            case, label = _belongs(folder, row, cases, names, labels, where)
            if case is not None and label is not None:
                found.add(case, Mark(where, label, _shapes(row, found.sizes.get(case), where)))
        except DataError as problem:
            report("error", str(problem))
            about = cases.get(_key(row, "image_id"))
            if about is not None:
                found.unread.add(about)


def _key(row: dict[str, Any], name: str) -> Any:
    """Return an id, which is a number or, in some exports, text."""
    key = row.get(name)
    return key if isinstance(key, int | str) else None


def _size(row: dict[str, Any], where: str) -> Size:
    size = tuple(int(number(row.get(side), where, side)) for side in ("height", "width"))
    check_values(size, where)
    return size[0], size[1]


def _belongs(
    folder: Folder,
    row: dict[str, Any],
    cases: Mapping[Any, str | None],
    names: Mapping[Any, str],
    labels: dict[Any, int | None],
    where: str,
) -> tuple[str | None, int | None]:
    """Return the image and the label of an annotation; an unknown category is told once."""
    image, category = _key(row, "image_id"), _key(row, "category_id")
    if image not in cases:
        msg = (
            f"{where} is about the image id '{image}', which is not listed under 'images'; list it "
            "or remove the annotation"
        )
        raise DataError(msg)
    if category not in names:
        msg = (
            f"{where} has the category id '{category}', which is not listed under 'categories'; "
            "list it or remove the annotation"
        )
        raise DataError(msg)
    if category not in labels:
        labels[category] = None
        labels[category] = folder.label(names[category], where)
    return cases[image], labels[category]


def _shapes(row: dict[str, Any], stated: tuple[Size, str] | None, where: str) -> tuple[Shape, ...]:
    """Return the box and the mask of an annotation, as far as it has them."""
    shapes: list[Shape] = []
    if row.get("bbox"):
        shapes.append(_box(row["bbox"], where))
    if row.get("segmentation"):
        shapes.append(_segmentation(row["segmentation"], stated, where))
    if not shapes:
        msg = f"{where} has neither 'bbox' nor 'segmentation'; remove it or export it again"
        raise DataError(msg)
    return tuple(shapes)


def _box(found: Any, where: str) -> Shape:
    if not isinstance(found, list) or len(found) != 4:
        msg = f"{where} has a 'bbox' that is not [left, top, width, height]; export it again"
        raise DataError(msg)
    left, top, width, height = (number(value, where, "bbox") for value in found)
    for name, length in (("width", width), ("height", height)):
        if length <= 0:
            msg = f"{where} has a 'bbox' of {name} {length:g}; expected more than 0: correct it"
            raise DataError(msg)
    return touched(top, left, top + height, left + width)


def _segmentation(found: Any, stated: tuple[Size, str] | None, where: str) -> Shape:
    if isinstance(found, dict):
        return _runs(found, stated, where)
    rings = []
    for flat in found if isinstance(found, list) else [None]:
        if not isinstance(flat, list) or len(flat) < 6 or len(flat) % 2:
            msg = (
                f"{where} has a polygon that is not a list of 3 or more x, y pairs; export it again"
            )
            raise DataError(msg)
        values = [number(value, where, "segmentation") for value in flat]
        rings.append(tuple(zip(values[1::2], values[::2], strict=True)))
    return Polygon(tuple(rings))


def _runs(found: dict[str, Any], stated: tuple[Size, str] | None, where: str) -> Shape:
    size, counts = found.get("size"), found.get("counts")
    if not isinstance(size, list) or len(size) != 2:
        msg = f"{where} has a run-length mask without its 'size'; export it again"
        raise DataError(msg)
    height, width = (int(number(side, where, "size")) for side in size)
    check_values((height, width), where)
    if stated is not None and stated[0] != (height, width):
        msg = (
            f"{where} has a mask of {width} x {height} pixels (width x height), but its image is "
            f"{stated[0][1]} x {stated[0][0]}; export both in the same size"
        )
        raise DataError(msg)
    try:
        lengths = runs.unpack(counts) if isinstance(counts, str) else list(counts or ())
        return Bitmap.of(runs.decode(lengths, (height, width), "F"))
    except (ValueError, TypeError, OverflowError):
        msg = f"{where} has a run-length mask that is damaged; export it again"
        raise DataError(msg) from None
