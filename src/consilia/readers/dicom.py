"""DICOM: a folder of slices, or a single file -> planes in 8 bits.

Values are rescaled, brought to 8 bits by the window of the middle slice (by percentiles of the whole
series where there is none), and inverted where low values are bright (MONOCHROME1). Slices are put in
the order of their positions along the normal of their plane. Nothing that could identify a patient
is ever quoted: sentences name files, and hold only values from the lists below; patients are known
by a hash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from consilia.errors import DataError
from consilia.readers.files import (
    check_bytes,
    check_values,
    guarded,
    is_inside,
    is_slice,
    quiet,
    scan,
    stay_inside,
)
from consilia.readers.images import to_bytes
from consilia.readers.volumes import Geometry

#: Objects that hold no images to learn from.
NO_IMAGES = frozenset(
    ["SEG", "RTSTRUCT", "RTDOSE", "RTPLAN", "RTIMAGE", "SR", "PR", "KO", "DOC", "REG", "AU"]
)
IMAGING = frozenset(
    [
        "CR",
        "CT",
        "DX",
        "ES",
        "GM",
        "IO",
        "IVUS",
        "MG",
        "MR",
        "NM",
        "OCT",
        "OP",
        "OPT",
        "OT",
        "PT",
        "PX",
        "RF",
        "RG",
        "SC",
        "SM",
        "US",
        "XA",
        "XC",
    ]
)
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOR = ("RGB", "PALETTE COLOR", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
DEFLATED = "1.2.840.10008.1.2.1.99"
#: Two normals, or two steps between slices, may differ by this share.
SLACK = 0.01


def series_geometry(path: Path, root: Path, what: str) -> Geometry:
    """Return where a series lies; no pixels are read."""
    with guarded(what), quiet():
        headers = _headers(path, root, what)
        _check_alike(headers, what)
        ordered, affine, uneven = _ordered(headers, what)
        first = ordered[0]
        middle = ordered[len(ordered) // 2]
        deep = int(first.get("BitsStored", 8))
        identity = str(first.get("PatientID") or "").strip()
        return Geometry(
            (len(ordered), int(first.Rows), int(first.Columns)),
            affine,
            tuple(str(header.SOPInstanceUID) for header in ordered),
            hashlib.sha256(identity.encode()).hexdigest()[:12] if identity else None,
            _known(first.get("Modality"), IMAGING),
            deep if deep > 8 and _window(middle) is None else 0,
            uneven,
            all(header.get("PixelSpacing") for header in ordered),
        )


def series_planes(path: Path, root: Path, what: str) -> UInt8[np.ndarray, "z h w ..."]:
    """Return the planes of a series in 8 bits."""
    with guarded(what), quiet():
        headers = _headers(path, root, what)
        _check_alike(headers, what)
        ordered, _, _ = _ordered(headers, what)
        first = ordered[0]
        check_values((len(ordered), int(first.Rows), int(first.Columns)), what)
        planes = np.stack([_values(header, path, what) for header in ordered])
        if planes.ndim == 4:  # color
            return to_bytes(planes)
        window = _window(ordered[len(ordered) // 2])
        scaled = to_bytes(_as_bytes(planes)) if window is None else _windowed(planes, *window)
        return 255 - scaled if first.PhotometricInterpretation == "MONOCHROME1" else scaled


def _as_bytes(planes: np.ndarray) -> np.ndarray:
    """Return values of 8 bits as such, since rescaling made them longer."""
    if planes.min() >= 0 and planes.max() <= 255 and (np.rint(planes) == planes).all():
        return planes.astype(np.uint8)
    return planes


def _files(path: Path, root: Path, what: str) -> list[Path]:
    if path.is_file():
        stay_inside(path, root, what)
        return [path]
    files = []
    for entry in scan(path, root, what):
        if entry.is_dir():
            continue
        if not is_inside(Path(entry.path), root):
            msg = f"{what} has a file that leads outside its folder by a link; copy the file itself"
            raise DataError(msg)
        if is_slice(entry):
            files.append(Path(entry.path))
    if not files:
        msg = f"{what} is a folder without DICOM files; put the slices of one series there"
        raise DataError(msg)
    return files


def _headers(path: Path, root: Path, what: str) -> list[Any]:
    """Return the headers of a series, each of which can be read."""
    import pydicom

    headers = []
    for file in _files(path, root, what):
        one = _called(file, path, what)
        with guarded(one):
            check_bytes(file.stat().st_size, one)
            meta = pydicom.filereader.read_file_meta_info(file)
            if meta.get("TransferSyntaxUID") == DEFLATED:
                msg = f"{one} is stored deflated, which can unpack without end; export it uncompressed"
                raise DataError(msg)
            header = pydicom.dcmread(file, stop_before_pixels=True)
            _check_header(header, one)
            headers.append(header)
    return headers


def _check_header(header: Any, what: str) -> None:
    modality = str(header.get("Modality", ""))
    if modality in NO_IMAGES:
        way_out = "put it in 'masks'" if modality == "SEG" else "remove it"
        msg = f"{what} is a DICOM object of modality '{modality}', which is no image; {way_out}"
        raise DataError(msg)
    frames = int(header.get("NumberOfFrames") or 1)
    if frames > 1:
        msg = f"{what} holds {frames} frames; expected single-frame files: export it as a series"
        raise DataError(msg)
    photometric = str(header.PhotometricInterpretation)
    if photometric not in {*GREY, "RGB"}:
        found = _known(photometric, COLOR)
        found = f"the photometric interpretation '{found}'" if found else "unknown colors"
        msg = f"{what} has {found}; expected MONOCHROME1, MONOCHROME2 or RGB: convert it"
        raise DataError(msg)
    check_values((int(header.Rows), int(header.Columns), int(header.SamplesPerPixel)), what)


def _known(found: object, values: Iterable[str]) -> str | None:
    """Return a value that is safe to print, since it is one of a list."""
    return str(found) if str(found) in values else None


def _check_alike(headers: Sequence[Any], what: str) -> None:
    """Refuse a folder whose files are not the slices of one series."""
    checks: dict[str, Callable[[Any], object]] = {
        "modalities": lambda h: str(h.get("Modality", "")),
        "series": lambda h: str(h.get("SeriesInstanceUID", "")),
        "sizes": lambda h: (int(h.Rows), int(h.Columns)),
        "photometric interpretations": lambda h: str(h.PhotometricInterpretation),
        "patients": lambda h: str(h.get("PatientID", "")),
    }
    for name, value in checks.items():
        count = len({value(header) for header in headers})
        if count > 1:
            msg = f"{what} holds files of {count} {name}; keep the slices of one series in each folder"
            raise DataError(msg)


def _ordered(headers: list[Any], what: str) -> tuple[list[Any], np.ndarray | None, bool]:
    """Return slices along their normal, their affine, and whether they are unevenly spaced."""
    placed = all(
        h.get("ImagePositionPatient") and h.get("ImageOrientationPatient") for h in headers
    )
    if not placed:
        if len(headers) > 1:
            msg = (
                f"{what} has slices without a position (ImagePositionPatient), so that their order "
                "is unknown; export the series again"
            )
            raise DataError(msg)
        return headers, None, False
    turns = np.array([[float(v) for v in h.ImageOrientationPatient] for h in headers])
    if np.abs(turns - turns[0]).max() > SLACK:
        msg = f"{what} has slices of several orientations; keep one stack in each folder"
        raise DataError(msg)
    along_row, along_col = turns[0, :3], turns[0, 3:]
    normal = np.cross(along_row, along_col)
    places = np.array([[float(v) for v in h.ImagePositionPatient] for h in headers])
    depths = places @ normal
    order = np.argsort(depths, kind="stable")
    steps = np.diff(depths[order])
    if len(steps) and steps.min() < 1e-4:
        msg = f"{what} has two slices at the same position; keep one stack in each folder"
        raise DataError(msg)
    ordered = [headers[at] for at in order]
    spacing = [float(v) for v in ordered[0].get("PixelSpacing") or (1.0, 1.0)]
    thick = float(np.median(steps)) if len(steps) else float(ordered[0].get("SliceThickness") or 1)
    affine = np.eye(4)
    affine[:3, 0] = normal * thick
    affine[:3, 1] = along_col * spacing[0]
    affine[:3, 2] = along_row * spacing[1]
    affine[:3, 3] = places[order[0]]
    uneven = bool(len(steps)) and float(np.ptp(steps)) > SLACK * thick
    return ordered, np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine, uneven


def _called(file: Path, path: Path, what: str) -> str:
    """Return a file of a series as it is named in sentences."""
    return what if file == path else f"file '{file.name}' of {what}"


def _values(header: Any, path: Path, what: str) -> np.ndarray:
    """Return the rescaled values of a slice."""
    import pydicom
    from pydicom.pixels.decoders.base import get_decoder

    file = Path(str(header.filename))
    one = _called(file, path, what)
    with guarded(one):
        dataset = pydicom.dcmread(file)
        syntax = dataset.file_meta.TransferSyntaxUID
        if syntax.is_compressed and not get_decoder(syntax).is_available:
            msg = f"{one} is compressed in a way that cannot be read here; export it uncompressed"
            raise DataError(msg)
        values = np.asarray(dataset.pixel_array)
        if values.ndim == 3:
            return values
        slope = float(dataset.get("RescaleSlope", 1))
        intercept = float(dataset.get("RescaleIntercept", 0))
        if not math.isfinite(slope) or not math.isfinite(intercept):
            raise ValueError
        return values.astype(np.float32) * np.float32(slope) + np.float32(intercept)


def _window(header: Any) -> tuple[float, float] | None:
    """Return the centre and the width of the first window, where there is one."""
    found = []
    for name in ("WindowCenter", "WindowWidth"):
        value = header.get(name)
        if value is None or value == "":
            return None
        many = not isinstance(value, str) and hasattr(value, "__len__")
        found.append(float(value[0] if many else value))
    centre, width = found
    return (centre, width) if math.isfinite(centre) and width >= 1 else None


def _windowed(planes: np.ndarray, centre: float, width: float) -> UInt8[np.ndarray, "z h w"]:
    """Return values through a linear window, as DICOM PS3.3 C.11.2.1.2 has it."""
    if width <= 1:
        return np.where(planes > centre - 0.5, np.uint8(255), np.uint8(0))
    scaled = ((planes - (centre - 0.5)) / (width - 1) + 0.5) * 255
    rounded: UInt8[np.ndarray, "z h w"] = np.rint(scaled.clip(0, 255)).astype(np.uint8)
    return rounded
