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
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageFile

from consilia.errors import DataError
from consilia.readers.files import Size, guarded, read_bytes, split_name
from consilia.readers.png import decode_plain

IMAGE_TYPES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".npy")
#: JPEG changes the values of pixels, so it cannot hold a mask.
MASK_TYPES = (".png", ".tif", ".tiff", ".bmp", ".npy")
#: Pillow knows many more formats; a hospital's folder has no need of their decoders.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
MASK_FORMATS = ("PNG", "TIFF", "BMP")
MODES = {"1", "L", "P", "LA", "RGB", "RGBA", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
#: The longest side of an image that is read, in pixels.
LONGEST = 16384
#: The percentiles that become 0 and 255 where an image has more than 8 bits.
RANGE = (0.5, 99.5)
#: A factor this large means that an image's values differ by rounding only.
HUGE = 1e30

Pixels = np.ndarray  # (h, w) or (h, w, c), numbers of any kind


# ------------------------------------------------------------------------------------------ files


def read_image(path: Path, what: str) -> Pixels:
    """Return the pixels of an image as they are stored, all of them finite.

    Raises:
        DataError: The file cannot be used; `what` names it in the sentence.
    """
    return check_finite(_decode(path, what, indexed=False), what)


def check_finite(pixels: Pixels, what: str) -> Pixels:
    """Return the pixels, or refuse those that are no numbers."""
    if pixels.dtype.kind == "f":
        missing = pixels.size - int(np.count_nonzero(np.isfinite(pixels)))
        if missing:
            msg = (
                f"{what} holds {missing} values that are NaN or infinite; expected finite numbers: "
                "replace them before you save it"
            )
            raise DataError(msg)
    return pixels


def read_size(path: Path, what: str) -> Size:
    """Return the height and width of an image; of most files nothing but the header is read."""
    if path.suffix.lower() == ".npy":
        pixels = _decode(path, what, indexed=False)
        return pixels.shape[0], pixels.shape[1]
    with guarded(what), STRICTLY, Image.open(path, formats=FORMATS) as image:
        return image.height, image.width


def read_index_map(path: Path, what: str) -> np.ndarray:
    """Return a mask's values as they are stored: one whole number from 0 for each pixel."""
    values = _decode(path, what, indexed=True)
    if values.ndim == 3:
        msg = (
            f"{what} has {values.shape[2]} channels, but a mask has one, with 0 for background and "
            "1 for the first label; save it as a grey or indexed image"
        )
        raise DataError(msg)
    return index_values(values, what)


def index_values(values: np.ndarray, what: str) -> np.ndarray:
    """Return a mask's values as whole numbers from 0, or refuse those that are none."""
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
    with guarded(what):
        try:
            data = read_bytes(path, what)
            return DECODERS[split_name(path.name)[1].lower()](data, what, indexed)
        except Image.DecompressionBombError:
            msg = f"{what} claims to have a huge number of pixels; make it smaller or crop it"
            raise DataError(msg) from None


class _Strictness:
    """Pillow is strict and silent while anyone is inside, whatever others have asked of it.

    Its switches are global, so the first of several threads turns them and the last turns them back.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._lenient = ImageFile.LOAD_TRUNCATED_IMAGES
                ImageFile.LOAD_TRUNCATED_IMAGES = False
                self._silence = warnings.catch_warnings(action="ignore")
                self._silence.__enter__()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                ImageFile.LOAD_TRUNCATED_IMAGES = self._lenient
                self._silence.__exit__(None, None, None)


#: Enter it around many images to save the cost of entering it for each.
STRICTLY = _Strictness()


def _decode_picture(data: bytes, what: str, indexed: bool) -> Pixels:
    """Return the pixels of a file that Pillow reads."""
    plain = decode_plain(data, LONGEST, _most_pixels())
    if plain is not None:
        return plain
    formats = MASK_FORMATS if indexed else FORMATS
    with STRICTLY, Image.open(io.BytesIO(data), formats=formats) as image:
        return _pixels_of(image, what, indexed)


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
    if image.mode == "L":  # the usual one, of which numpy need not ask what it is
        return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width)
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


def _most_pixels() -> int:
    return Image.MAX_IMAGE_PIXELS or LONGEST**2


def _check_size(size: Size, what: str) -> None:
    """Refuse images that are suspiciously large, before memory is taken for them."""
    most = _most_pixels()
    if not 1 <= min(size) <= max(size) <= LONGEST or math.prod(size) > most:
        msg = (
            f"{what} is {size[1]} x {size[0]} pixels (width x height); expected 1 to {LONGEST} a "
            f"side and {most} in all: make it smaller or crop it"
        )
        raise DataError(msg)


# ----------------------------------------------------------------------------------------- pixels


def to_bytes(pixels: Pixels) -> UInt8[np.ndarray, "h w ..."]:
    """Return an image, or a volume, in 8 bits: kept where it has them, else by its percentile range."""
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
