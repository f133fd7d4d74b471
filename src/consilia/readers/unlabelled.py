"""New images without annotations, one file after another: pictures and volumes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from consilia.errors import DataError, listing
from consilia.readers.files import Size, image_folder, list_files, refuse, split_name
from consilia.readers.images import IMAGE_TYPES, fit_image, read_image
from consilia.readers.volumes import VOLUME_TYPES, Geometry, is_deep, read_geometry, read_planes


@dataclass(frozen=True)
class Unlabelled:
    """One file: a picture, or the planes of a volume.

    Attributes:
        name: The file's stem, or the folder of its series; in a sub-folder as "<sub>/<stem>".
        path: The file or folder.
        image: At the size and with the channels that were asked for; one, or one per plane.
        stored: The height and width of the file.
        place: Where a volume lies; `None` for a picture.
    """

    name: str
    path: Path
    image: UInt8[np.ndarray, "n c h w"]
    stored: Size
    place: Geometry | None = None


def read_unlabelled(folder: Path, size: Size, channels: int) -> Iterator[Unlabelled]:
    """Yield the images of a folder (or of its `images` folder) by name, one file in memory at a time.

    Args:
        folder: Holds images and nothing else, some perhaps in sub-folders, or a folder `images` that does;
            or a single image.
        size: Height and width that all images are brought to.
        channels: That all images are brought to.
    """
    types = (*IMAGE_TYPES, *VOLUME_TYPES)
    if folder.is_file():
        files, folder = _one_file(folder, types), folder.parent
        who = f"folder '{folder.resolve().name}'"
    else:
        who = f"folder '{folder.name}'"
        files = _all_files(folder, who, types)
    for name, path in files.items():
        what = f"image '{path.name}' of {who}"
        geometry = read_geometry(path, folder, what) if is_deep(path) else None
        planes = [read_image(path, what)] if geometry is None else read_planes(path, folder, what)
        image = np.stack([fit_image(plane, size, channels, what) for plane in planes])
        yield Unlabelled(name, path, image, (planes[0].shape[0], planes[0].shape[1]), geometry)


def _one_file(path: Path, types: tuple[str, ...]) -> dict[str, Path]:
    name, suffix = split_name(path.name)
    if suffix.lower() not in types:
        msg = f"file '{path}' is no image; expected a folder, or a file of type {listing(types, 'or')}"
        raise DataError(msg)
    return {name: path}


def _all_files(folder: Path, who: str, types: tuple[str, ...]) -> dict[str, Path]:
    if not folder.is_dir():
        msg = f"folder '{folder}' does not exist; check the path"
        raise DataError(msg)
    inner = image_folder(folder)
    place = inner if inner.is_dir() else folder
    files = list_files(place, folder, "image", who, types, refuse, series=True, nested=True)
    if not files:
        msg = f"{who} holds no images; expected files of type {listing(types)}"
        raise DataError(msg)
    return files
