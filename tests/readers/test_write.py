from __future__ import annotations

import numpy as np
import pytest

from consilia.datasets.contract import Cases
from consilia.declare import Supervision
from consilia.errors import DataError, UsageError
from consilia.readers.check import check_path
from consilia.readers.folder import read_folder
from consilia.readers.inspect import inspect_folder
from consilia.readers.write import FORMS, write_folder
from consilia.weaken import weaken

SIZE = (37, 45)
LABELS = ("liver", "spleen")


def drawn_cases(count: int = 3, *, volume: str | None = None) -> Cases:
    """Return images with a ring around a disc, a part with a hole, and nothing at all."""
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (count, 1, *SIZE)).astype(np.uint8)
    truth = np.zeros((count, *SIZE), dtype=np.uint8)
    rows, cols = np.ogrid[: SIZE[0], : SIZE[1]]
    truth[0][(rows - 17) ** 2 + (cols - 20) ** 2 <= 150] = 1
    truth[0][(rows - 16) ** 2 + (cols - 21) ** 2 <= 30] = 2
    truth[1][np.abs(rows - cols + 4) + np.abs(rows + cols - 50) / 3 < 9] = 2
    truth[1][(rows - 26) ** 2 + (cols - 28) ** 2 <= 2] = 0
    truth[1, 2:5, 30:44] = 1
    truth[1, 5, 44] = 1  # touches at a corner only
    names = tuple(f"{volume}:{at:03d}" if volume else f"case {at}" for at in range(count))
    groups = tuple("p" if volume else f"p{at}" for at in range(count))
    return Cases(image, truth, names, groups, (volume,) * count if volume else None)


def judged(train: Cases, volume: str | None = None) -> Cases:
    names = tuple(f"{volume}:{at:03d}" if volume else f"test {at}" for at in range(len(train)))
    volumes = (volume,) * len(train) if volume else None
    return Cases(train.image[::-1] // 2, train.truth[::-1], names, ("q",) * len(train), volumes)


def equal(found, expected) -> bool:
    fields = ("target", "known_labels", "known_pixels", "constraint")
    pairs = [(getattr(found, name), getattr(expected, name)) for name in fields]
    return all(a is b is None or np.array_equal(a, b) for a, b in pairs)


PAIRS = [(way, form) for way, forms in FORMS.items() for form in sorted(forms)]


@pytest.mark.parametrize("annotates", [None, ["spleen"]], ids=["all", "some"])
@pytest.mark.parametrize(("way", "form"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_what_is_drawn_and_saved_is_read_again(tmp_path, federation, way, form, annotates):
    volume = "scan" if way == "nifti" else None
    train = drawn_cases(volume=volume)
    test = judged(train, "other" if volume else None)
    declared = federation(
        supervision=form, annotates=annotates, image={"size": SIZE, "channels": 1}
    )
    view, provenance = weaken(train, LABELS, declared["x"], seed=0)
    write_folder(
        tmp_path / "x",
        train,
        view,
        declared["x"],
        LABELS,
        way,
        test=test,
        provenance=provenance,
    )
    assert inspect_folder(tmp_path / "x", declared, "x").errors == ()
    (guessed,) = check_path(tmp_path / "x")
    assert guessed.inspection.errors == ()
    assert guessed.federation.task == "segmentation"
    data = read_folder(tmp_path / "x", declared, "x", empty_slices="keep")
    assert data.train.case == train.case
    assert data.train.group == train.group
    assert data.train.volume == train.volume
    assert np.array_equal(data.train.image, train.image)
    assert equal(data.view, view)
    assert np.array_equal(data.test.truth, test.truth)
    assert np.array_equal(data.test.image, test.image)


@pytest.mark.parametrize("way", list(FORMS))
def test_sub_folders_are_written_and_read_again(tmp_path, federation, way):
    deep = way == "nifti"
    train = drawn_cases(volume="scan" if deep else None)
    test = judged(train, "scan" if deep else None)
    forms = sorted(FORMS[way], key=lambda form: form != "box")
    declared = federation(supervision=forms[0], image={"size": SIZE, "channels": 1})

    def moved(cases, prefix):
        volume = None if cases.volume is None else tuple(prefix + name for name in cases.volume)
        names = tuple(prefix + name.replace("test", "case") for name in cases.case)
        return Cases(cases.image, cases.truth, names, cases.group, volume)

    train, test = moved(train, "a.1/b/"), moved(test, "c/")
    view, provenance = weaken(train, LABELS, declared["x"], seed=0)
    place = tmp_path / "x"
    write_folder(place, train, view, declared["x"], LABELS, way, test=test, provenance=provenance)
    assert inspect_folder(place, declared, "x").errors == ()
    data = read_folder(place, declared, "x", empty_slices="keep")
    assert (data.train.case, data.train.volume) == (train.case, train.volume)
    assert equal(data.view, view)
    assert np.array_equal(data.train.image, train.image)
    assert np.array_equal(data.test.truth, test.truth)


@pytest.mark.parametrize("name", ["../a", "/a", ".a", "a//b", "a/.b", " "])
@pytest.mark.parametrize("judges", [False, True])
def test_names_that_leave_the_folder_are_refused(tmp_path, federation, name, judges):
    train = drawn_cases()
    odd = Cases(train.image, train.truth, (name, "b", "c"), train.group)
    declared = federation(image={"size": SIZE, "channels": 1})
    view, _ = weaken(train, LABELS, declared["x"], seed=0)
    own, test = (train, odd) if judges else (odd, judged(train))
    with pytest.raises(DataError, match="cannot be the name of a file; rename it"):
        write_folder(tmp_path / "x/y", own, view, declared["x"], LABELS, test=test)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("way", [way for way, forms in FORMS.items() if "rotated-box" in forms])
def test_a_rotated_box_with_its_center_outside_is_read_again(tmp_path, federation, way):
    truth = np.zeros((1, *SIZE), dtype=np.uint8)
    truth[0, -1, 4:7] = 1
    image = np.random.default_rng(0).integers(0, 256, (2, 1, *SIZE)).astype(np.uint8)
    train, test = (Cases(image[[at]], truth, (str(at),), (str(at),)) for at in (0, 1))
    declared = federation(supervision="rotated-box", image={"size": SIZE, "channels": 1})
    site = declared["x"]
    view, provenance = weaken(train, LABELS, site, seed=1)  # the margin below is the wider one
    assert provenance.marks["0"]["boxes"]["liver"]["row"] > SIZE[0] + 1
    write_folder(tmp_path / "x", train, view, site, LABELS, way, test=test, provenance=provenance)
    data = read_folder(tmp_path / "x", declared, "x")
    assert np.array_equal(data.view.constraint, view.constraint)


@pytest.mark.parametrize("way", ["csv", "parquet"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_image_labels_of_a_classification_are_read_again(tmp_path, federation, way, exclusive):
    image = np.random.default_rng(0).integers(0, 256, (4, 3, *SIZE)).astype(np.uint8)
    truth = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=np.uint8)
    train = Cases(image[:3], truth[:3], ("a", "b", "c"), ("1", "2", "3"))
    test = Cases(image[3:], truth[3:], ("d",), ("4",))
    declared = federation(
        task="classification",
        exclusive=exclusive,
        supervision="image",
        annotates=["liver"],
        image={"size": SIZE, "channels": 3},
    )
    view, _ = weaken(train, LABELS, declared["x"], seed=0, exclusive=exclusive)
    write_folder(tmp_path / "x", train, view, declared["x"], LABELS, way, test=test)
    data = read_folder(tmp_path / "x", declared, "x")
    assert equal(data.view, view)
    assert np.array_equal(data.train.image, image[:3])
    assert np.array_equal(data.test.truth, truth[3:])


def test_a_site_without_annotations_can_be_written_in_any_format(tmp_path, federation):
    train = drawn_cases()
    declared = federation(supervision="none", image={"size": SIZE, "channels": 1})
    view, _ = weaken(train, LABELS, declared["x"], seed=0)
    write_folder(tmp_path / "x", train, view, declared["x"], LABELS, "cvat", test=judged(train))
    assert equal(read_folder(tmp_path / "x", declared, "x").view, view)


def test_incomplete_masks_are_read_again(tmp_path, federation):
    train = drawn_cases()
    declared = federation(complete=False, image={"size": SIZE, "channels": 1})
    view, _ = weaken(train, LABELS, declared["x"], seed=0, completeness=0.5)
    write_folder(tmp_path / "x", train, view, declared["x"], LABELS, "coco", test=judged(train))
    assert equal(read_folder(tmp_path / "x", declared, "x").view, view)


def test_what_cannot_be_written_is_refused(tmp_path, federation):
    train = drawn_cases()
    declared = federation(image={"size": SIZE, "channels": 1})
    view, _ = weaken(train, LABELS, declared["x"], seed=0)
    with pytest.raises(UsageError) as problem:
        write_folder(tmp_path / "x", train, view, declared["x"], LABELS, "voc")
    assert str(problem.value) == (
        "format 'voc' cannot hold supervision 'mask'; use 'png', 'nifti', 'coco', 'yolo', 'labelme' "
        "or 'cvat'"
    )
    with pytest.raises(UsageError) as problem:
        write_folder(tmp_path / "x", train, view, declared["x"], LABELS, "dicom")
    assert str(problem.value).startswith("no format named 'dicom'; expected one of png, nifti")
    declared = federation(supervision="rotated-box", image={"size": SIZE, "channels": 1})
    turned, _ = weaken(train, LABELS, declared["x"], seed=0)
    with pytest.raises(DataError, match="give the provenance"):
        write_folder(tmp_path / "x", train, turned, declared["x"], LABELS, "csv")
    with pytest.raises(UsageError, match="is there already; choose a folder"):
        write_folder(tmp_path / "x", train, view, federation()["x"], LABELS)
    with pytest.raises(DataError, match="the view is of 3"):
        write_folder(tmp_path / "y", train.take(np.arange(2)), view, federation()["x"], LABELS)


def test_every_form_can_be_written_somehow():
    assert {form for forms in FORMS.values() for form in forms} == set(Supervision) - {
        Supervision.NONE
    }
