"""Folders as other programs leave them: sub-folders, other names, images that lie elsewhere."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from consilia.errors import DataError
from consilia.readers.folder import read_folder
from consilia.readers.guess import guess_federation
from consilia.readers.inspect import inspect_folder
from consilia.readers.unlabelled import read_unlabelled

SIZE = (8, 10)
SHELVES = {"a": "train/a", "b": "train/b", "c": "val/c", "d": "val/d"}
VOC = (
    "<annotation><object><name>liver</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>6</xmax>"
    "<ymax>7</ymax></bndbox></object></annotation>"
)


def move(site, place, suffix=".png", moves=SHELVES):
    """Put the files of a folder into sub-folders."""
    for name, to in moves.items():
        old = site.root / place / (name + suffix)
        if old.exists():
            (site.root / place / to).parent.mkdir(exist_ok=True)
            old.rename(site.root / place / (to + suffix))


def same(found, expected):
    """Compare what two folders hold, whatever their cases are called."""
    for part in ("train", "test"):
        one, other = getattr(found, part), getattr(expected, part)
        assert np.array_equal(one.image, other.image)
        assert one.group == other.group
        assert one.truth is None or np.array_equal(one.truth, other.truth)
    assert np.array_equal(found.view.target, expected.view.target)
    assert np.array_equal(found.view.known_labels, expected.view.known_labels)
    if expected.view.constraint is not None:
        assert np.array_equal(found.view.constraint, expected.view.constraint)


def test_images_and_masks_may_lie_in_sub_folders(site, federation):
    site.masks()
    flat = read_folder(site.root, federation(), "x")
    move(site, "images")
    move(site, "masks")
    nested = read_folder(site.root, federation(), "x")  # cases.csv names them without sub-folders
    same(nested, flat)
    assert nested.train.case == ("train/a", "train/b", "val/c")
    assert inspect_folder(site.root, federation(), "x").problems == ()
    site.table(
        "cases.csv",
        "image,patient,split",
        "train/a.png,1,train",
        "train/b,1,train",
        "val/c,2,train",
        "val/d.png,3,test",
    )
    same(read_folder(site.root, federation(), "x"), flat)


def test_a_name_that_several_sub_folders_have_must_be_told_in_full(site, federation, refusal):
    site.masks()
    move(site, "images", moves={**SHELVES, "c": "val/a"})
    move(site, "masks", moves={**SHELVES, "c": "val/a"})
    assert refusal(site.root, federation()) == (
        "cases.csv of site 'x', line 2, names the image 'a', which is in several sub-folders of "
        "'images'; name its sub-folder as well"
    )
    rows = ("train/a,1,train", "b,1,train", "val/a,2,train", "d,3,test")
    site.table("cases.csv", "image,patient,split", *rows)
    assert read_folder(site.root, federation(), "x").train.case == ("train/a", "train/b", "val/a")


def test_a_mask_belongs_to_the_image_of_its_own_sub_folder(site, federation, refusal):
    site.masks()
    move(site, "images")
    move(site, "masks", moves={**SHELVES, "a": "val/a"})
    assert refusal(site.root, federation()) == (
        "image 'train/a.png' of site 'x' has no mask; add 'masks/train/a.png' or remove the image"
    )
    warning = "masks without an image of the same name, which are not read: 'val/a.png'"
    assert warning in inspect_folder(site.root, federation(), "x").warnings[0]


def test_sub_folders_are_no_splits_and_no_patients(site, federation):
    site.masks()
    move(site, "images")
    move(site, "masks")
    site.remove("cases.csv")
    found = inspect_folder(site.root, federation(), "x")
    assert found.patients == 4
    assert found.splits["validation"] == 0
    assert found.warnings[0] == (
        "site 'x' has images in sub-folders of 'images', which are not taken for patients or splits: "
        "'train' and 'val'; each image is a patient, and one in five is tested on, unless a table "
        "cases.csv says otherwise"
    )


def test_yolo_keeps_its_sub_folders(site, federation):
    site.masks("d")
    site.table("classes.txt", "liver", "spleen")
    (site.root / "labels").mkdir()
    for name, at in (("a", 0), ("b", 1), ("c", 0)):
        (site.root / f"labels/{name}.txt").write_text(f"{at} 0.5 0.5 0.3 0.{at + 2}\n")
    declared = federation(supervision="box")
    flat = read_folder(site.root, declared, "x")
    assert flat.view.constraint.any(axis=(2, 3)).tolist() == [
        [True, False],
        [False, True],
        [True, False],
    ]
    move(site, "images")
    move(site, "masks")
    flat_labels = read_folder(site.root, declared, "x")
    move(site, "labels", ".txt")
    same(flat_labels, flat)
    same(read_folder(site.root, declared, "x"), flat)
    (site.root / "labels/old").mkdir()  # no sub-folder of 'images', so no labels either
    (site.root / "labels/old/z.txt").write_text("nonsense")
    same(read_folder(site.root, declared, "x"), flat)
    (site.root / "labels/val/z.txt").write_text("0 0.5 0.5 0.3 0.2\n")
    assert inspect_folder(site.root, declared, "x").errors == (
        "val/z.txt of site 'x' has no image of the same name in 'images'; rename or remove it",
    )


def test_coco_files_may_name_images_with_any_folders(site, federation):
    site.masks("d")
    move(site, "images", moves={**SHELVES, "c": "val/a"})
    move(site, "masks")
    rows = ("train/a,1,train", "b,1,train", "val/a,2,train", "d,3,test")
    site.table("cases.csv", "image,patient,split", *rows)

    def write(*names):
        table = {
            "images": [{"id": at, "file_name": name} for at, name in enumerate(names)],
            "categories": [{"id": 7, "name": "liver"}],
            "annotations": [
                {"id": at, "image_id": at, "category_id": 7, "bbox": [at, 1, 2, 3]}
                for at in range(3)
            ],
        }
        (site.root / "annotations.json").write_text(json.dumps(table))
        return read_folder(site.root, declared, "x")

    declared = federation(supervision="box")
    found = write("/data/images/train/a.png", "b.png", r"C:\val\a.png", "val/d.png")
    assert found.train.case == ("train/a", "train/b", "val/a")
    left = found.view.constraint[:, 0].argmax(axis=2).max(axis=1)
    assert left.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"image 1, names the image 'a.png', which is in several"):
        write("other/a.png", "b.png", "val/a.png", "val/d.png")


def test_pascal_voc_keeps_its_names(site, federation):
    declared = federation(supervision="box")
    site.masks("d")
    (site.root / "Annotations").mkdir()
    for name in "abcd":
        (site.root / f"Annotations/{name}.xml").write_text(VOC)
    ours = read_folder(site.root, declared, "x")
    (site.root / "images").rename(site.root / "JPEGImages")
    same(read_folder(site.root, declared, "x"), ours)
    assert guess_federation(site.root).image.size == SIZE
    assert len(list(read_unlabelled(site.root, SIZE, 1))) == 4
    site.remove("JPEGImages/a.png")
    errors = inspect_folder(site.root, declared, "x").errors
    assert "a.xml of site 'x' has no image of the same name in 'JPEGImages'; rename or" in errors[1]


def test_our_own_name_comes_first(site, federation):
    site.masks()
    ours = read_folder(site.root, federation(), "x")
    site.save("JPEGImages/z.png", np.eye(8, dtype=np.uint8))
    same(read_folder(site.root, federation(), "x"), ours)


def test_labelme_files_lie_beside_their_images(site, federation):
    declared = federation()
    shape = {"label": "liver", "shape_type": "polygon", "points": [[1, 1], [6, 1], [6, 6]]}
    for name in "abcd":
        (site.root / f"images/{name}.json").write_text(json.dumps({"shapes": [shape]}))
    flat = read_folder(site.root, declared, "x")
    move(site, "images")
    move(site, "images", ".json")
    same(read_folder(site.root, declared, "x"), flat)


def test_links_in_a_circle_are_not_followed(site, federation, refusal):
    site.masks()
    (site.root / "images/more").mkdir()
    (site.root / "images/more/again").symlink_to(site.root / "images")
    assert refusal(site.root, federation()) == (
        "image 'more/again' of site 'x' is a folder without DICOM files; put the slices of one "
        "series there"
    )


def test_damage_in_sub_folders_is_told_by_its_place(site, federation, refusal):
    site.masks()
    move(site, "images")
    move(site, "masks")
    (site.root / "images/val/c.png").write_bytes(b"")
    assert refusal(site.root, federation()).startswith("image 'val/c.png' of site 'x' is an empty")
    (site.root / "images/val/c.png").rename(site.root / "images/val/c.gif")
    assert refusal(site.root, federation()).startswith("image 'val/c.gif' of site 'x' has the type")


# ------------------------------------------------------------------------- images that lie elsewhere


def elsewhere(root, federation):
    with pytest.raises(DataError) as told:
        guess_federation(root)
    with pytest.raises(DataError) as again:
        read_folder(root, federation(), "x")
    start, found = (
        str(problem.value).split("has no folder 'images'; ") for problem in (told, again)
    )
    assert start[1] == found[1]
    return found[1]


def test_images_elsewhere_are_found(site, federation):
    site.masks()
    (site.root / "images").rename(site.root / "img")
    assert elsewhere(site.root, federation) == (
        "found 4 images in 'img': rename it to 'images' or link it"
    )
    (site.root / "images").symlink_to("img")
    assert len(read_folder(site.root, federation(), "x").train) == 3


def test_loose_images_are_found(site, federation):
    for name in "abcd":
        (site.root / f"images/{name}.png").rename(site.root / f"{name}.png")
    (site.root / "images").rmdir()
    assert elsewhere(site.root, federation) == (
        "found 4 images in the folder itself: move them to 'images', and their masks, if any, to "
        "'masks' under the same names"
    )


def test_images_of_several_folders_are_found(site, federation):
    for name in ("valid", "train"):
        shutil.copytree(site.root / "images", site.root / name / "images")
    shutil.rmtree(site.root / "images")
    assert elsewhere(site.root, federation) == (
        "found 4 images in 'train/images', 4 images in 'valid/images': move the folders that hold "
        "images to sub-folders of 'images', and what was drawn on them to the same sub-folders of "
        "'masks' or 'labels'"
    )


def test_no_images_at_all_are_told(site, federation):
    shutil.rmtree(site.root / "images")
    site.masks()
    assert elsewhere(site.root, federation) == "put its images there"
    (site.root / "images").mkdir()
    with pytest.raises(
        DataError, match=r"'images' of folder .* holds no images; expected files of"
    ):
        guess_federation(site.root)
    (site.root / "images/notes").mkdir()
    with pytest.raises(DataError, match="none of the 1 folders in 'images' of folder"):
        guess_federation(site.root)
