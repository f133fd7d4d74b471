"""DICOM SEG files -> masks by plane of the series that they refer to; segments are named as labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from consilia.errors import DataError, listing, suggestion
from consilia.readers.dicom import DEFLATED
from consilia.readers.files import check_bytes, check_values, guarded, printable, quiet
from consilia.readers.volumes import Geometry


def segmentation_planes(
    path: Path, what: str, onto: Geometry, labels: tuple[str, ...]
) -> UInt8[np.ndarray, "z h w"]:
    """Return the class of each voxel of a series.

    Args:
        path: The segmentation.
        what: Names it in sentences.
        onto: The series, whose planes it must refer to.
        labels: The federation's labels.
    """
    with guarded(what), quiet():
        segments = _open(path, what)
        if segments.get("SegmentationType") != "BINARY":
            msg = f"{what} holds fractions; expected a binary segmentation: export it again"
            raise DataError(msg)
        if not onto.instances:
            msg = f"{what} is DICOM, but its image is not; save it as .nii.gz"
            raise DataError(msg)
        known = {str(uid) for _, _, uid in segments.get_source_image_uids()}
        if not known & set(onto.instances):
            msg = f"{what} refers to another series than its image; export it for this series"
            raise DataError(msg)
        if (int(segments.Rows), int(segments.Columns)) != onto.shape[1:]:
            msg = (
                f"{what} is {segments.Columns} x {segments.Rows} pixels (width x height), but its "
                f"image is {onto.shape[2]} x {onto.shape[1]}; export both in the same size"
            )
            raise DataError(msg)
        return _combined(segments, what, onto, labels)


def _open(path: Path, what: str) -> Any:
    import pydicom
    from highdicom.seg import Segmentation

    check_bytes(path.stat().st_size, what)
    meta = pydicom.filereader.read_file_meta_info(path)
    if meta.get("TransferSyntaxUID") == DEFLATED:
        msg = f"{what} is stored deflated, which can unpack without end; export it uncompressed"
        raise DataError(msg)
    header = pydicom.dcmread(path, stop_before_pixels=True)
    if header.get("Modality") != "SEG":
        msg = f"{what} is DICOM, but no segmentation; export it as DICOM SEG or .nii.gz"
        raise DataError(msg)
    check_values((int(header.NumberOfFrames), int(header.Rows), int(header.Columns)), what)
    return Segmentation.from_dataset(pydicom.dcmread(path), copy=False)


def _combined(segments: Any, what: str, onto: Geometry, labels: tuple[str, ...]) -> np.ndarray:
    combined = np.zeros(onto.shape, dtype=np.uint8)
    referenced = [
        uid
        for uid in onto.instances
        if uid in {str(found) for _, _, found in segments.get_source_image_uids()}
    ]
    at = [onto.instances.index(uid) for uid in referenced]
    for number in segments.segment_numbers:
        name = str(segments.get_segment_description(number).segment_label)
        if name not in labels:
            msg = (
                f"{what} has the segment '{printable(name)}', but the federation's labels are "
                f"{listing(labels)}{suggestion(name, labels)}"
            )
            raise DataError(msg)
        planes = segments.get_pixels_by_source_instance(
            referenced, segment_numbers=[number], assert_missing_frames_are_empty=True
        )[..., 0]
        marked = np.zeros(onto.shape, dtype=bool)
        marked[at] = planes > 0
        if (marked & (combined > 0)).any():
            msg = f"{what} has segments that overlap; give each voxel one label"
            raise DataError(msg)
        combined[marked] = labels.index(name) + 1
    return combined
