"""A site's own .npz file is read as a folder is."""

from __future__ import annotations

import numpy as np
import pytest

from consilia.errors import DataError
from consilia.readers.check import check_path
from consilia.readers.npz import read_npz_site
from consilia.readers.site import load_site

RNG = np.random.default_rng(0)
SPLIT = np.array(["train", "train", "validation", "test"])


def arrays(**changes):
    image = RNG.integers(0, 255, (4, 8, 10)).astype(np.uint8)
    mask = np.zeros((4, 8, 10), np.uint8)
    mask[:, 2:5, 3:7] = 1
    mask[:, 5:7, 3:7] = 2
    return {"image": image, "mask": mask, "split": SPLIT, **changes}


def save(folder, **changes):
    held = {name: array for name, array in arrays(**changes).items() if array is not None}
    np.savez(folder / "x.npz", **held)
    return folder / "x.npz"


def test_masks_and_splits_are_read(tmp_path, federation):
    path = save(tmp_path, patient=np.array([7, 7, 8, 9]), case=np.array(list("abcd")))
    data = read_npz_site(path, federation(), "x")
    assert data.train.case == ("a", "b")
    assert data.train.group == ("7", "7")
    assert data.validation.case == ("c",)
    assert data.test.truth[0, 3, 4] == 1
    assert (data.view.target == data.train.truth).all()
    assert data.train.image.shape == (2, 1, *federation().image.size)


def test_marks_that_were_not_looked_at_stay_unknown(tmp_path, federation):
    mask = arrays()["mask"]
    mask[:2, 0] = 255
    data = read_npz_site(save(tmp_path, mask=mask), federation(supervision="scribble"), "x")
    assert not data.view.known_pixels[:, 0].any()
    assert data.view.known_pixels[:, 3].all()
    assert data.train.truth is None


def test_image_labels_are_read(tmp_path, federation):
    label = np.array([[1, 0], [-1, 1], [0, 0], [1, 1]])
    declared = federation(task="classification", exclusive=False, supervision="image")
    data = read_npz_site(save(tmp_path, mask=None, label=label), declared, "x")
    assert data.view.known_labels.tolist() == [[True, True], [False, True]]
    assert data.test.truth.tolist() == [[1, 1]]


def test_a_declaration_may_name_it(tmp_path, federation):
    save(tmp_path)
    declared = federation()
    site = declared.site[0].model_copy(update={"data": "x.npz"})
    declared = declared.model_copy(update={"site": (site,)})
    assert len(load_site(declared, "x", tmp_path).train) == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"image": None},
            "has no array `image` of n x height x width (x channels) numbers; add it",
        ),
        ({"mask": None}, "needs an array `mask` of 4 x 8 x 10 class indices, found none; add it"),
        (
            {"mask": np.full((4, 8, 10), 7)},
            "has class 7 in `mask`, but the federation has 2 labels",
        ),
        ({"masks": np.zeros(4)}, "holds the array 'masks'; did you mean 'mask'?"),
        ({"split": SPLIT[:3]}, "has 4 images, but 3 in its array `split`; give one for each"),
        ({"split": np.array(["practice"] * 4)}, "has the split 'practice'; expected"),
        ({"patient": np.zeros(4)}, "is in the splits 'train', 'validation' and 'test'"),
        ({"image": np.full((4, 8, 10), np.nan)}, "holds 80 values that are NaN or infinite"),
        ({"case": np.array([{}] * 4)}, "cannot be read; it is damaged"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(tmp_path, federation, changes, sentence):
    path = save(tmp_path, **changes)
    with pytest.raises(DataError) as problem:
        read_npz_site(path, federation(), "x")
    assert sentence in str(problem.value)


def test_check_reports_it_and_goes_on(tmp_path, federation):
    save(tmp_path, mask=None)
    (tmp_path / "federation.toml").write_text(
        'name = "f"\ntask = "segmentation"\nlabels = ["liver", "spleen"]\n'
        'image = { size = [8, 10] }\n[[site]]\nname = "x"\ndata = "x.npz"\n'
    )
    (one,) = check_path(tmp_path / "federation.toml")
    assert len(one.inspection.errors) == 1
    save(tmp_path)
    (one,) = check_path(tmp_path / "federation.toml")
    assert one.inspection.splits == {"train": 2, "test": 1}
