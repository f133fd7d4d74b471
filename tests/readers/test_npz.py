"""A site's own .npz file is read as a folder is."""

from __future__ import annotations

import numpy as np
import pytest

from consilia.errors import DataError, UsageError
from consilia.readers.check import check_path
from consilia.readers.inspect import LabelCount
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
        (
            {"case": np.array([{}] * 4)},
            "holds Python objects in its array `case`, which are pickled and never read; save plain "
            "numbers or texts (`dtype=str`)",
        ),
        (
            {name: np.zeros((0, 8, 10)) for name in ("image", "mask")} | {"split": SPLIT[:0]},
            "has 0 images in its array `image`; save it again with some",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(tmp_path, federation, changes, sentence):
    path = save(tmp_path, **changes)
    with pytest.raises(DataError) as problem:
        read_npz_site(path, federation(), "x")
    assert sentence in str(problem.value)


def declare_npz(folder, **changes):
    (folder / "federation.toml").write_text(
        'name = "f"\ntask = "segmentation"\nlabels = ["liver", "spleen"]\n'
        + "".join(f'{key} = "{value}"\n' for key, value in changes.items())
        + 'image = { size = [8, 10] }\n[[site]]\nname = "x"\ndata = "x.npz"\n'
    )
    return folder / "federation.toml"


def test_check_reports_it_and_goes_on(tmp_path):
    save(tmp_path, mask=None)
    (one,) = check_path(declare_npz(tmp_path))
    assert len(one.inspection.errors) == 1
    save(tmp_path)
    (one,) = check_path(tmp_path / "federation.toml")
    found = one.inspection
    assert found.problems == ()
    assert found.splits == {"train": 2, "validation": 1, "test": 1}
    assert found.labels == {"liver": LabelCount(4, 12 / 80), "spleen": LabelCount(4, 8 / 80)}
    assert (found.form, found.forms) == ("mask", {"mask": 4})
    assert found.looked_at == ("train", "validation", "test")


def test_check_counts_marks_and_tags(tmp_path, federation):
    mask = arrays()["mask"]
    mask[:2, 0] = 255
    path = save(tmp_path, mask=mask)
    form = 'image = { size = [8, 10] }\n[[site]]\nname = "x"\nsupervision = "scribble"\ndata = "x.npz"\n'
    text = declare_npz(tmp_path).read_text()
    (tmp_path / "federation.toml").write_text(text[: text.index("image =")] + form)
    (one,) = check_path(path, federation=tmp_path / "federation.toml")
    assert one.inspection.forms == {"scribble": 2, "mask": 2}
    assert one.inspection.labels["liver"] == LabelCount(4, 48 / 300)


SAME = (
    "images 'a' and 'd' of site 'x' are the same, but one is in 'train' and one in 'test', so a "
    "model would be judged on an image it has seen; remove one or keep both in one split"
)


def test_copies_and_constant_images_are_told(tmp_path, federation):
    image = arrays()["image"]
    image[1], image[3] = 7, image[0]
    path = save(tmp_path, image=image, case=np.array(list("abcd")))
    with pytest.raises(DataError) as problem:
        read_npz_site(path, federation(), "x")
    assert str(problem.value) == SAME
    (one,) = check_path(declare_npz(tmp_path))
    assert one.inspection.errors == (SAME,)
    assert one.inspection.warnings == (
        "site 'x' has images with one value throughout: 'b'; check them",
    )
    image[1], image[3] = image[0], image[2] + 1
    save(tmp_path, image=image, case=np.array(list("abcd")))
    (one,) = check_path(tmp_path / "federation.toml")
    assert one.inspection.errors == ()
    assert one.inspection.warnings == (
        "images 'a' and 'b' of site 'x' are the same; remove one if it is the same examination",
    )


def test_the_file_itself_is_checked_with_its_federation(tmp_path):
    path = save(tmp_path)
    with pytest.raises(UsageError) as problem:
        check_path(path)
    assert str(problem.value) == (
        f"'{path}' says nothing about labels and image size; name its federation with --federation"
    )
    (one,) = check_path(path, federation=declare_npz(tmp_path))
    assert one.inspection.images == 4


def test_a_common_test_set_of_arrays_is_checked(tmp_path):
    save(tmp_path)
    np.savez(tmp_path / "common.npz", **{k: v for k, v in arrays().items() if k != "split"})
    _, common = check_path(declare_npz(tmp_path, test="common.npz"))
    assert common.inspection.errors == ()
    assert common.inspection.splits == {"train": 0, "validation": 0, "test": 4}
    assert common.inspection.labels["spleen"].images == 4


def test_labels_of_a_dataset_are_counted(tmp_path):
    text = declare_npz(tmp_path).read_text().replace('["liver", "spleen"]', '["lesion"]')
    text = text.replace("[8, 10]", "[64, 64]").replace("x.npz", "dataset:phantom-mixed/bergen")
    (tmp_path / "federation.toml").write_text(text + 'supervision = "box"\n')
    (one,) = check_path(tmp_path / "federation.toml")
    data = one.load()
    boxed = (data.view.constraint.any(axis=(1, 2, 3))).sum()
    judged = (data.test.truth > 0).any(axis=(1, 2)).sum()
    found = one.inspection
    assert found.labels["lesion"].images == boxed + judged
    assert found.labels["lesion"].share == pytest.approx(float((data.test.truth > 0).mean()))
    assert found.forms == {"box": len(data.train), "mask": len(data.test)}
    assert found.looked_at == ("test",)
