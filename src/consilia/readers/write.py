"""A drawn annotation -> a site's folder, in any format that can hold it.

Read again with the federation's own size, the folder gives the label view that was written: pixel
forms exactly in every format, boxes and rotated boxes with the conversion that seed 0 draws.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from scipy import ndimage

from consilia.datasets.contract import Cases
from consilia.declare import SiteDeclaration, Supervision
from consilia.errors import DataError, UsageError, listing
from consilia.labels import LabelView
from consilia.readers.entries import BACKGROUND, UNSEEN
from consilia.readers.files import Size
from consilia.readers.shapes import Bitmap, Dots, Shape, render
from consilia.readers.write_shapes import (
    Drawings,
    made,
    write_coco,
    write_cvat,
    write_labelme,
    write_voc,
    write_yolo,
)
from consilia.weaken import Box, Provenance, RotatedBox
from consilia.weaken.box import tight_box

Format = Literal["png", "coco", "yolo", "voc", "labelme", "cvat", "nifti", "csv", "parquet"]
MASK, BOX, IMAGE = Supervision.MASK, Supervision.BOX, Supervision.IMAGE
ROTATED_BOX, POINT = Supervision.ROTATED_BOX, Supervision.POINT
PIXELS = frozenset(form for form in Supervision if form.marks_pixels)
#: What each format can hold; any can hold a site without annotations.
FORMS: dict[Format, frozenset[Supervision]] = {
    "png": PIXELS,
    "nifti": PIXELS,
    "csv": frozenset({BOX, ROTATED_BOX, POINT, IMAGE}),
    "parquet": frozenset({IMAGE}),
    "coco": frozenset({MASK, BOX}),
    "yolo": frozenset({MASK, BOX, ROTATED_BOX}),
    "voc": frozenset({BOX}),
    "labelme": PIXELS | {BOX, ROTATED_BOX},
    "cvat": PIXELS | {BOX, ROTATED_BOX},
}
SHAPES: dict[Format, Callable[[Path, Drawings, tuple[str, ...], Size], None]] = {
    "coco": write_coco,
    "yolo": write_yolo,
    "voc": write_voc,
    "labelme": write_labelme,
    "cvat": write_cvat,
}


def write_folder(
    path: Path,
    cases: Cases,
    view: LabelView,
    declaration: SiteDeclaration,
    labels: tuple[str, ...],
    format: Format = "png",  # noqa: A002 - the word that people use
    *,
    test: Cases | None = None,
    provenance: Provenance | None = None,
) -> None:
    """Write the training cases of a site, what is drawn on them, and test cases with their truth.

    Args:
        path: A folder that does not exist, or is empty.
        cases: Training images.
        view: What the site's annotations say about them.
        declaration: Says in which form.
        labels: The federation's labels.
        format: How to write the annotations.
        test: Images with complete labels.
        provenance: What was drawn; rotated boxes cannot be told from their pixels without it.

    Raises:
        UsageError: The format cannot hold the form.
        DataError: The view cannot be written exactly.
    """
    form = declaration.supervision
    _check(format, form, cases, view)
    for part in (cases, test):
        _check_names(part)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        msg = f"'{path}' is there already; choose a folder that does not exist or is empty"
        raise UsageError(msg)
    path.mkdir(parents=True, exist_ok=True)
    write_images = _write_volumes if format == "nifti" else _write_pictures
    write_masks = _save_volumes if format == "nifti" else _save_masks
    known = [part for part in (cases, test) if part is not None and len(part)]
    names = write_images(path, known)
    _write_cases(path, cases, test, volumes=format == "nifti")
    if not view.segments:
        _write_tags(path, format, cases.case, labels, view.target, view.known_labels)
        if test is not None and test.truth is not None:
            _append_tags(path, format, cases, view, test, labels)
        return
    if test is not None and len(test) and test.truth is not None:
        write_masks(path / "masks", test, test.truth)
    if form is Supervision.NONE:
        return
    if form is IMAGE:
        assert view.constraint is not None, "image labels bound where labels may be"
        present = view.constraint.any(axis=(2, 3)) & view.known_labels
        _write_tags(path, format, cases.case, labels, present, view.known_labels)
    elif format in {"png", "nifti"}:
        values = view.target
        if view.known_pixels is not None:
            values = np.where(view.known_pixels, view.target, np.uint8(UNSEEN))
        write_masks(path / "masks", cases, values)
    else:
        drawings = {
            names[case]: draw_shapes(view, at, form, labels, case, provenance)
            for at, case in enumerate(cases.case)
        }
        if format == "csv":
            _write_rows(path, drawings, form)
        else:
            SHAPES[format](path, drawings, labels, view.target.shape[1:])


def _check(format: Format, form: Supervision, cases: Cases, view: LabelView) -> None:  # noqa: A002
    if format not in get_args(Format):
        msg = f"no format named '{format}'; expected one of {', '.join(FORMS)}"
        raise UsageError(msg)
    able = [name for name, forms in FORMS.items() if form in forms]
    if form is not Supervision.NONE and format not in able:
        msg = f"format '{format}' cannot hold supervision '{form}'; use {listing(able, 'or')}"
        raise UsageError(msg)
    if len(cases) != len(view):
        msg = f"there are {len(cases)} cases, but the view is of {len(view)}; write those it is of"
        raise DataError(msg)


def _check_names(cases: Cases | None) -> None:
    """Refuse cases that cannot be files, or would lie outside the folder."""
    for name in () if cases is None else (*cases.case, *(cases.volume or ())):
        if any(part.startswith(".") or not part.strip() for part in name.split("/")):
            msg = f"case '{name}' cannot be the name of a file; rename it"
            raise DataError(msg)


# ------------------------------------------------------------------------------------------ images


def _write_pictures(root: Path, parts: Sequence[Cases]) -> dict[str, str]:
    """Write each image to a file, and return the files' names by case."""
    names = {}
    for cases in parts:
        for case, image in zip(cases.case, cases.image, strict=True):
            plain = len(image) in {1, 3}
            names[case] = f"{case}.{'png' if plain else 'npy'}"
            pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
            path = made(root / "images" / names[case])
            if plain:
                Image.fromarray(np.ascontiguousarray(pixels)).save(path)
            else:
                np.save(path, pixels)
    return names


def _save_masks(folder: Path, cases: Cases, values: UInt8[np.ndarray, "n h w"]) -> None:
    folder.mkdir(exist_ok=True)
    for case, mask in zip(cases.case, values, strict=True):
        Image.fromarray(mask).save(made(folder / f"{case}.png"))


def _volumes(cases: Cases) -> dict[str, list[int]]:
    """Return the places of the slices of each volume, in order of their names."""
    volume = cases.volume or cases.case
    order = sorted(range(len(cases)), key=lambda at: (volume[at], cases.case[at]))
    return {name: list(own) for name, own in groupby(order, key=lambda at: volume[at])}


def _write_volumes(root: Path, parts: Sequence[Cases]) -> dict[str, str]:
    names: dict[str, str] = {}
    for cases in parts:
        if cases.image.shape[1] != 1:
            msg = f"images of {cases.image.shape[1]} channels cannot be NIfTI volumes; write them as png"
            raise DataError(msg)
        _save_volumes(root / "images", cases, cases.image[:, 0])
        names |= {case: case for case in cases.case}
    return names


def _save_volumes(folder: Path, cases: Cases, values: UInt8[np.ndarray, "n h w"]) -> None:
    """Write volumes whose columns run to the left and rows to the back, as they are read."""
    import nibabel

    folder.mkdir(exist_ok=True)
    for name, places in _volumes(cases).items():
        stored = np.ascontiguousarray(values[places].transpose(2, 1, 0))
        image = nibabel.Nifti1Image(stored, np.diag([-1.0, -1.0, 1.0, 1.0]))
        nibabel.save(image, made(folder / f"{name}.nii.gz"))


# ------------------------------------------------------------------------------------------ tables


def _save_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def _write_cases(root: Path, cases: Cases, test: Cases | None, *, volumes: bool) -> None:
    rows: dict[str, tuple[str, str, str]] = {}
    for split, part in (("train", cases), ("test", test)):
        if part is not None:
            names = (part.volume or part.case) if volumes else part.case
            rows |= {n: (n, group, split) for n, group in zip(names, part.group, strict=True)}
    _save_table(root / "cases.csv", ("image", "patient", "split"), rows.values())


def _write_tags(
    root: Path,
    format: Format,  # noqa: A002
    names: Sequence[str],
    labels: tuple[str, ...],
    present: np.ndarray,
    known: np.ndarray,
) -> None:
    """Write which labels images show; nothing where that is not known."""
    values = [
        [int(shows) if sure else None for shows, sure in zip(*row, strict=True)]
        for row in zip(present, known, strict=True)
    ]
    if format == "parquet":
        from pyarrow import parquet, table  # type: ignore[import-untyped] # no type information

        columns = {label: [row[at] for row in values] for at, label in enumerate(labels)}
        parquet.write_table(table({"image": list(names), **columns}), root / "labels.parquet")
        return
    rows = ([name, *row] for name, row in zip(names, values, strict=True))
    _save_table(root / "labels.csv", ("image", *labels), rows)


def _append_tags(
    root: Path,
    format: Format,  # noqa: A002
    cases: Cases,
    view: LabelView,
    test: Cases,
    labels: tuple[str, ...],
) -> None:
    """Write the tags of training and test images in one table."""
    assert test.truth is not None, "asked only where there is truth"
    present = np.concatenate([view.target, test.truth])
    known = np.concatenate([view.known_labels, np.ones_like(test.truth, dtype=bool)])
    _write_tags(root, format, (*cases.case, *test.case), labels, present, known)


def _write_rows(root: Path, drawings: Drawings, form: Supervision) -> None:
    """Write boxes.csv or points.csv."""
    flat = [(name, label, shape) for name, drawn in drawings.items() for label, shape in drawn]
    if form is POINT:
        rows = [
            (name, label, math.floor(row), math.floor(col))
            for name, label, shape in flat
            if isinstance(shape, Dots)
            for row, col in shape.points
        ]
        _save_table(root / "points.csv", ("image", "label", "row", "column"), rows)
        return
    columns = ("image", "label", "left", "top", "right", "bottom", "angle")
    rows_of_boxes = [(name, label, *_row(shape)) for name, label, shape in flat]
    _save_table(root / "boxes.csv", columns, rows_of_boxes)


def _row(shape: Shape) -> tuple[object, ...]:
    if isinstance(shape, Box):
        return shape.left, shape.top, shape.right, shape.bottom, ""
    assert isinstance(shape, RotatedBox), "tables of boxes hold boxes"
    row, col, down, across = shape.row, shape.col, shape.half_first - 0.5, shape.half_second - 0.5
    degrees = -math.degrees(shape.angle)
    edges = (col - across, row - down, col + across, row + down)
    turn = degrees or 360.0  # without a turn, a table has whole pixels only
    return (*(repr(edge) for edge in edges), repr(turn))


# ------------------------------------------------------------------------------------------ shapes


def draw_shapes(
    view: LabelView,
    at: int,
    form: Supervision,
    labels: tuple[str, ...],
    case: str,
    provenance: Provenance | None,
) -> list[tuple[str, Shape]]:
    """Return what was drawn on one image as labelled shapes.

    Raises:
        DataError: What was drawn cannot be told from the view.
    """
    own = [index for index in range(len(labels)) if view.known_labels[at, index]]
    if form in {BOX, ROTATED_BOX}:
        assert view.constraint is not None, "boxes bound where labels may be"
        return [
            (labels[index], box)
            for index in own
            for box in _boxes(view.constraint[at, index], form, labels[index], case, provenance)
        ]
    target = view.target[at]
    seen = np.ones(target.shape, bool) if view.known_pixels is None else view.known_pixels[at]
    regions = [(labels[index], seen & (target == index + 1)) for index in own]
    if form is not MASK:
        regions.append((BACKGROUND, seen & (target == 0)))
    return [
        (label, _pixels(region) if form is POINT else Bitmap.of(region))
        for label, region in regions
        if region.any()
    ]


def _pixels(region: np.ndarray) -> Dots:
    return Dots(tuple((row + 0.5, col + 0.5) for row, col in np.argwhere(region).tolist()))


def _boxes(
    plane: np.ndarray, form: Supervision, label: str, case: str, provenance: Provenance | None
) -> list[Box | RotatedBox]:
    """Return the boxes that cover where a label may be."""
    if form is ROTATED_BOX:
        if provenance is None or "boxes" not in provenance.marks.get(case, {}):
            msg = (
                f"the rotated boxes of case '{case}' cannot be told from their pixels; give the "
                "provenance that they were drawn with"
            )
            raise DataError(msg)
        drawn = provenance.marks[case]["boxes"][label]
        return [] if drawn is None else [RotatedBox(**drawn)]
    parts, count = ndimage.label(plane, structure=np.ones((3, 3)))
    found = [tight_box(parts == number) for number in range(1, count + 1)]
    boxes = [box for box in found if box is not None]
    covered = np.zeros_like(plane)
    for box in boxes:
        covered |= render(box, plane.shape)
    if not np.array_equal(covered, plane):
        msg = f"the boxes of '{label}' in case '{case}' touch, so that they cannot be told apart"
        raise DataError(msg)
    return list(boxes)
