"""NIfTI files -> axial planes, whatever the order in which a file stores its voxels.

The volume is turned to its nearest axial order; rows then run from front to back and columns from
the patient's right to the left, as radiologists look at them. Intensities of a volume are brought to
8 bits together (see `consilia.readers.images`).
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from jaxtyping import UInt8

from consilia.errors import DataError
from consilia.readers.files import (
    GZIPPED,
    check_bytes,
    check_values,
    guarded,
    quiet,
    split_name,
)
from consilia.readers.images import check_finite, index_values, to_bytes
from consilia.readers.volumes import NIFTI_TYPES, Geometry, same_place

#: Where voxels may begin in a file at the latest, in bytes: headers that claim more unpack a lot.
LATEST_OFFSET = 1 << 20
#: Axes as we hold them: planes to the head, rows to the back, columns to the left.
AXIAL = ("S", "P", "L")


@dataclass(frozen=True, eq=False)
class _File:
    """A header that was checked; of a packed file nothing else was unpacked."""

    path: Path
    header: Any
    shape: tuple[int, int, int]

    @property
    def affine(self) -> np.ndarray:
        return np.asarray(self.header.get_best_affine())

    def voxels(self) -> np.ndarray:
        """Return the values in their stored order; no more is unpacked than the header says."""
        dtype, offset = self.header.get_data_dtype(), int(self.header["vox_offset"])
        count = int(np.prod(self.shape))
        with _unpacked(self.path) as file:
            data = file.read(offset + count * dtype.itemsize)
        values = np.frombuffer(data, dtype, count, offset).reshape(self.shape, order="F")
        slope, intercept = self.header.get_slope_inter()
        if slope is None or (slope, intercept) == (1, 0):
            return values
        deep = values.astype(np.float32 if dtype.itemsize <= 2 else np.float64)
        return np.asarray(deep * slope + intercept)


def _unpacked(path: Path) -> BinaryIO:
    if path.name.lower().endswith(GZIPPED):
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


def _open(path: Path, what: str) -> _File:
    """Return the header of a file, of which nothing else is read."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    check_bytes(path.stat().st_size, what)
    with _unpacked(path) as file:
        block = file.read(540)
    second = 540 in {int.from_bytes(block[:4], "little"), int.from_bytes(block[:4], "big")}
    header: Any = Nifti2Header(block) if second else Nifti1Header(block[:348])
    shape = [int(length) for length in header.get_data_shape()]
    while len(shape) > 3 and shape[-1] == 1:
        shape.pop()
    if len(shape) != 3:
        msg = (
            f"{what} has {len(shape)} dimensions; expected a volume of three: save one in each file"
        )
        raise DataError(msg)
    check_values(shape, what)
    dtype = header.get_data_dtype()
    if dtype.kind not in "uif":
        msg = f"{what} holds values of type '{dtype}'; save plain numbers"
        raise DataError(msg)
    affine, offset = np.asarray(header.get_best_affine()), float(header["vox_offset"])
    if not 0 <= offset <= LATEST_OFFSET or not np.isfinite(affine).all():
        msg = f"{what} has a header that makes no sense; export it again"
        raise DataError(msg)
    return _File(path, header, (shape[0], shape[1], shape[2]))


def _order(affine: np.ndarray, onto: np.ndarray | None) -> np.ndarray:
    """Return how stored axes become planes, rows and columns: axial ones, or those of an image."""
    from nibabel import orientations

    wanted = orientations.axcodes2ornt(AXIAL)
    if onto is not None:
        wanted = orientations.io_orientation(onto)
    order: np.ndarray = orientations.ornt_transform(orientations.io_orientation(affine), wanted)
    return order


def _turned(file: _File, order: np.ndarray) -> Geometry:
    from nibabel import orientations

    affine = file.affine @ orientations.inv_ornt_aff(order, file.shape)
    lengths = dict(zip(order[:, 0].astype(int).tolist(), file.shape, strict=True))
    return Geometry((lengths[0], lengths[1], lengths[2]), affine)


def _planes(file: _File, order: np.ndarray) -> np.ndarray:
    from nibabel import orientations

    return np.asarray(orientations.apply_orientation(file.voxels(), order))


def nifti_geometry(path: Path, what: str) -> Geometry:
    """Return where the volume of a file lies; its voxels are not read."""
    with guarded(what), quiet():
        file = _open(path, what)
        return _turned(file, _order(file.affine, None))


def nifti_planes(path: Path, what: str) -> UInt8[np.ndarray, "z h w"]:
    """Return the axial planes of a file in 8 bits."""
    with guarded(what), quiet():
        file = _open(path, what)
        return to_bytes(check_finite(_planes(file, _order(file.affine, None)), what))


def nifti_mask(path: Path, what: str, onto: Geometry) -> np.ndarray:
    """Return the values of a mask by plane, in the order of its image, where it must lie."""
    with guarded(what), quiet():
        file = _open(path, what)
        order = _order(file.affine, onto.affine)
        same_place(_turned(file, order), onto, what)
        return index_values(_planes(file, order), what)


def write_mask(path: Path, planes: UInt8[np.ndarray, "z h w"], onto: Geometry, like: Path) -> None:
    """Write a mask by plane as NIfTI, where its image lies; stored in the order of a NIfTI image.

    Args:
        path: Where to write.
        planes: Values by plane, row and column.
        onto: Where the image's planes lie.
        like: The image.
    """
    import nibabel
    from nibabel import orientations

    affine = np.eye(4) if onto.affine is None else onto.affine
    mask = nibabel.nifti1.Nifti1Image(planes, affine)
    if like.is_file() and split_name(like.name)[1].lower() in NIFTI_TYPES:
        with guarded(f"image '{like.name}'"), quiet():
            stored = orientations.io_orientation(_open(like, like.name).affine)
        mask = mask.as_reoriented(
            orientations.ornt_transform(orientations.io_orientation(affine), stored)
        )
    nibabel.save(mask, path)
