"""Pictures of annotations: images with what is marked on them, in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from consilia.datasets.contract import Cases
from consilia.labels import LabelView

#: Okabe and Ito's colors for labels, and a cold gray for marked background.
COLORS = ((230, 159, 0), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167))
BACKGROUND = (86, 180, 233)
OPACITY = 0.55
Picture = UInt8[np.ndarray, "h w 3"]


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
