from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from consilia.errors import DataError
from consilia.readers.files import LARGEST, printable
from consilia.readers.images import (
    fit_image,
    fit_mask,
    read_image,
    to_bytes,
)

GREY = np.arange(80, dtype=np.uint8).reshape(8, 10) * 3
RGB = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=-1)


# ---------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("suffix", [".png", ".tif", ".TIFF", ".bmp", ".npy", ".PNG"])
@pytest.mark.parametrize("pixels", [GREY, RGB], ids=["grey", "rgb"])
def test_lossless_files_come_back_as_they_are(tmp_path, suffix, pixels):
    path = tmp_path / f"a{suffix}"
    np.save(path, pixels) if suffix == ".npy" else Image.fromarray(pixels).save(path)
    assert (read_image(path, "image") == pixels).all()


@pytest.mark.parametrize(
    "stored", [GREY.astype(np.uint16) * 200, GREY.astype(np.float32) / 7], ids=["16 bits", "float"]
)
def test_deep_files_come_back_as_they_are(tmp_path, stored):
    Image.fromarray(stored).save(tmp_path / "a.tif")
    pixels = read_image(tmp_path / "a.tif", "image")
    assert pixels.dtype == stored.dtype
    assert (pixels == stored).all()


def test_palettes_become_colors(tmp_path):
    image = Image.fromarray((GREY > 100).astype(np.uint8))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.save(tmp_path / "a.png")
    pixels = read_image(tmp_path / "a.png", "image")
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[-1, -1].tolist() == [40, 50, 60]


def test_arrays_may_be_stored_by_columns_and_big_end_first(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(RGB.astype(">i4")))
    assert (read_image(tmp_path / "a.npy", "image") == RGB).all()


def test_files_that_are_too_large_are_not_opened(tmp_path):
    path = tmp_path / "a.png"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)  # a file with a hole, which takes no space
    with pytest.raises(DataError) as problem:
        read_image(path, "image 'a.png'")
    assert str(problem.value) == (
        f"image 'a.png' has {LARGEST + 1} bytes; expected at most {LARGEST}: make it smaller"
    )


def _stored() -> list[tuple[str, bytes]]:
    files = []
    for suffix, form in {".png": "PNG", ".jpg": "JPEG", ".tif": "TIFF", ".bmp": "BMP"}.items():
        file = io.BytesIO()
        Image.fromarray(RGB).save(file, format=form)
        files.append((suffix, file.getvalue()))
    file = io.BytesIO()
    np.save(file, RGB)
    return [*files, (".npy", file.getvalue())]


@settings(max_examples=150, deadline=None)
@given(
    stored=st.sampled_from(_stored()),
    cut=st.floats(0.05, 1),
    changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=8),
)
def test_damaged_files_are_read_or_refused_and_nothing_else(tmp_path_factory, stored, cut, changes):
    suffix, data = stored
    damaged = bytearray(data[: max(1, int(cut * len(data)))])
    for place, value in changes:
        damaged[int(place * len(damaged))] = value
    path = tmp_path_factory.mktemp("damaged") / f"a{suffix}"
    path.write_bytes(damaged)
    refusal = None
    try:
        pixels = read_image(path, "image 'a'")
    except DataError as problem:
        refusal = str(problem)
    assert refusal.startswith("image 'a' ") if refusal else pixels.ndim in {2, 3}


# ----------------------------------------------------------------------------------------- pixels


def test_eight_bits_are_kept():
    dark = np.array([[3, 4], [5, 3]], dtype=np.uint8)
    assert to_bytes(dark) is dark


def test_more_bits_are_scaled_by_the_percentile_range():
    values = np.arange(10_000, dtype=np.uint16).reshape(100, 100)
    values[0, 0] = 65535  # one hot pixel does not darken the image
    scaled = to_bytes(values)
    low, high = np.percentile(values, (0.5, 99.5))
    expected = np.clip((values.astype(float) - low) / (high - low), 0, 1) * 255
    assert scaled.dtype == np.uint8
    assert np.abs(scaled - expected).max() <= 0.51
    assert scaled[0, 0] == 255


@pytest.mark.parametrize(
    "dtype", [np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
)
def test_scaling_does_not_depend_on_the_type(dtype):
    values = (GREY.astype(np.int16) - 100).astype(dtype)
    expected = to_bytes(GREY.astype(np.uint16))
    assert np.abs(to_bytes(values).astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    "values",
    [
        np.full((4, 4), 1000, np.uint16),
        np.zeros((4, 4)),
        np.array([[0, 5e-324]]),
        np.array([[-1.7e308, 1.7e308]]),
    ],
    ids=["constant", "zero", "denormal", "beyond all ranges"],
)
def test_images_without_a_usable_range_become_zero(values):
    assert not to_bytes(values).any()


def test_a_nearly_constant_image_keeps_what_differs():
    values = np.zeros((100, 100), np.uint16)
    values[5, 5] = 900
    assert to_bytes(values)[5, 5] == 255
    assert to_bytes(values).sum() == 255


def test_black_and_white_becomes_0_and_255():
    assert to_bytes(GREY > 100).max() == 255


def test_color_becomes_grey_by_its_luma():
    fitted = fit_image(RGB, (8, 10), 1, "image")
    luma = RGB @ [0.299, 0.587, 0.114]
    assert fitted.shape == (1, 8, 10)
    assert np.abs(fitted[0] - luma).max() <= 1


def test_grey_becomes_color_by_repetition():
    fitted = fit_image(GREY, (8, 10), 3, "image")
    assert fitted.shape == (3, 8, 10)
    assert (fitted == GREY).all()


def test_channels_stay_in_order():
    assert (fit_image(RGB, (8, 10), 3, "image") == RGB.transpose(2, 0, 1)).all()
    four = np.concatenate([RGB, GREY[..., None]], axis=-1)
    assert (fit_image(four, (8, 10), 4, "image")[3] == GREY).all()


@pytest.mark.parametrize(("found", "wanted"), [(1, 2), (2, 1), (4, 3), (3, 4)])
def test_other_numbers_of_channels_are_refused(found, wanted):
    with pytest.raises(DataError, match=f"has {found} channels?, but the federation's images have"):
        fit_image(
            np.zeros((8, 10, found), np.uint8)[..., :found].squeeze(), (8, 10), wanted, "image"
        )


def test_images_are_resized_with_the_bilinear_filter():
    fitted = fit_image(RGB, (5, 7), 3, "image")
    expected = Image.fromarray(RGB).resize((7, 5), Image.Resampling.BILINEAR)
    assert (fitted == np.asarray(expected).transpose(2, 0, 1)).all()


def test_masks_are_resized_without_new_values():
    mask = (GREY > 100).astype(np.uint8) * 2
    fitted = fit_mask(mask, (16, 20))
    assert (fitted == mask.repeat(2, axis=0).repeat(2, axis=1)).all()
    assert set(np.unique(fit_mask(mask, (5, 7)))) <= {0, 2}


def test_names_are_short_and_on_one_line():
    assert printable("a\nb\x1b") == "a?b?"
    assert printable("x" * 100) == "x" * 77 + "..."
