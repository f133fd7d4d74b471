"""Reading the files that public datasets are made of; whatever is wrong is one sentence."""

from __future__ import annotations

import csv
import importlib
import io
import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilia.datasets.source import Exam, Frame, Place
from consilia.errors import DataError, UsageError, listing
from consilia.readers.images import IMAGE_TYPES, Pixels, read_image, to_bytes

#: The largest volume or table that is read, in bytes.
LARGEST = 4 << 30
LARGEST_TABLE = 256 << 20
#: The longest side of a volume, in voxels.
LONGEST = 4096


def natural(name: str) -> list[tuple[str, int]]:
    """Return a sorting key in which 'case10' comes after 'case9'."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def pictures(folder: Path, types: Iterable[str] = IMAGE_TYPES) -> dict[str, Path]:
    """Return the pictures of a folder by their stems, in natural order; other files are left."""
    kinds = tuple(types)
    try:
        found = [
            path
            for path in folder.iterdir()
            if path.suffix.lower() in kinds and not path.name.startswith(".") and path.is_file()
        ]
    except OSError:
        msg = f"'{folder}' cannot be read as a folder; check what it is and its permissions"
        raise DataError(msg) from None
    return {path.stem: path for path in sorted(found, key=lambda path: natural(path.name))}


# --------------------------------------------------------------------------------- images and masks


def read_pixels(path: Path, place: Place) -> Pixels:
    """Return the pixels of an image without any transparency."""
    pixels = read_image(path, place.what(path))
    if pixels.ndim == 3 and pixels.shape[2] in {2, 4}:
        pixels = pixels[..., 0] if pixels.shape[2] == 2 else pixels[..., :3]
    return pixels


def read_binary(paths: Sequence[Path], place: Place) -> np.ndarray:
    """Return the union of masks of any type, also colored or JPEG, as 0 and 1."""
    union: np.ndarray | None = None
    for path in paths:
        values = read_pixels(path, place)
        values = values.max(axis=2) if values.ndim == 3 else values
        marked = values > (values.max() / 2 if values.max() > 1 else 0)
        if union is not None and union.shape != marked.shape:
            msg = f"the masks of {place.what(path)} differ in size; export them again"
            raise DataError(msg)
        union = marked if union is None else union | marked
    assert union is not None, "an image with a mask has at least one"
    return union.astype(np.uint8)


def picture_exam(
    place: Place,
    image: Path,
    masks: Sequence[Path] = (),
    *,
    group: str | None = None,
    label: np.ndarray | None = None,
    split: Any = None,
) -> Exam:
    """Return the examination of one picture, with masks (their union), a label vector or neither."""

    def read() -> list[Frame]:
        pixels = read_pixels(image, place)
        if label is not None:
            return [Frame(image.stem, pixels, label)]
        truth = read_binary(masks, place) if masks else np.zeros(pixels.shape[:2], dtype=np.uint8)
        if truth.shape != pixels.shape[:2]:
            msg = (
                f"the mask of {place.what(image)} is {truth.shape[1]} x {truth.shape[0]} pixels "
                f"(width x height), but the image is {pixels.shape[1]} x {pixels.shape[0]}; export "
                "both in the same size"
            )
            raise DataError(msg)
        return [Frame(image.stem, pixels, truth)]

    return Exam(image.stem, group or image.stem, read, split)


def paired(
    place: Place,
    images: Path,
    masks: Path,
    group: Callable[[str], str] = str,
    suffix: str = "",
) -> list[Exam]:
    """Return the examinations of a folder of images and a folder of masks.

    Args:
        place: The dataset.
        images: Holds the images.
        masks: Holds a mask of the same name, plus `suffix`, for each.
        group: Gives the patient from the name of an image.
        suffix: What the names of masks have more than those of images.
    """
    drawn = pictures(masks)
    exams = []
    for stem, image in pictures(images).items():
        if stem + suffix not in drawn:
            msg = f"{place.what(image)} has no mask '{stem}{suffix}' in '{masks}'; add it or remove the image"
            raise DataError(msg)
        exams.append(picture_exam(place, image, [drawn[stem + suffix]], group=group(stem)))
    return exams


# ------------------------------------------------------------------------------------------ volumes


def read_nifti(path: Path, place: Place) -> np.ndarray:
    """Return a NIfTI volume in axial planes: rows to the back, columns to the patient's left."""
    nibabel: Any = importlib.import_module("nibabel")
    try:
        image = nibabel.load(path)
        _check_volume(image.shape, image.get_data_dtype(), place.what(path))
        values = np.asarray(nibabel.as_closest_canonical(image).dataobj)
    except DataError:
        raise
    except Exception:  # a damaged file can raise anything at all in a decoder
        msg = f"{place.what(path)} cannot be read as NIfTI; it is damaged or of another type"
        raise DataError(msg) from None
    return values.reshape(values.shape[:3]).transpose(2, 1, 0)[:, ::-1, ::-1]


META_TYPES = {
    "MET_UCHAR": "u1",
    "MET_CHAR": "i1",
    "MET_USHORT": "u2",
    "MET_SHORT": "i2",
    "MET_UINT": "u4",
    "MET_INT": "i4",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}


def read_metaimage(path: Path, place: Place) -> np.ndarray:
    """Return the volume of a MetaImage header (.mhd) and its data file, as (slices, rows, columns)."""
    what = place.what(path)
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        header = {k.strip(): v.strip() for k, _, v in (line.partition("=") for line in lines)}
        size = tuple(int(n) for n in header["DimSize"].split())
        big = header.get("BinaryDataByteOrderMSB", header.get("ElementByteOrderMSB", "False"))
        kind = np.dtype((">" if big.lower() == "true" else "<") + META_TYPES[header["ElementType"]])
        name = header["ElementDataFile"]
    except (OSError, ValueError, KeyError):
        msg = f"{what} is no MetaImage header; expected DimSize, ElementType and ElementDataFile"
        raise DataError(msg) from None
    _check_volume(size, kind, what)
    if Path(name).name != name or name.upper() in {"LIST", "LOCAL"} or "%" in name:
        msg = f"{what} keeps its data in '{name}'; expected one file beside the header"
        raise DataError(msg)
    wanted = math.prod(size) * kind.itemsize
    try:
        with (path.parent / name).open("rb") as file:
            if header.get("CompressedData", "False").lower() == "true":
                data = zlib.decompressobj().decompress(file.read(LARGEST), wanted)
            else:
                data = file.read(wanted)
    except (OSError, zlib.error):
        data = b""
    if len(data) != wanted:
        msg = (
            f"{what} announces {wanted} bytes, but '{name}' has {len(data)}; copy both files again"
        )
        raise DataError(msg)
    return np.frombuffer(data, kind).reshape(size[::-1])


def _check_volume(size: Sequence[int], kind: Any, what: str) -> None:
    """Refuse what is no volume, or suspiciously large, before memory is taken for it."""
    spatial, more = tuple(size[:3]), tuple(size[3:])
    plain = np.dtype(kind)
    if len(spatial) != 3 or any(n != 1 for n in more) or plain.kind not in "buif":
        msg = f"{what} has {len(size)} dimensions of type '{plain}'; expected one volume of plain numbers"
        raise DataError(msg)
    if not all(1 <= n <= LONGEST for n in spatial) or math.prod(spatial) * plain.itemsize > LARGEST:
        msg = (
            f"{what} has {' x '.join(map(str, spatial))} voxels; expected at most {LONGEST} a side"
        )
        raise DataError(msg)


def volume_exam(
    place: Place,
    image: Path,
    mask: Path,
    *,
    name: str,
    group: str,
    read: Callable[[Path, Place], np.ndarray] = read_nifti,
    window: tuple[float, float] | None = None,
    values: dict[int, int] | None = None,
) -> Exam:
    """Return the examination of one volume: its slices that show a label, in the order of the file.

    Slices without any label are left out, as FedMix's authors leave them out of RETOUCH; FedIA's keep
    them. Intensities are brought to 8 bits over the whole volume, so that slices stay comparable.

    Args:
        place: The dataset.
        image: The volume.
        mask: Its labels.
        name: Of the volume.
        group: Of the patient.
        read: The file format.
        window: The intensities that become 0 and 255; else the volume's percentiles.
        values: Label index from 1 for each value of the mask; `None` means that all above 0 is 1.
    """

    def frames() -> list[Frame]:
        pixels, drawn = read(image, place), read(mask, place)
        if pixels.shape != drawn.shape:
            msg = (
                f"{place.what(image)} has {pixels.shape} voxels, but its labels have {drawn.shape}"
            )
            raise DataError(msg)
        scaled = _windowed(pixels, window)
        truth = (drawn > 0).astype(np.uint8)
        if values is not None:
            truth = np.zeros(drawn.shape, dtype=np.uint8)
            for value, label in values.items():
                truth[drawn == value] = label
        shown = np.flatnonzero(truth.any(axis=(1, 2))).tolist()
        return [Frame(f"{name}-s{at:03d}", scaled[at], truth[at]) for at in shown]

    return Exam(name, group, frames, volume=True)


def _windowed(pixels: np.ndarray, window: tuple[float, float] | None) -> np.ndarray:
    finite = pixels if pixels.dtype.kind != "f" else np.nan_to_num(pixels, posinf=0.0, neginf=0.0)
    if window is None:
        return to_bytes(finite)
    low, high = window
    scaled = (finite.astype(np.float32).clip(low, high) - low) * (255 / (high - low))
    return np.rint(scaled).astype(np.uint8)


# ------------------------------------------------------------------------------- tables, h5 and npz


def read_rows(path: Path, place: Place, needed: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table with a header line."""
    what = place.what(path)
    if path.stat().st_size > LARGEST_TABLE:
        msg = f"{what} has {path.stat().st_size} bytes; expected a table of at most {LARGEST_TABLE}"
        raise DataError(msg)
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (UnicodeDecodeError, csv.Error):
        msg = f"{what} is no table of comma-separated UTF-8 text; save it again"
        raise DataError(msg) from None
    missing = [name for name in needed if not rows or rows[0].get(name) is None]
    if missing:
        msg = f"{what} has no column {listing(missing)}; expected {listing(needed)}"
        raise DataError(msg)
    return rows


def read_h5(path: Path, place: Place, key: str) -> np.ndarray | None:
    """Return one array of an HDF5 file; `None` where there is none of that name."""
    try:
        h5py: Any = importlib.import_module("h5py")
    except ModuleNotFoundError:
        msg = f"dataset '{place.card.name}' is made of .h5 files; install h5py to read them"
        raise UsageError(msg) from None
    try:
        with h5py.File(path, "r") as file:
            if key not in file:
                return None
            found = file[key]
            if found.dtype.kind not in "buif" or found.size > LONGEST**2 * 3:
                raise ValueError
            return np.asarray(found[()])
    except Exception:  # a damaged file can raise anything at all in a decoder
        msg = f"{place.what(path)} cannot be read as HDF5; it is damaged or of another type"
        raise DataError(msg) from None


def read_npz(path: Path, place: Place) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file; nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception:  # a damaged file can raise anything at all in a decoder
        msg = f"{place.what(path)} cannot be read as .npz; it is damaged or holds pickled objects"
        raise DataError(msg) from None
