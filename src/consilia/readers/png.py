"""Plain PNG files -> pixels, by Pillow's decoder without the questions that it asks of every file.

Opening a small image costs Pillow about as much as decoding it. A file is *plain* when it holds one
image of 8-bit grey or RGB that is not interlaced, and nothing else but its resolution, its time or how
its colors are meant, as most programs write them. Of all others nothing is said here: they are
opened, and judged, in the usual way.
"""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np
from jaxtyping import UInt8
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: The signature; length and name of the first chunk, what it says, and its checksum.
HEADER = struct.Struct(">8sI4sII5sI")
#: The length and the name of a chunk, before its content; a checksum follows.
CHUNK, CHECKSUM = struct.Struct(">I4s"), 4
#: 8 bits, color type, deflate, the five usual filters, not interlaced -> Pillow's name.
PLAIN = {bytes((8, 0, 0, 0, 0)): "L", bytes((8, 2, 0, 0, 0)): "RGB"}

#: Chunks before the pixels that change none of them, and the length that each must have.
PASSED = {b"pHYs": 9, b"tIME": 7, b"gAMA": 4, b"sRGB": 1, b"cHRM": 32}


def decode_plain(
    data: bytes, longest: int, most: int
) -> UInt8[np.ndarray, "h w"] | UInt8[np.ndarray, "h w 3"] | None:
    """Return the pixels of a plain PNG file, or `None` of every other file and of a damaged one.

    Args:
        data: The whole file.
        longest: The most pixels that a side may have.
        most: The most pixels that it may have in all.
    """
    if not data.startswith(SIGNATURE) or len(data) < HEADER.size:
        return None
    _, length, name, width, height, form, checksum = HEADER.unpack_from(data)
    mode = PLAIN.get(form)
    if mode is None or (length, name) != (13, b"IHDR") or crc32(data[12:29]) != checksum:
        return None
    if not (0 < width <= longest and 0 < height <= longest and width * height <= most):
        return None
    packed = _content(data)
    if packed is None:
        return None
    try:
        pixels = Image.frombytes(mode, (width, height), packed, "zip", mode).tobytes()
    except Exception:  # whatever it is, who opens it in the usual way will meet it again
        return None
    return np.frombuffer(pixels, np.uint8).reshape((height, width, 3)[: 2 if mode == "L" else 3])


def _content(data: bytes) -> bytes | None:
    """Return the packed pixels that follow the header, or `None` where anything strange does."""
    parts: list[bytes] = []
    at = HEADER.size
    while at + CHUNK.size <= len(data):
        length, name = CHUNK.unpack_from(data, at)
        start, end = at + CHUNK.size, at + CHUNK.size + length
        if name == b"IDAT":
            parts.append(data[start:end])
        elif name == b"IEND":
            return b"".join(parts)
        elif parts or PASSED.get(name) != length or not _is_whole(data, start, end):
            return None
        at = end + CHECKSUM
    return None


def _is_whole(data: bytes, start: int, end: int) -> bool:
    """Return whether the content of a chunk, and its name before it, have the checksum after it."""
    return data[end : end + CHECKSUM] == crc32(data[start - 4 : end]).to_bytes(CHECKSUM, "big")
