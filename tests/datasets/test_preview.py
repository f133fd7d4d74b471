"""Contact sheets are written, whatever the truth looks like."""

import numpy as np
import pytest
from PIL import Image

from consilia.datasets.contract import Cases
from consilia.datasets.preview import COLORS, contact_sheet


def cases(truth, channels=1, n=3):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 100, (n, channels, 16, 16), dtype=np.uint8)
    names = tuple(f"case-{number}" for number in range(n))
    return Cases(image, truth, names, names)


def pixels(path):
    with Image.open(path, formats=["PNG"]) as sheet:
        return np.asarray(sheet.convert("RGB"))


def colors_of(path):
    return {tuple(pixel) for pixel in pixels(path).reshape(-1, 3).tolist()}


def rgb(color):
    return tuple(bytes.fromhex(color[1:]))


def test_segmentation_draws_each_label_in_its_own_color(tmp_path):
    truth = np.zeros((3, 16, 16), dtype=np.uint8)
    truth[:, 3:12, 3:12] = 2
    truth[:, 5:9, 5:9] = 1
    path = tmp_path / "sheet.png"
    contact_sheet({"lima": cases(truth), "oslo": cases(truth)}, ("cup", "disc"), path)
    assert {rgb(COLORS[0]), rgb(COLORS[1])} <= colors_of(path)


def test_a_row_is_added_per_site(tmp_path):
    truth = np.zeros((3, 16, 16), dtype=np.uint8)
    heights = []
    for count in (1, 3):
        path = tmp_path / f"{count}.png"
        contact_sheet({f"site{i}": cases(truth) for i in range(count)}, ("lesion",), path)
        heights.append(len(pixels(path)))
    assert heights[1] > 2 * heights[0]


@pytest.mark.parametrize("channels", [1, 3])
def test_classification_with_none_one_and_many_labels(tmp_path, channels):
    truth = np.array([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=np.uint8)
    path = tmp_path / "sheet.png"
    contact_sheet({"lima": cases(truth, channels)}, ("a", "b", "c", "d", "e"), path, per_site=4)
    assert rgb(COLORS[0]) not in colors_of(path)


def test_cases_without_truth_are_shown_plainly(tmp_path):
    path = tmp_path / "sheet.png"
    contact_sheet({"lima": cases(None)}, ("lesion",), path, per_site=2)
    assert path.stat().st_size > 1000
