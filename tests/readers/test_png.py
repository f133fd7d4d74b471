"""Plain PNG files come back as Pillow reads them, and all others are left to Pillow."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from zlib import compress, crc32

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from consilia.errors import DataError
from consilia.readers import images
from consilia.readers.files import read_bytes
from consilia.readers.images import LONGEST, read_image, read_index_map
from consilia.readers.png import HEADER, PASSED, decode_plain

MOST = 1 << 20
GREY = np.random.default_rng(0).integers(0, 256, (7, 11)).astype(np.uint8)
RGB = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=-1)


def saved(pixels: np.ndarray, mode: str | None = None, **options: object) -> bytes:
    image, file = Image.fromarray(pixels), io.BytesIO()
    (image if mode is None else image.convert(mode)).save(file, "PNG", **options)
    return file.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc32(name + content))
    )


def by_hand(
    width: int, height: int, packed: bytes, kind: tuple[int, ...] = (8, 0, 0, 0, 0)
) -> bytes:
    header = chunk(b"IHDR", struct.pack(">II5B", width, height, *kind))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def with_chunk(name: bytes, content: bytes) -> bytes:
    """Return a file that has one chunk more before its pixels."""
    data = saved(GREY)
    return data[: HEADER.size] + chunk(name, content) + data[HEADER.size :]


def parts_of(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what stands before the content of the only IDAT, the content, and the last chunk."""
    (length,) = struct.unpack_from(">I", data, HEADER.size)
    start = HEADER.size + 8
    return data[: HEADER.size], data[start : start + length], data[start + length + 4 :]


def outcome(path: Path, *, mask: bool = False) -> tuple[object, ...]:
    """Return the pixels that a file gives, or the sentence that refuses it."""
    try:
        pixels = (read_index_map if mask else read_image)(path, "image 'a.png'")
    except DataError as problem:
        return (str(problem),)
    return pixels.shape, pixels.dtype.str, pixels.tobytes()


@pytest.fixture
def usual(monkeypatch):
    """Return what happens to a file that is opened in the usual way."""

    def outcome_without(path: Path, *, mask: bool = False) -> tuple[object, ...]:
        with monkeypatch.context() as patch:
            patch.setattr(images, "decode_plain", lambda *_: None)
            return outcome(path, mask=mask)

    return outcome_without


# ------------------------------------------------------------------------------------------ plain


@pytest.mark.parametrize("pixels", [GREY, RGB], ids=["grey", "rgb"])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"compress_level": 0}], ids=str)
def test_plain_files_come_back_as_they_are(pixels, options):
    found = decode_plain(saved(pixels, **options), LONGEST, MOST)
    assert found is not None
    assert found.dtype == np.uint8
    assert (found == pixels).all()


@pytest.mark.parametrize("filtered", range(5))
def test_every_filter_is_undone(tmp_path, filtered, usual):
    rows = b"".join(bytes([filtered]) + row.tobytes() for row in GREY)
    (tmp_path / "a.png").write_bytes(by_hand(11, 7, compress(rows)))
    assert decode_plain((tmp_path / "a.png").read_bytes(), LONGEST, MOST) is not None
    assert outcome(tmp_path / "a.png") == usual(tmp_path / "a.png")


@pytest.mark.parametrize("step", [1, 7, 8192])
def test_pixels_may_come_in_many_chunks(step):
    before, packed, after = parts_of(saved(GREY))
    cut = [chunk(b"IDAT", packed[at : at + step]) for at in range(0, len(packed), step)]
    data = before + chunk(b"IDAT", b"") + b"".join(cut) + after
    found = decode_plain(data, LONGEST, MOST)
    assert found is not None
    assert (found == GREY).all()


@pytest.mark.parametrize("name", sorted(PASSED))
def test_chunks_that_change_no_pixel_are_passed_over(tmp_path, name, usual):
    (tmp_path / "a.png").write_bytes(data := with_chunk(name, bytes(range(1, PASSED[name] + 1))))
    found = decode_plain(data, LONGEST, MOST)
    assert found is not None
    assert (found == GREY).all()
    assert outcome(tmp_path / "a.png") == usual(tmp_path / "a.png")


# ----------------------------------------------------------------------------------------- others


def extra() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "x")
    return info


OTHERS = {
    "palette": saved(GREY, "P"),
    "alpha": saved(RGB, "RGBA"),
    "grey with alpha": saved(GREY, "LA"),
    "one bit": saved(GREY, "1"),
    "16 bits": saved(GREY.astype(np.uint16) * 257),
    "transparency": saved(GREY, transparency=3),
    "text": saved(GREY, pnginfo=extra()),
    "strange resolution": with_chunk(b"pHYs", b"12345678"),
    "damaged resolution": saved(GREY, dpi=(72, 72)).replace(b"pHYs", b"pHYs\1"),
    "late resolution": saved(GREY)[:-12] + chunk(b"pHYs", bytes(9)) + saved(GREY)[-12:],
    "frames": saved(GREY, save_all=True, append_images=[Image.fromarray(GREY[::-1].copy())]),
    "no end": saved(GREY)[:-12],
    "JPEG": b"\xff\xd8\xff\xe0",
    "signature": saved(GREY)[:8],
    "nothing": b"",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_left_to_pillow(tmp_path, name, usual):
    assert decode_plain(OTHERS[name], LONGEST, MOST) is None
    (tmp_path / "a.png").write_bytes(OTHERS[name])
    for mask in (False, True):
        assert outcome(tmp_path / "a.png", mask=mask) == usual(tmp_path / "a.png", mask=mask)


@pytest.mark.parametrize(
    "kind", [(8, 0, 1, 0, 0), (8, 0, 0, 1, 0), (8, 0, 0, 0, 1), (4, 0, 0, 0, 0)]
)
def test_other_ways_to_store_pixels_are_left_to_pillow(kind):
    rows = b"".join(b"\0" + row.tobytes() for row in GREY)
    assert decode_plain(by_hand(11, 7, compress(rows)), LONGEST, MOST) is not None
    assert decode_plain(by_hand(11, 7, compress(rows), kind), LONGEST, MOST) is None


@pytest.mark.parametrize(
    ("width", "height"),
    [(0, 5), (5, 0), (LONGEST + 1, 1), (1, LONGEST + 1), (14000, 14000), (1 << 31, 1 << 31)],
)
def test_huge_sizes_take_no_memory_and_keep_their_sentences(
    tmp_path, width, height, usual, monkeypatch
):
    (tmp_path / "a.png").write_bytes(by_hand(width, height, compress(b"")))
    expected = usual(tmp_path / "a.png")
    assert len(expected) == 1
    monkeypatch.setattr(Image, "frombytes", lambda *_: pytest.fail("memory was taken"))
    assert outcome(tmp_path / "a.png") == expected


def test_too_many_pixels_are_not_unpacked():
    assert decode_plain(saved(GREY), 11, 77) is not None
    assert decode_plain(saved(GREY), 10, 77) is None
    assert decode_plain(saved(GREY), 11, 76) is None


# ---------------------------------------------------------------------------------------- damaged


def test_damage_anywhere_has_the_same_outcome_as_with_pillow(tmp_path, usual):
    data, path, outcomes = saved(GREY[:3, :4], dpi=(72, 72)), tmp_path / "a.png", set()
    assert decode_plain(data, LONGEST, MOST) is not None
    broken = [data[:cut] for cut in range(1, len(data))]
    broken += [
        data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
        for at in range(len(data))
        for change in (0x01, 0x20, 0x80, 0xFF)
    ]
    for one in broken:
        path.write_bytes(one)
        found = outcome(path)
        assert found == usual(path)
        outcomes.add(len(found))
    assert outcomes == {1, 3}  # some are refused, and some can be read all the same


def test_packed_pixels_that_end_early_or_late(tmp_path, usual):
    rows = b"".join(b"\0" + row.tobytes() for row in GREY)
    for packed in (compress(rows[:-1]), compress(rows + b"\0"), compress(rows) + b"x", b""):
        (tmp_path / "a.png").write_bytes(by_hand(11, 7, packed))
        assert outcome(tmp_path / "a.png") == usual(tmp_path / "a.png")


def test_a_file_may_arrive_in_parts(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(data := saved(GREY))
    whole = os.read
    monkeypatch.setattr(os, "read", lambda file, size: whole(file, min(size, 10)))
    assert read_bytes(tmp_path / "a.png", "image 'a.png'") == data
