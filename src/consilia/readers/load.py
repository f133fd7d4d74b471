"""The pixels of an entry, whether it is a file of its own or a slice of a volume."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from consilia.errors import DataError
from consilia.readers.entries import Entry, Folder
from consilia.readers.images import Pixels, read_image, read_index_map
from consilia.readers.volumes import (
    VOLUME_TYPES,
    Geometry,
    read_geometry,
    read_mask_planes,
    read_planes,
)

T = TypeVar("T")


class Loader:
    """Reads images and masks; of volumes it keeps the last, since their slices come in order."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._kept: dict[str, tuple[Path, object]] = {}

    @cached_property
    def again(self) -> Loader:
        """Another loader, for a second look at images that this one has let go of."""
        return Loader(self.folder)

    def image(self, entry: Entry) -> Pixels:
        """Return the pixels of an image as they are stored, those of a volume in 8 bits."""
        what, path = self.folder.name(entry.image), entry.image
        if not entry.deep:
            return read_image(path, what)
        planes = self._keep("planes", path, lambda: read_planes(path, self.folder.root, what))
        return np.asarray(planes[entry.plane])

    def mask(self, entry: Entry) -> np.ndarray:
        """Return the values of an image's mask as they are stored."""
        assert entry.mask is not None, "images without a mask are reported by the survey"
        what, path = self.folder.name(entry.mask, "mask"), entry.mask
        if entry.deep:
            if entry.volume is not None or path.name.lower().endswith(VOLUME_TYPES):
                return np.asarray(self.mask_planes(entry.image, path)[entry.plane])
        elif path.name.lower().endswith(VOLUME_TYPES):
            msg = f"{what} is a volume, but its image is a single picture; save it as .png"
            raise DataError(msg)
        return read_index_map(path, what)

    def mask_planes(self, image: Path, mask: Path) -> np.ndarray:
        """Return the values of a volume's mask, plane by plane."""
        folder, what = self.folder, self.folder.name(mask, "mask")

        def read() -> np.ndarray:
            onto = self.geometry(image)
            return read_mask_planes(mask, what, onto, folder.federation.labels)

        return self._keep("mask", mask, read)

    def geometry(self, image: Path) -> Geometry:
        """Return where a volume lies."""
        folder, what = self.folder, self.folder.name(image)
        return self._keep("geometry", image, lambda: read_geometry(image, folder.root, what))

    def _keep(self, kind: str, path: Path, read: Callable[[], T]) -> T:
        """Return what was read last of this kind, or read it; a refusal is kept as well."""
        last, value = self._kept.get(kind, (None, None))
        if last != path:
            self._kept.pop(kind, None)  # let go of the last before the next is read
            try:
                value = read()
            except DataError as problem:
                value = problem
            self._kept[kind] = path, value
        if isinstance(value, DataError):
            raise DataError(str(value))
        return value  # type: ignore[return-value] # each kind holds values of one type
