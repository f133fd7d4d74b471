"""Shapes -> the files of annotation tools, such that reading them gives the same shapes again."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image
from scipy import ndimage

from consilia.readers import runs
from consilia.readers.files import Size
from consilia.readers.shapes import Bitmap, Dots, Point, Shape, corners_of, render
from consilia.weaken import Box, RotatedBox
from consilia.weaken.regions import Mask

#: What is drawn on the images of a site: by image, labels with shapes.
Drawings = Mapping[str, Sequence[tuple[str, Shape]]]


def made(path: Path) -> Path:
    """Return a path whose folder is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _named(folder: Path, image: str, suffix: str) -> Path:
    """Return the file that speaks of an image, in the same sub-folder."""
    return made(folder / (image.rpartition(".")[0] + suffix))


def write_coco(root: Path, drawings: Drawings, labels: tuple[str, ...], size: Size) -> None:
    """Write annotations.json."""
    images: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for at, (name, drawn) in enumerate(drawings.items(), start=1):
        images.append({"id": at, "file_name": name, "height": size[0], "width": size[1]})
        for label, shape in drawn:
            row = {"id": len(rows) + 1, "image_id": at, "category_id": labels.index(label) + 1}
            rows.append(row | _coco_shape(shape, size))
    categories = [{"id": at, "name": label} for at, label in enumerate(labels, start=1)]
    table = {"images": images, "annotations": rows, "categories": categories}
    (root / "annotations.json").write_text(json.dumps(table), encoding="utf-8")


def _coco_shape(shape: Shape, size: Size) -> dict[str, Any]:
    if isinstance(shape, Box):
        top, left, bottom, right = _edges(shape)
        return {"bbox": [left, top, right - left, bottom - top], "iscrowd": 0}
    mask = render(shape, size)
    counts = runs.encode(mask, "F")
    return {"segmentation": {"size": list(size), "counts": counts}, "iscrowd": 1}


def write_yolo(root: Path, drawings: Drawings, labels: tuple[str, ...], size: Size) -> None:
    """Write classes.txt and a text file for each image."""
    (root / "labels").mkdir()
    (root / "classes.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    for name, drawn in drawings.items():
        lines = [
            " ".join([str(labels.index(label)), *(repr(value) for value in values)])
            for label, shape in drawn
            for values in _yolo_values(shape, size)
        ]
        text = "".join(f"{line}\n" for line in lines)
        _named(root / "labels", name, ".txt").write_text(text, encoding="utf-8")


def _yolo_values(shape: Shape, size: Size) -> Iterable[list[float]]:
    height, width = size
    if isinstance(shape, Box):
        top, left, bottom, right = _edges(shape)
        centre = [(left + right) / 2 / width, (top + bottom) / 2 / height]
        return [[*centre, (right - left) / width, (bottom - top) / height]]
    rings = [corners_of(shape)] if isinstance(shape, RotatedBox) else outlines(render(shape, size))
    return [[v for row, col in ring for v in (col / width, row / height)] for ring in rings]


def write_voc(root: Path, drawings: Drawings, _: tuple[str, ...], size: Size) -> None:
    """Write an XML file for each image; pixels are counted from 1."""
    (root / "annotations").mkdir()
    for name, drawn in drawings.items():
        tree = ElementTree.Element("annotation")
        ElementTree.SubElement(tree, "filename").text = name
        sides = ElementTree.SubElement(tree, "size")
        for side, length in (("width", size[1]), ("height", size[0]), ("depth", 1)):
            ElementTree.SubElement(sides, side).text = str(length)
        for label, shape in drawn:
            assert isinstance(shape, Box), "VOC holds upright boxes"
            thing = ElementTree.SubElement(tree, "object")
            ElementTree.SubElement(thing, "name").text = label
            box = ElementTree.SubElement(thing, "bndbox")
            edges = (shape.left + 1, shape.top + 1, shape.right + 1, shape.bottom + 1)
            for edge, at in zip(("xmin", "ymin", "xmax", "ymax"), edges, strict=True):
                ElementTree.SubElement(box, edge).text = str(at)
        ElementTree.ElementTree(tree).write(_named(root / "annotations", name, ".xml"))


def write_labelme(root: Path, drawings: Drawings, _: tuple[str, ...], size: Size) -> None:
    """Write a JSON file for each image, beside it."""
    for name, drawn in drawings.items():
        shapes = [
            {"label": label, "group_id": None, "flags": {}} | _labelme_shape(shape)
            for label, shape in drawn
        ]
        table: dict[str, Any] = {
            "version": "5.4.1",
            "flags": {},
            "shapes": shapes,
            "imagePath": name,
            "imageData": None,
            "imageHeight": size[0],
            "imageWidth": size[1],
        }
        path = _named(root / "images", name, ".json")
        path.write_text(json.dumps(table), encoding="utf-8")


def _labelme_shape(shape: Shape) -> dict[str, Any]:
    if isinstance(shape, Box):
        top, left, bottom, right = _edges(shape)
        return {"shape_type": "rectangle", "points": [[left, top], [right, bottom]]}
    if isinstance(shape, RotatedBox):
        corners = [[col, row] for row, col in corners_of(shape)]
        return {"shape_type": "oriented_rectangle", "points": corners}
    if isinstance(shape, Dots):
        return {"shape_type": "points", "points": [[col, row] for row, col in shape.points]}
    assert isinstance(shape, Bitmap), "all else is written pixel by pixel"
    file = io.BytesIO()
    Image.fromarray(shape.pixels.astype(np.uint8) * 255).save(file, format="PNG")
    height, width = shape.size
    last = [shape.left + width - 1, shape.top + height - 1]
    return {
        "shape_type": "mask",
        "points": [[shape.left, shape.top], last],
        "mask": base64.b64encode(file.getvalue()).decode(),
    }


def write_cvat(root: Path, drawings: Drawings, _: tuple[str, ...], size: Size) -> None:
    """Write annotations.xml."""
    tree = ElementTree.Element("annotations")
    ElementTree.SubElement(tree, "version").text = "1.1"
    for at, (name, drawn) in enumerate(drawings.items()):
        image = ElementTree.SubElement(
            tree, "image", id=str(at), name=name, width=str(size[1]), height=str(size[0])
        )
        for label, shape in drawn:
            kind, values = _cvat_shape(shape)
            attributes = {key: str(value) for key, value in values.items()}
            ElementTree.SubElement(image, kind, {"label": label, "source": "manual"} | attributes)
    ElementTree.ElementTree(tree).write(root / "annotations.xml", encoding="utf-8")


def _cvat_shape(shape: Shape) -> tuple[str, dict[str, Any]]:
    if isinstance(shape, Box | RotatedBox):
        top, left, bottom, right = _edges(shape)
        box = {"xtl": left, "ytl": top, "xbr": right, "ybr": bottom}
        if isinstance(shape, RotatedBox):
            box["rotation"] = -math.degrees(shape.angle)
        return "box", box
    if isinstance(shape, Dots):
        return "points", {"points": ";".join(f"{col!r},{row!r}" for row, col in shape.points)}
    assert isinstance(shape, Bitmap), "all else is written pixel by pixel"
    height, width = shape.size
    rle = ",".join(str(run) for run in runs.encode(shape.pixels, "C"))
    window = {"left": shape.left, "top": shape.top, "width": width, "height": height}
    return "mask", {"rle": rle, **window}


def _edges(shape: Box | RotatedBox) -> tuple[float, float, float, float]:
    """Return the continuous edges of a box, before it is turned."""
    if isinstance(shape, Box):
        return shape.top, shape.left, shape.bottom + 1, shape.right + 1
    row, col = shape.row + 0.5, shape.col + 0.5
    return (
        row - shape.half_first,
        col - shape.half_second,
        row + shape.half_first,
        col + shape.half_second,
    )


# ---------------------------------------------------------------------------------------- outlines


def outlines(mask: Mask) -> list[tuple[Point, ...]]:
    """Return a ring along the edges of pixels for each connected part of a mask.

    A hole is joined to the ring by a path that is walked there and back, which encloses nothing.
    """
    parts, count = ndimage.label(mask)
    rings = []
    for number in range(1, count + 1):
        loops = _loops(parts == number)
        ring = list(loops[0])
        for hole in loops[1:]:
            ring += [ring[0], *hole, hole[0]]
        rings.append(tuple((float(row), float(col)) for row, col in ring))
    return rings


def _loops(part: Mask) -> list[list[tuple[int, int]]]:
    """Return closed walks along all edges between a part and the rest, straight runs as one step."""
    padded = np.pad(part, 1)
    inside = padded[1:-1, 1:-1]
    steps: dict[tuple[int, int], list[tuple[int, int]]] = {}
    #: The neighbor across an edge; where the edge begins and ends, from the pixel's first corner.
    for across, start, end in (
        (padded[:-2, 1:-1], (0, 0), (0, 1)),
        (padded[1:-1, 2:], (0, 1), (1, 1)),
        (padded[2:, 1:-1], (1, 1), (1, 0)),
        (padded[1:-1, :-2], (1, 0), (0, 0)),
    ):
        for row, col in np.argwhere(inside & ~across).tolist():
            begin = (row + start[0], col + start[1])
            steps.setdefault(begin, []).append((row + end[0], col + end[1]))
    loops = []
    while steps:
        at = first = min(steps)
        loop: list[tuple[int, int]] = []
        while True:
            ends = steps[at]
            after = ends.pop()
            if not ends:
                del steps[at]
            if len(loop) > 1 and _straight(loop[-2], loop[-1], at):
                loop[-1] = at
            else:
                loop.append(at)
            at = after
            if at == first:
                break
        loops.append(loop)
    return loops


def _straight(before: tuple[int, int], at: tuple[int, int], after: tuple[int, int]) -> bool:
    return before[0] == at[0] == after[0] or before[1] == at[1] == after[1]
