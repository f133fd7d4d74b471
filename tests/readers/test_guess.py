"""A bare folder is judged by its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from consilia.declare import Supervision
from consilia.errors import DataError, UsageError
from consilia.readers.check import check_path
from consilia.readers.guess import guess_federation


def picture(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(6):
        picture(tmp_path / f"images/c{i}.png", rng.integers(0, 255, (24, 32)).astype(np.uint8))
    return tmp_path


def masks(folder: Path, *values: int) -> None:
    for i in range(6):
        mask = np.zeros((24, 32), np.uint8)
        for at, value in enumerate(values):
            mask[4 * at : 4 * at + 3, 5:20] = value
        picture(folder / f"masks/c{i}.png", mask)


@pytest.mark.parametrize(
    ("values", "form", "labels"),
    [
        ((255,), Supervision.MASK, ("class-1",)),
        ((1, 2, 3), Supervision.MASK, ("class-1", "class-2", "class-3")),
        ((1, 2, 255), Supervision.SCRIBBLE, ("class-1", "class-2")),
        ((), Supervision.MASK, ("class-1",)),
    ],
)
def test_masks_say_their_classes(
    folder: Path, values: tuple[int, ...], form: Supervision, labels: tuple[str, ...]
) -> None:
    masks(folder, *values)
    guess = guess_federation(folder)
    assert (guess.task, guess.site[0].supervision, guess.labels) == ("segmentation", form, labels)
    assert guess.image.size == (24, 32)


def test_coco_boxes_say_their_labels(folder: Path) -> None:
    table = {
        "images": [
            {"id": i, "file_name": f"c{i}.png", "height": 24, "width": 32} for i in range(6)
        ],
        "categories": [{"id": 7, "name": "polyp"}],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 7, "bbox": [2, 2, 8, 6], "iscrowd": 0}
            for i in range(6)
        ],
    }
    (folder / "boxes.json").write_text(json.dumps(table))
    guess = guess_federation(folder)
    assert guess.labels == ("polyp",)
    assert guess.site[0].supervision is Supervision.BOX


def test_a_table_of_findings_is_classification(folder: Path) -> None:
    rows = "\n".join(f"c{i}.png,{i % 2},1" for i in range(6))
    (folder / "labels.csv").write_text(f"image,mass,nodule\n{rows}\n")
    guess = guess_federation(folder)
    assert (guess.task, guess.labels, guess.exclusive) == (
        "classification",
        ("mass", "nodule"),
        False,
    )
    (one,) = check_path(folder)
    assert one.guessed
    assert not one.inspection.errors
    assert one.inspection.labels["mass"].images == 3


def test_images_alone_are_unlabelled(folder: Path) -> None:
    assert guess_federation(folder).site[0].supervision is Supervision.NONE


def test_problems_are_still_found(folder: Path) -> None:
    masks(folder, 255)
    picture(folder / "masks/c3.png", np.zeros((10, 10), np.uint8))
    (one,) = check_path(folder)
    assert any("c3.png" in sentence for sentence in one.inspection.errors)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folder 'images'"):
        guess_federation(tmp_path)


BOXES = "image,label,left,top,right,bottom"


def test_masks_of_test_images_leave_the_form_to_other_annotations(folder: Path) -> None:
    """The folder of a hospital that draws boxes, with masks for what is judged."""
    masks(folder, 255)
    for i in range(4):
        (folder / f"masks/c{i}.png").unlink()
    cases = "".join(f"c{i},{i},{'train' if i < 4 else 'test'}\n" for i in range(6))
    (folder / "cases.csv").write_text(f"image,patient,split\n{cases}")
    guess = guess_federation(folder)
    assert (guess.site[0].supervision, guess.labels) == (Supervision.NONE, ("class-1",))
    assert check_path(folder)[0].inspection.errors == ()

    tags = "".join(f"c{i},{i % 2}\n" for i in range(4))
    (folder / "labels.csv").write_text(f"image,lesion\n{tags}")
    guess = guess_federation(folder)
    assert (guess.task, guess.site[0].supervision) == ("segmentation", Supervision.IMAGE)
    assert check_path(folder)[0].inspection.errors == ()

    boxes = "".join(f"c{i},lesion,2,2,9,9\n" for i in range(4))
    (folder / "boxes.csv").write_text(f"{BOXES}\n{boxes}")
    guess = guess_federation(folder)
    assert (guess.site[0].supervision, guess.labels) == (Supervision.BOX, ("lesion",))
    found = check_path(folder)[0].inspection
    assert found.errors == ()
    assert found.forms == {"box": 4, "mask": 2}
    assert found.looked_at == ("test",)


def test_a_mask_that_is_missing_is_still_told(folder: Path) -> None:
    masks(folder, 255)
    (folder / "masks/c1.png").unlink()
    (folder / "cases.csv").write_text(
        "image,patient,split\n" + "".join(f"c{i},{i},train\n" for i in range(6))
    )
    assert check_path(folder)[0].inspection.errors == (
        "image 'c1.png' of site 'folder' has no mask; add 'masks/c1.png' or remove the image",
    )


def test_annotations_that_cannot_be_read_are_told(folder: Path) -> None:
    masks(folder, 255)
    (folder / "masks/c0.png").unlink()
    (folder / "cases.csv").write_text(
        "image,patient,split\nc0,0,train\n" + "".join(f"c{i},{i},test\n" for i in range(1, 6))
    )
    (folder / "boxes.csv").write_text("image,label,x,y\nc0,lesion,1,2\n")
    guess = guess_federation(folder)
    assert guess.site[0].supervision is Supervision.BOX
    found = check_path(folder)[0].inspection
    assert found.errors == (
        "boxes.csv of site 'folder' has the unknown column 'x' (known, separated by commas: image, "
        "label, left, top, right, bottom, angle)",
    )
    assert found.warnings == ()


def test_options_that_say_nothing_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError) as problem:
        check_path(folder, only="lima")
    assert str(problem.value) == (
        f"--site says nothing about folder '{folder}', which no federation declares; add "
        "--federation or leave --site out"
    )
