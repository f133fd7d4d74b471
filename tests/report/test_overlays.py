from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from consilia.report.overlays import galleries, judged, painted, picture, png, verdicts
from consilia.report.record import Record


def decoded(uri: str) -> np.ndarray:
    head, data = uri.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def test_verdicts_by_hand():
    truth = np.array([[0, 1, 1, 2, 0]], np.uint8)
    predicted = np.array([[0, 1, 0, 1, 2]], np.uint8)
    assert verdicts(truth, predicted).tolist() == [[0, 1, 2, 4, 3]]


def test_every_verdict_has_its_own_color():
    image = np.full((1, 5, 3), 128, np.uint8)
    colors = judged(image, np.array([[0, 1, 2, 3, 4]], np.uint8))
    assert len({tuple(c) for c in colors[0].tolist()}) == 5


def test_background_stays_as_it_is_and_labels_are_outlined():
    image = np.full((7, 7, 3), 100, np.uint8)
    labels = np.zeros((7, 7), np.uint8)
    labels[1:6, 1:6] = 1
    shown = painted(image, labels)
    assert (shown[labels == 0] == 100).all()
    assert (shown[1, 1] != shown[3, 3]).any()


def test_pictures_of_any_channels():
    rng = np.random.default_rng(0)
    for channels in (1, 2, 3, 4):
        image = rng.integers(0, 256, (channels, 6, 5), np.uint8)
        shown = picture(image)
        assert shown.shape == (6, 5, 3)
        assert (shown[..., 0] == image[0]).all()
        assert (shown[..., 1] == image[1 if channels == 3 else 0]).all()


def test_a_gray_picture_survives_the_page():
    image = np.repeat(np.arange(64, dtype=np.uint8).reshape(8, 8, 1), 3, axis=2)
    assert (decoded(png(image)) == image).all()


def test_one_case_per_rank_and_rightly_empty_ones_are_not_the_worst(make_run):
    examples = galleries(Record.read(make_run()))[0].examples
    assert [(e.ranks, e.case) for e in examples] == [
        (("best",), "case-a"),
        (("median",), "case-b"),
        (("worst",), "case-c"),
    ]


def test_a_lone_case_is_shown_once(make_run):
    run = make_run(("bergen",))
    path = run / "predictions" / "bergen.npz"
    with np.load(path) as pack:
        kept = {name: pack[name][[0, 0, 0]] for name in pack.files}
    np.savez(path, **{**kept, "rank": np.array(["best", "median", "worst"])})
    (gallery,) = galleries(Record.read(run))
    assert [e.ranks for e in gallery.examples] == [("best", "median", "worst")]


def test_true_labels_come_first(make_run):
    examples = galleries(Record.read(make_run(task="classification")))[0].examples
    assert [bar.true for bar in examples[0].bars] == [True, False, False]
    assert examples[0].bars[1].probability >= examples[0].bars[2].probability
