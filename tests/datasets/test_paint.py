"""Annotations are painted where they are, and nowhere else."""

import numpy as np

from consilia.datasets.paint import contact_sheet, montage, paint
from consilia.datasets.phantoms import load_phantom, phantom_federation
from consilia.labels import LabelView
from consilia.weaken import weaken


def test_marks_are_painted_and_the_rest_is_left_alone(tmp_path):
    image = np.full((1, 4, 4), 100, dtype=np.uint8)
    target, known = np.zeros((1, 4, 4), np.uint8), np.zeros((1, 4, 4), bool)
    target[0, 0, 0] = 1
    known[0, 0, :2] = True
    painted = paint(image, LabelView(target, np.ones((1, 1), bool), known), 0)
    assert (painted[1:] == 100).all()
    assert painted[0, 0, 0] > painted[0, 0, 2]  # orange
    assert painted[0, 1, 0] < painted[0, 1, 2]  # blue
    sheet = montage({"x": [painted], "longer": [painted, painted]}, tile=32)
    assert sheet.height == 2 * 36


def test_bounds_are_outlines(tmp_path):
    image = np.full((3, 6, 6), 100, dtype=np.uint8)
    bounds = np.zeros((1, 1, 6, 6), dtype=bool)
    bounds[0, 0, 1:5, 1:5] = True
    nothing = np.zeros((1, 6, 6), dtype=np.uint8)
    view = LabelView(nothing, np.ones((1, 1), bool), nothing.astype(bool), bounds)
    painted = paint(image, view, 0)
    assert (painted[1, 1:5] != 100).any(axis=-1).all()
    assert (painted[2:4, 2:4] == 100).all()
    train, _ = load_phantom("phantom-skin", "oslo", size=32)
    tags, _ = weaken(
        train,
        phantom_federation("phantom-skin").labels,
        phantom_federation("phantom-skin")["oslo"],
        seed=0,
    )
    contact_sheet({"oslo": (train, tags)}, tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 1000
