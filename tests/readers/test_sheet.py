from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import SiteDeclaration
from consilia.labels import LabelView
from consilia.readers.sheet import choose, draw_contact_sheet
from consilia.weaken import weaken

LABELS = ("liver", "spleen")
ORANGE, BLUE = np.array([230, 159, 0]), np.array([86, 180, 233])


def cases(count: int = 3, channels: int = 1) -> Cases:
    truth = np.zeros((count, 40, 48), dtype=np.uint8)
    truth[:, 8:30, 8:30] = 1
    truth[:, 14:20, 14:20] = 2
    image = np.full((count, channels, 40, 48), 90, dtype=np.uint8)
    names = tuple(f"case {at} with a name that is rather long" for at in range(count))
    return Cases(image, truth, names, names)


def count_near(path, color) -> int:
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return int((np.abs(pixels - color).max(axis=-1) < 12).sum())


@pytest.mark.parametrize("form", ["mask", "block", "rotated-box", "box", "scribble", "point"])
def test_every_form_is_drawn_in_the_colors_of_its_labels(tmp_path, form):
    train = cases(channels=3 if form == "box" else 1)
    view, _ = weaken(train, LABELS, SiteDeclaration(name="x", data="x", supervision=form), seed=0)
    path = tmp_path / "sheet.png"
    draw_contact_sheet(SiteData(train, view, None, train), LABELS, path)
    assert count_near(path, ORANGE) > 100
    assert count_near(path, BLUE) > 100


@pytest.mark.parametrize("form", ["image", "none"])
def test_nothing_is_drawn_on_images_that_are_known_as_a_whole(tmp_path, form):
    train = cases()
    view, _ = weaken(train, LABELS, SiteDeclaration(name="x", data="x", supervision=form), seed=0)
    path = tmp_path / "sheet.png"
    draw_contact_sheet(SiteData(train, view, None, train), LABELS, path)
    assert count_near(path, ORANGE) + count_near(path, BLUE) == 0


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_or_no_images_of_a_classification(tmp_path, count):
    image = np.zeros((count, 3, 16, 16), dtype=np.uint8)
    names = tuple(str(at) for at in range(count))
    target = np.ones((count, 2), dtype=np.uint8)
    train = Cases(image, None, names, names)
    view = LabelView(target, np.array([[True, False]] * count, dtype=bool).reshape(count, 2))
    draw_contact_sheet(SiteData(train, view, None, train), LABELS, tmp_path / "sheet.png", count=4)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 100


def test_images_with_annotations_come_first():
    target = np.zeros((30, 4, 4), dtype=np.uint8)
    target[[3, 17, 28], 0, 0] = 1
    view = LabelView(target, np.ones((30, 1), dtype=bool))
    chosen = choose(view, 5)
    assert len(chosen) == 5
    assert {3, 17, 28} <= set(chosen)
    assert choose(view, 2) == [3, 28]
    assert chosen == sorted(chosen)
