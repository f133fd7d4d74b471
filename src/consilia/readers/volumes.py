"""Volumes -> slices: one geometry for NIfTI files and DICOM series.

A volume is held as planes, from below upwards where it is axial; its affine takes (plane, row, column)
to millimetres, x to the right, y to the front, z to the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from consilia.errors import DataError
from consilia.readers.files import split_name
from consilia.readers.images import IMAGE_TYPES

NIFTI_TYPES = (".nii", ".nii.gz")
DICOM_TYPES = (".dcm",)
VOLUME_TYPES = (*NIFTI_TYPES, *DICOM_TYPES)
#: Corners of a mask may lie this far from those of its image, in voxels.
SLACK = 0.05


@dataclass(frozen=True, eq=False)
class Geometry:
    """Where a volume lies.

    Attributes:
        shape: Planes, rows and columns.
        affine: From (plane, row, column) to millimetres, or to pixels of unknown size where the
            volume is not `measured`; `None` where the file does not say.
        instances: What a DICOM series calls its planes.
        patient: A hash of who it is, where the file says so.
        modality: Of a DICOM series.
        unwindowed: The bits of values that are deep but have no window; else 0.
        uneven: Whether the planes are not evenly spaced.
        measured: Whether the file says how large its pixels are.
    """

    shape: tuple[int, int, int]
    affine: Float[np.ndarray, "4 4"] | None = None
    instances: tuple[str, ...] = ()
    patient: str | None = None
    modality: str | None = None
    unwindowed: int = 0
    uneven: bool = False
    measured: bool = True

    @property
    def spacing(self) -> tuple[float, ...]:
        """The millimetres from one plane, row and column to the next."""
        assert self.affine is not None, "only asked of volumes that say where they lie"
        return tuple(float(step) for step in np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)))


def is_deep(path: Path) -> bool:
    """Return whether a listed image is read as a volume, also where it has a single plane.

    `list_files` has refused folders that are named like pictures, so these need no second look.
    """
    suffix = split_name(path.name)[1].lower()
    return suffix in VOLUME_TYPES or (suffix not in IMAGE_TYPES and path.is_dir())


def read_geometry(path: Path, root: Path, what: str) -> Geometry:
    """Return where a volume lies; nothing but headers is read.

    Raises:
        DataError: The volume cannot be used; `what` names it in the sentence.
    """
    if split_name(path.name)[1].lower() in NIFTI_TYPES and path.is_file():
        from consilia.readers.nifti import nifti_geometry

        return nifti_geometry(path, what)
    from consilia.readers.dicom import series_geometry

    return series_geometry(path, root, what)


def read_planes(path: Path, root: Path, what: str) -> UInt8[np.ndarray, "z h w ..."]:
    """Return all planes of a volume in 8 bits, scaled as one."""
    if split_name(path.name)[1].lower() in NIFTI_TYPES and path.is_file():
        from consilia.readers.nifti import nifti_planes

        return nifti_planes(path, what)
    from consilia.readers.dicom import series_planes

    return series_planes(path, root, what)


def read_mask_planes(path: Path, what: str, onto: Geometry, labels: tuple[str, ...]) -> np.ndarray:
    """Return the mask of a volume as values by plane, in the geometry of its image.

    Args:
        path: The mask file.
        what: Names it in sentences.
        onto: The image's geometry.
        labels: The federation's labels, by which DICOM names segments.
    """
    suffix = split_name(path.name)[1].lower()
    if suffix in NIFTI_TYPES:
        from consilia.readers.nifti import nifti_mask

        return nifti_mask(path, what, onto)
    if suffix in DICOM_TYPES:
        from consilia.readers.dicom_seg import segmentation_planes

        return segmentation_planes(path, what, onto, labels)
    msg = f"{what} is a single picture, but its image is a volume; save it as .nii.gz or DICOM SEG"
    raise DataError(msg)


def same_place(mask: Geometry, image: Geometry, what: str) -> None:
    """Refuse a mask that does not lie where its image does.

    Raises:
        DataError: Sizes, spacings or positions differ.
    """
    if mask.shape != image.shape:
        msg = (
            f"{what} has {_times(mask.shape)} voxels (planes x rows x columns), but its image has "
            f"{_times(image.shape)}; export both in the same size"
        )
        raise DataError(msg)
    if mask.affine is None or image.affine is None or not (mask.measured and image.measured):
        return
    if not np.allclose(mask.spacing, image.spacing, rtol=SLACK, atol=1e-6):
        msg = (
            f"{what} has a spacing of {_times(mask.spacing)} mm, but its image has "
            f"{_times(image.spacing)} mm; export both in the same geometry"
        )
        raise DataError(msg)
    ends = np.array([[0, 0, 0, 1], [*(length - 1 for length in image.shape), 1]], dtype=float)
    apart = np.abs((mask.affine - image.affine) @ ends.T)[:3].max()
    if apart > SLACK * min(image.spacing):
        msg = f"{what} lies up to {apart:.3g} mm from its image; export both in the same geometry"
        raise DataError(msg)


def _times(numbers: tuple[float, ...]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)
