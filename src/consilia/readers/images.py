"""Image and mask files -> pixels: strict in what is read, plain in what is refused.

8-bit images are kept as they are. 16-bit and float images are brought to 8 bits one by one: the
range from the 0.5th to the 99.5th percentile of an image's own values becomes 0 to 255, and what
lies outside is cut off; a constant image becomes 0. (Of 16-bit *color* files Pillow reads the upper
8 bits.) Images are resized with Pillow's bilinear filter, masks to the nearest pixel.

A further file format is a function in a file of its own and an entry in `DECODERS`.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageFile

from consilia.errors import DataError, listing

IMAGE_TYPES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".npy")
#: JPEG changes the values of pixels, so it cannot hold a mask.
MASK_TYPES = (".png", ".tif", ".tiff", ".bmp", ".npy")
#: Pillow knows many more formats; a hospital's folder has no need of their decoders.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
MASK_FORMATS = ("PNG", "TIFF", "BMP")
MODES = {"1", "L", "P", "LA", "RGB", "RGBA", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
#: The longest side of an image that is read, in pixels.
LONGEST = 16384
#: The largest file that is read, in bytes.
LARGEST = 1 << 30
#: The percentiles that become 0 and 255 where an image has more than 8 bits.
RANGE = (0.5, 99.5)
#: A factor this large means that an image's values differ by rounding only.
HUGE = 1e30
#: Files that operating systems leave in folders.
LITTER = {"thumbs.db", "desktop.ini"}
OUTSIDE = "leads outside its folder by a link; copy the file itself into the folder"

Pixels = np.ndarray  # (h, w) or (h, w, c), numbers of any kind
Size = tuple[int, int]
Severity = Literal["error", "warning"]
#: Where problems go: reading stops at the first error, an inspection collects them all.
Report = Callable[[Severity, str], None]


def refuse(severity: Severity, sentence: str) -> None:
    """Raise an error; pass over a warning."""
    if severity == "error":
        raise DataError(sentence)


# ---------------------------------------------------------------------------------------- folders


def list_files(
    folder: Path, root: Path, kind: str, who: str, types: tuple[str, ...], report: Report
) -> dict[str, Path]:
    """Return the files of a folder by their stems, sorted.

    Args:
        folder: Holds nothing but files of one kind; hidden files are passed over.
        root: What links must not lead out of.
        kind: "image" or "mask", for sentences.
        who: Whose folder it is, for sentences.
        types: The suffixes that can be read.
        report: Hears of every file that cannot be used.
    """
    what = f"folder '{folder.name}' of {who}"
    stay_inside(folder, root, what)
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        msg = f"{what} may not be read by this user; change its permissions"
        raise DataError(msg) from None
    files: dict[str, Path] = {}
    for entry in found:
        if entry.name.startswith(".") or entry.name.lower() in LITTER:
            continue
        stem, _, suffix = entry.name.rpartition(".")
        fault = _fault(entry, f".{suffix}" if stem else "", root, types)
        if fault:
            report("error", f"{kind} '{printable(entry.name)}' of {who} {fault}")
        elif stem in files:
            report(
                "error",
                f"{kind}s '{files[stem].name}' and '{entry.name}' of {who} have the same name but "
                "for their type; remove or rename one",
            )
        else:
            files[stem] = folder / entry.name
    return dict(sorted(files.items()))


def _fault(entry: os.DirEntry[str], suffix: str, root: Path, types: tuple[str, ...]) -> str | None:
    """Return what is wrong with a file by its name and place; `None` when nothing is."""
    if not entry.name.isprintable():
        return "has a name with characters that cannot be printed; rename it"
    if entry.is_symlink() and not is_inside(Path(entry.path), root):
        return OUTSIDE
    if suffix.lower() not in types:
        found = f"the type '{suffix}'" if suffix else "no file type"
        return f"has {found}; expected one of {', '.join(types)}: convert or remove it"
    if not entry.is_file():
        return "is not a file; expected one file for each image: remove it"
    return None


def is_inside(path: Path, root: Path) -> bool:
    """Return whether a path stays in a folder, wherever links on its way lead."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links that lead in a circle
        return False


def stay_inside(path: Path, root: Path, what: str) -> None:
    """Refuse a path that leads out of a folder through a link."""
    if not is_inside(path, root):
        msg = f"{what} {OUTSIDE}"
        raise DataError(msg)


def printable(text: str) -> str:
    """Return text for use in a sentence: on one line, and not endless."""
    if len(text) <= 80 and text.isprintable():
        return text
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= 80 else f"{plain[:77]}..."


# ------------------------------------------------------------------------------------------ files


def read_image(path: Path, what: str) -> Pixels:
    """Return the pixels of an image as they are stored, all of them finite.

    Raises:
        DataError: The file cannot be used; `what` names it in the sentence.
    """
    pixels = _decode(path, what, indexed=False)
    if pixels.dtype.kind == "f":
        missing = pixels.size - int(np.count_nonzero(np.isfinite(pixels)))
        if missing:
            msg = (
                f"{what} holds {missing} values that are NaN or infinite; expected finite numbers: "
                "replace them before you save it"
            )
            raise DataError(msg)
    return pixels


def read_index_map(path: Path, what: str) -> np.ndarray:
    """Return a mask's values as they are stored: one whole number from 0 for each pixel."""
    values = _decode(path, what, indexed=True)
    if values.ndim == 3:
        msg = (
            f"{what} has {values.shape[2]} channels, but a mask has one, with 0 for background and "
            "1 for the first label; save it as a grey or indexed image"
        )
        raise DataError(msg)
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = bool((np.rint(values) == values).all() and (np.abs(values) < 2**31).all())
        if not whole:
            msg = f"{what} holds values that are not whole numbers; map its values to 0, 1, 2, ..."
            raise DataError(msg)
        values = values.astype(np.int64)
    if values.dtype.kind == "i" and values.min() < 0:
        msg = f"{what} holds the value {values.min()}; map its values to 0, 1, 2, ..."
        raise DataError(msg)
    return values


def _decode(path: Path, what: str, *, indexed: bool) -> Pixels:
    """Return what a file holds; whatever goes wrong inside a decoder becomes one sentence."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            _check_bytes(size, what)
            return DECODERS[path.suffix.lower()](file.read(size), what, indexed)
    except DataError:
        raise
    except Image.DecompressionBombError:
        msg = f"{what} claims to have a huge number of pixels; make it smaller or crop it"
        raise DataError(msg) from None
    except PermissionError:
        msg = f"{what} may not be read by this user; change its permissions"
        raise DataError(msg) from None
    except Exception:  # a damaged file can raise anything at all in a decoder
        msg = f"{what} cannot be read; it is damaged, cut short or of another type: export it again"
        raise DataError(msg) from None


def _check_bytes(size: int, what: str) -> None:
    if not size:
        msg = f"{what} is an empty file (0 bytes); copy or export it again"
        raise DataError(msg)
    if size > LARGEST:
        msg = f"{what} has {size} bytes; expected at most {LARGEST}: make it smaller"
        raise DataError(msg)


def _decode_picture(data: bytes, what: str, indexed: bool) -> Pixels:
    """Return the pixels of a file that Pillow reads, strictly, whatever others have asked of it."""
    lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    formats = MASK_FORMATS if indexed else FORMATS
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # odd metadata does not make pixels wrong
            Image.open(io.BytesIO(data), formats=formats) as image,
        ):
            return _pixels_of(image, what, indexed)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient


def _pixels_of(image: ImageFile.ImageFile, what: str, indexed: bool) -> Pixels:
    """Return the pixels of an opened image; palettes become colors, except in masks."""
    _check_size((image.height, image.width), what)
    pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
    if pages > 1:
        msg = f"{what} holds {pages} pages; expected one image in each file: split it"
        raise DataError(msg)
    if image.mode not in MODES:
        msg = f"{what} has the color mode '{image.mode}'; expected grey or RGB: convert it"
        raise DataError(msg)
    return np.asarray(image.convert("RGB") if image.mode == "P" and not indexed else image)


#: Version -> function; the third version is for named columns only, which are no pixels.
NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _decode_array(data: bytes, what: str, _: bool) -> Pixels:
    """Return the array of an .npy file; nothing is unpickled, and its size is checked first."""
    file = io.BytesIO(data)
    read_header = NPY_HEADERS[np.lib.format.read_magic(file)]
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        msg = f"{what} holds pickled Python objects, which are never opened; save plain numbers"
        raise DataError(msg)
    if dtype.kind not in "buif":
        msg = f"{what} holds values of type '{dtype}'; save plain numbers"
        raise DataError(msg)
    if len(shape) not in {2, 3}:
        msg = (
            f"{what} has {len(shape)} dimensions; expected height x width, or height x width x "
            "channels: save one image in each file"
        )
        raise DataError(msg)
    _check_size((shape[0], shape[1]), what)
    if len(shape) == 3 and not 1 <= shape[2] <= 16:
        msg = (
            f"{what} has {shape[2]} channels; expected 1 to 16 in the last of three "
            "dimensions (height x width x channels): change their order"
        )
        raise DataError(msg)
    array = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    array = array.reshape(shape, order="F" if fortran else "C")
    return array[..., 0] if shape[2:] == (1,) else array


#: Suffix -> function from a file's bytes, a name for sentences and "keep palette indices" to pixels.
DECODERS: dict[str, Callable[[bytes, str, bool], Pixels]] = {
    **dict.fromkeys(IMAGE_TYPES, _decode_picture),
    ".npy": _decode_array,
}


def _check_size(size: Size, what: str) -> None:
    """Refuse images that are suspiciously large, before memory is taken for them."""
    most = Image.MAX_IMAGE_PIXELS or LONGEST**2
    if not 1 <= min(size) <= max(size) <= LONGEST or math.prod(size) > most:
        msg = (
            f"{what} is {size[1]} x {size[0]} pixels (width x height); expected 1 to {LONGEST} a "
            f"side and {most} in all: make it smaller or crop it"
        )
        raise DataError(msg)


# ----------------------------------------------------------------------------------------- pixels


def to_bytes(pixels: Pixels) -> UInt8[np.ndarray, "h w ..."]:
    """Return an image in 8 bits: kept where it has them, else by its percentile range."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.view(np.uint8) * np.uint8(255)
    short = pixels.dtype.itemsize <= 2
    values: Float[np.ndarray, "h w ..."] = pixels.astype(np.float32 if short else np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # a range beyond all numbers has no scale
        low, high = (float(edge) for edge in np.percentile(values, RANGE))
    if low == high:  # nearly constant: less than one value in a hundred differs
        low, high = float(values.min()), float(values.max())
    scale = 255 / (high - low) if high > low else 0.0
    if not 0 < scale < HUGE:
        return np.zeros(pixels.shape, dtype=np.uint8)
    values.clip(low, high, out=values)
    values -= low
    values *= scale
    scaled: UInt8[np.ndarray, "h w ..."] = np.rint(values, out=values).astype(np.uint8)
    return scaled


def check_channels(pixels: Pixels, channels: int, what: str) -> None:
    """Refuse an image whose channels cannot be brought to the number that the federation has."""
    found = pixels.shape[2] if pixels.ndim == 3 else 1
    if found != channels and {found, channels} != {1, 3}:
        msg = (
            f"{what} has {found} channel{'s' * (found > 1)}, but the federation's images have "
            f"{channels}; only grey and RGB are turned into each other: convert it"
        )
        raise DataError(msg)


def fit_image(pixels: Pixels, size: Size, channels: int, what: str) -> UInt8[np.ndarray, "c h w"]:
    """Return an image in 8 bits, in the size and with the channels of the federation.

    Color becomes grey by its luma (ITU-R 601), grey becomes color by repetition.

    Args:
        pixels: As `read_image` gives them.
        size: Height and width.
        channels: Of the result.
        what: Names the image in a sentence.
    """
    check_channels(pixels, channels, what)
    plain = to_bytes(pixels)
    if plain.ndim == 3 and channels == 1:
        plain = np.asarray(Image.fromarray(np.ascontiguousarray(plain)).convert("L"))
    if plain.shape[:2] != size:
        plain = _resize(plain, size, Image.Resampling.BILINEAR)
    if plain.ndim == 3:
        return plain.transpose(2, 0, 1)
    return plain[None] if channels == 1 else np.broadcast_to(plain, (channels, *size))


def fit_mask(mask: UInt8[np.ndarray, "h0 w0"], size: Size) -> UInt8[np.ndarray, "h w"]:
    """Return a mask in another size, each pixel with the value of the nearest one."""
    return mask if mask.shape == size else _resize(mask, size, Image.Resampling.NEAREST)


def _resize(plain: np.ndarray, size: Size, how: Image.Resampling) -> np.ndarray:
    planes = [plain] if plain.ndim == 2 else [plain[..., c] for c in range(plain.shape[2])]
    new = [
        np.asarray(Image.fromarray(np.ascontiguousarray(plane)).resize(size[::-1], how))
        for plane in planes
    ]
    return new[0] if plain.ndim == 2 else np.stack(new, axis=-1)


def read_images(
    folder: Path, size: Size, channels: int
) -> tuple[UInt8[np.ndarray, "n c h w"], tuple[str, ...], list[Size]]:
    """Return the images of a folder (or of its `images` folder), their names and original sizes.

    Args:
        folder: Holds images and nothing else, or a folder `images` that does.
        size: Height and width that all images are brought to.
        channels: That all images are brought to.

    Returns:
        The images sorted by name, their names without file types, and their heights and widths.
    """
    who = f"folder '{folder.name}'"
    if not folder.is_dir():
        msg = f"folder '{folder}' does not exist; check the path"
        raise DataError(msg)
    inner = folder / "images"
    files = list_files(
        inner if inner.is_dir() else folder, folder, "image", who, IMAGE_TYPES, refuse
    )
    if not files:
        msg = f"{who} holds no images; expected files of type {listing(IMAGE_TYPES)}"
        raise DataError(msg)
    images = np.empty((len(files), channels, *size), dtype=np.uint8)
    sizes: list[Size] = []
    for at, path in enumerate(files.values()):
        what = f"image '{path.name}' of {who}"
        pixels = read_image(path, what)
        images[at] = fit_image(pixels, size, channels, what)
        sizes.append((pixels.shape[0], pixels.shape[1]))
    return images, tuple(files), sizes
