"""Cases and a label view -> the plain folder layout of `consilia.readers.folder`, and a picture."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from consilia.datasets.contract import Cases
from consilia.datasets.source import UNSEEN, unique
from consilia.declare import SiteDeclaration, Supervision
from consilia.labels import LabelView

#: Okabe and Ito's colors for labels, and a cold gray for marked background.
COLORS = ((230, 159, 0), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167))
BACKGROUND = (86, 180, 233)
OPACITY = 0.55
Picture = UInt8[np.ndarray, "h w 3"]


def write_site(
    folder: Path,
    train: Cases,
    view: LabelView,
    test: Cases,
    declaration: SiteDeclaration,
    labels: tuple[str, ...],
) -> None:
    """Write a site's images and annotations so that `read_folder` reads them as declared.

    Rotated boxes have no place in that layout: what they are converted to is written as blocks.

    Args:
        folder: Must not exist yet.
        train: Images that are annotated.
        view: What the annotations say.
        test: Images to be judged on, with complete labels.
        declaration: In which form.
        labels: The federation's labels.
    """
    (folder / "images").mkdir(parents=True)
    cases = (*train.case, *test.case)
    names = unique([re.sub(r"[^\w.() -]", "_", name) for name in cases])
    for name, image in zip(names, (*train.image, *test.image), strict=True):
        _write_image(folder / "images" / name, image)
    own, judged = names[: len(train)], names[len(train) :]
    splits = ["train"] * len(own) + ["test"] * len(judged)
    groups = (*train.group, *test.group)
    _write_table(
        folder / "cases.csv",
        ("image", "patient", "split"),
        list(zip(names, groups, splits, strict=True)),
    )
    assert test.truth is not None, "cases to be judged on have a truth"
    if not view.segments:
        _write_tags(folder, names, labels, _tags(view, declaration), test.truth)
        return
    masks = dict(zip(judged, test.truth, strict=True))
    if declaration.supervision is Supervision.BOX:
        _write_boxes(folder, own, labels, view)
    elif declaration.supervision is Supervision.IMAGE:
        _write_tags(folder, own, labels, _tags_of_planes(view), None)
    elif declaration.supervision is not Supervision.NONE:
        drawn = view.target
        if view.known_pixels is not None:
            drawn = np.where(view.known_pixels, drawn, np.uint8(UNSEEN))
        masks.update(zip(own, drawn, strict=True))
    (folder / "masks").mkdir()
    for name, mask in masks.items():
        Image.fromarray(np.ascontiguousarray(mask)).save(folder / "masks" / f"{name}.png")


def _write_image(path: Path, image: UInt8[np.ndarray, "c h w"]) -> None:
    pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
    if pixels.shape[2] in {1, 3}:
        Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(
            path.with_name(f"{path.name}.png")
        )
    else:
        np.save(path.with_name(f"{path.name}.npy"), pixels)


def _write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _tags(view: LabelView, declaration: SiteDeclaration) -> list[list[object]]:
    """Return 1, 0 or blank (unknown) for each image and label of a classification task."""
    if declaration.supervision is Supervision.NONE:
        return [[""] * view.known_labels.shape[1] for _ in range(len(view))]
    table = np.where(view.known_labels, view.target.astype(object), "")
    return [list(row) for row in table]


def _tags_of_planes(view: LabelView) -> list[list[object]]:
    """Return image tags of a segmentation task: a label that may be nowhere is not there."""
    assert view.constraint is not None, "image tags bound their labels"
    present = view.constraint.any(axis=(2, 3)).astype(int).astype(object)
    return [list(row) for row in np.where(view.known_labels, present, "")]


def _write_tags(
    folder: Path,
    names: Sequence[str],
    labels: tuple[str, ...],
    tags: list[list[object]],
    truth: np.ndarray | None,
) -> None:
    rows = [*tags, *([] if truth is None else truth.tolist())]
    table = [(name, *row) for name, row in zip(names, rows, strict=True)]
    _write_table(folder / "labels.csv", ("image", *labels), table)


def _write_boxes(
    folder: Path, names: Sequence[str], labels: tuple[str, ...], view: LabelView
) -> None:
    assert view.constraint is not None, "boxes bound their labels"
    rows: list[tuple[object, ...]] = []
    for name, planes, known in zip(names, view.constraint, view.known_labels, strict=True):
        for label, plane, marked in zip(labels, planes, known, strict=True):
            if not marked or not plane.any():
                continue
            y, x = (np.flatnonzero(plane.any(axis=axis)) for axis in (1, 0))
            rows.append((name, label, x[0], y[0], x[-1], y[-1]))
    columns = ("image", "label", "left", "top", "right", "bottom")
    _write_table(folder / "boxes.csv", columns, rows)


# ----------------------------------------------------------------------------------------- pictures


def paint(
    image: UInt8[np.ndarray, "c h w"], view: LabelView, at: int, *, outline: bool = True
) -> Picture:
    """Return an image with its annotation: marks in color, bounds as outlines."""
    plain = image.transpose(1, 2, 0) if len(image) == 3 else np.repeat(image[0][..., None], 3, 2)
    picture = plain.astype(np.float32)
    if view.segments:
        known = np.ones(picture.shape[:2], bool)
        if view.known_pixels is not None:
            known = view.known_pixels[at]
        for value in range(view.known_labels.shape[1], -1, -1):
            if value == 0 and view.known_pixels is None:
                continue
            color = BACKGROUND if value == 0 else COLORS[(value - 1) % len(COLORS)]
            here = known & (view.target[at] == value)
            picture[here] = (1 - OPACITY) * picture[here] + OPACITY * np.array(color)
        if outline and view.constraint is not None:
            for label, plane in enumerate(view.constraint[at]):
                picture[_edge(plane)] = COLORS[label % len(COLORS)]
    return np.rint(picture).astype(np.uint8)


def _edge(plane: np.ndarray) -> np.ndarray:
    inner = np.pad(plane, 1)
    inside = inner[:-2, 1:-1] & inner[2:, 1:-1] & inner[1:-1, :-2] & inner[1:-1, 2:]
    return np.asarray(plane & ~inside)


def montage(rows: Mapping[str, Sequence[Picture]], tile: int = 128) -> Image.Image:
    """Return rows of pictures, each row with its name to the left."""
    wide = max(len(pictures) for pictures in rows.values())
    left = 8 + 7 * max(len(name) for name in rows)
    sheet = Image.new("RGB", (left + wide * (tile + 4), len(rows) * (tile + 4)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, pictures) in enumerate(rows.items()):
        top = row * (tile + 4)
        pen.text((4, top + tile // 2 - 6), name, fill="black")
        for column, picture in enumerate(pictures):
            shrunk = Image.fromarray(picture).resize((tile, tile), Image.Resampling.LANCZOS)
            sheet.paste(shrunk, (left + column * (tile + 4), top))
    return sheet


def contact_sheet(
    sites: Mapping[str, tuple[Cases, LabelView]], path: Path, per_site: int = 8
) -> None:
    """Write a PNG with a row of evenly chosen images per site and their annotations."""
    rows = {}
    for name, (cases, view) in sites.items():
        chosen = np.linspace(0, len(cases) - 1, min(per_site, len(cases))).round().astype(int)
        rows[name] = [paint(cases.image[at], view, int(at)) for at in chosen]
    montage(rows).save(path)
