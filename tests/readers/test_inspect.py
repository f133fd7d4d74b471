from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest

from consilia.readers import folder as folder_module
from consilia.readers.folder import read_folder
from consilia.readers.inspect import Inspection, LabelCount, inspect_folder
from consilia.readers.problems import Problem

SIZE = (8, 10)


def test_a_good_folder_has_no_problems(site, federation):
    masks = site.masks()
    found = inspect_folder(site.root, federation(), "x")
    assert found.problems == ()
    assert found.usable
    assert (found.images, found.patients) == (4, 3)
    assert found.splits == {"train": 3, "validation": 0, "test": 1}
    drawn = np.stack(list(masks.values()))
    assert found.labels == {
        "liver": LabelCount(4, float((drawn == 1).mean())),
        "spleen": LabelCount(4, float((drawn == 2).mean())),
    }


def test_an_inspection_is_plain_and_frozen(site, federation):
    site.masks()
    site.remove("masks/a.png")
    found = inspect_folder(site.root, federation(), "x")
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["problems"] == [
        {
            "severity": "error",
            "sentence": "image 'a.png' of site 'x' has no mask; add 'masks/a.png' or remove the image",
        }
    ]
    assert plain["labels"]["liver"]["images"] == 3
    assert set(plain) == {field.name for field in dataclasses.fields(Inspection)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.images = 0


def test_all_problems_are_collected(site, federation):
    site.masks()
    (site.root / "images/a.png").write_bytes(b"")
    site.save("masks/a.png", np.full(SIZE, 9, np.uint8))
    site.save("masks/b.png", np.zeros((4, 4), np.uint8))
    site.remove("masks/c.png")
    (site.root / "images/notes.txt").write_text("hello")
    site.table(
        "cases.csv",
        "image,patient,split",
        "a,1,trane",
        "b,2,train",
        "d,2,test",
        "d,3,test",
        "e,4,test",
    )
    found = inspect_folder(site.root, federation(), "x")
    assert not found.usable
    assert [" ".join(sentence.split()[:9]) for sentence in found.errors] == [
        "image 'notes.txt' of site 'x' has the type '.txt';",
        "cases.csv of site 'x', line 6, names the image",
        "cases.csv of site 'x', line 5, lists the image",
        "cases.csv of site 'x', line 2, has the split",
        "cases.csv of site 'x' does not list the image",
        "patient '2' of site 'x' is in the splits",
        "image 'c.png' of site 'x' has no mask; add",
        "image 'a.png' of site 'x' is an empty file",
        "mask 'a.png' of site 'x' holds class 9, but",
        "mask 'b.png' of site 'x' is 4 x 4",
    ]


def test_all_problems_of_boxes_are_collected(site, federation):
    site.masks("d")
    site.table(
        "boxes.csv",
        "image,label,left,top,right,bottom",
        "a,liver,5,1,4,2",
        "a,liver,5,1,10,2",
        "a,lung,5,1,9,2",
        "b,liver,5,1,9,20",
        "b,liver,x,1,9,2",
    )
    found = inspect_folder(site.root, federation(supervision="box"), "x")
    assert [sentence.split(",")[1] for sentence in found.errors] == [
        " line 2",
        " line 4",
        " line 6",
        " line 3",
        " line 5",
    ]


def test_a_missing_folder_is_a_problem_and_no_exception(tmp_path, federation):
    found = inspect_folder(tmp_path / "x", federation(), "x")
    assert found.errors == (
        f"folder '{tmp_path / 'x'}' of site 'x' does not exist; check `data` and where relative paths "
        "begin",
    )
    assert (found.images, found.memory) == (0, 0)
    assert found.labels == {"liver": LabelCount(0, None), "spleen": LabelCount(0, None)}


def test_problems_that_differ_in_a_name_are_put_together(site, federation):
    for number in range(20):
        site.save(f"images/n{number:02}.png", site.rng.integers(0, 256, SIZE).astype(np.uint8))
    names = [*"abcd", *(f"n{number:02}" for number in range(20))]
    site.table("cases.csv", "image,patient,split", *(f"{name},{name},train" for name in names))
    site.masks("d")
    found = inspect_folder(site.root, federation(), "x")
    assert found.errors == (
        "image 'a.png' of site 'x' has no mask; add 'masks/a.png' or remove the image (also 'b.png', "
        "'c.png' and 20 more)",
    )
    site.table(
        "boxes.csv",
        "image,label,left,top,right,bottom",
        *(f"{name},lung,1,1,2,2" for name in "abcda"),
        "b,liver,x,1,2,2",
    )
    found = inspect_folder(site.root, federation(supervision="box"), "x")
    assert found.errors == (
        "boxes.csv of site 'x', line 2, has the label 'lung', but the federation's labels are "
        "'liver' and 'spleen' (also line 3, line 4 and 2 more)",
        "boxes.csv of site 'x', line 7, has 'x' for 'left'; expected a whole number",
    )


@pytest.mark.parametrize("form", ["box", "mask"])
@pytest.mark.parametrize("text", ["[" * 100_000, "{", '{"images": []}'])
def test_annotations_that_cannot_be_read_say_nothing_about_images(site, federation, form, text):
    site.masks("d")
    (site.root / "annotations.json").write_text(text)
    found = inspect_folder(site.root, federation(supervision=form), "x")
    assert len(found.errors) == 1
    assert found.errors[0].startswith("annotations.json of site 'x' ")
    assert found.warnings == ()
    assert found.forms == {"mask": 1}


def test_a_refused_row_does_not_make_its_image_empty(site, federation):
    site.masks("d")
    site.table(
        "boxes.csv",
        "image,label,left,top,right,bottom",
        "a,liver,5,1,4,2",
        "b,liver,1,1,4,2",
        "c,spleen,1,1,4,2",
    )
    found = inspect_folder(site.root, federation(supervision="box"), "x")
    assert len(found.errors) == 1
    assert found.warnings == ()


def test_a_refused_image_is_told_once(site, federation):
    site.masks()
    (site.root / "images/e.gif").write_bytes(b"GIF89a")
    rows = ("a,1,train", "b,1,train", "c,2,train", "d,3,test", "e,4,train", "e.gif,4,train")
    site.table("cases.csv", "image,patient,split", *rows)
    found = inspect_folder(site.root, federation(), "x")
    assert [sentence.partition(";")[0] for sentence in found.errors] == [
        "image 'e.gif' of site 'x' has the type '.gif'"
    ]
    site.remove("images/e.gif")
    found = inspect_folder(site.root, federation(), "x")
    assert "line 6, names the image 'e', which is not in 'images'" in found.errors[0]


def test_points_on_an_unreadable_image_are_not_measured(site, federation):
    """Nobody knows how large it is, so nothing lies outside of it."""
    site.masks("d")
    site.save("images/a.png", site.rng.integers(0, 256, (50, 50)).astype(np.uint8))
    site.table(
        "points.csv", "image,label,row,column", "a,liver,40,40", "b,liver,1,1", "c,spleen,1,1"
    )
    declared = federation(supervision="point")
    assert inspect_folder(site.root, declared, "x").errors == ()
    (site.root / "images/a.png").write_bytes(b"")
    found = inspect_folder(site.root, declared, "x")
    assert [sentence.partition(" (")[0] for sentence in found.errors] == [
        "image 'a.png' of site 'x' is an empty file"
    ]


def test_files_of_no_format_are_told(site, federation):
    site.masks()
    (site.root / "boxes.json").write_text("[" * 100_000)
    assert inspect_folder(site.root, federation(), "x").problems == (
        Problem(
            "warning",
            "site 'x' has files that are of no known annotation format, and are not read: "
            "'boxes.json'; export them again, or remove them if they are none",
        ),
    )


def test_annotations_outside_the_folder_and_pipes_are_refused(site, federation, tmp_path):
    site.masks()
    (tmp_path / "outside.json").write_text('{"images": [], "annotations": []}')
    (site.root / "export.json").symlink_to(tmp_path / "outside.json")
    outside = (
        "file 'export.json' of site 'x' leads outside its folder by a link; copy the file itself"
    )
    assert inspect_folder(site.root, federation(), "x").errors == (f"{outside} into the folder",)
    site.remove("export.json")
    os.mkfifo(site.root / "notes.json")
    assert "'notes.json'" in inspect_folder(site.root, federation(), "x").warnings[0]


def test_forms_are_counted(site, federation):
    site.masks("d")
    site.table("boxes.csv", "image,label,left,top,right,bottom", "a,liver,1,1,4,4")
    found = inspect_folder(site.root, federation(supervision="box"), "x")
    assert (found.form, found.forms) == ("box", {"box": 3, "mask": 1})
    assert found.looked_at == ("test",)
    found = inspect_folder(site.root, federation(supervision="none"), "x")
    assert (found.form, found.forms) == ("none", {"none": 3, "mask": 1})
    site.table("labels.csv", "image,liver,spleen", *(f"{name},1,0" for name in ("a", "b", "d")))
    found = inspect_folder(site.root, federation(supervision="image"), "x")
    assert (found.form, found.forms) == ("image", {"image": 2, "mask": 1})


# ---------------------------------------------------------------------------------------- warnings


def warnings_of(site, declared, name="x"):
    found = inspect_folder(site.root, declared, name)
    assert found.errors == ()
    read_folder(site.root, declared, name)
    return found.warnings


def test_copies_in_one_split_are_a_warning_and_across_splits_an_error(site, federation):
    site.masks()
    site.save("images/b.png", site.images["a"])
    assert warnings_of(site, federation()) == (
        "images 'a.png' and 'b.png' of site 'x' are the same; remove one if it is the same examination",
    )
    site.save("images/d.png", site.images["c"])
    found = inspect_folder(site.root, federation(), "x")
    assert found.errors == (
        "images 'c.png' and 'd.png' of site 'x' are the same, but one is in 'train' and one in "
        "'test', so a model would be judged on an image it has seen; remove one or keep both in one "
        "split",
    )


def test_images_with_the_same_checksum_are_compared(site, federation, monkeypatch):
    site.masks()
    monkeypatch.setattr(folder_module, "crc32", lambda data: 1)
    assert warnings_of(site, federation()) == ()


def test_constant_images_are_a_warning_and_no_copies(site, federation):
    site.masks()
    site.save("images/a.png", np.full(SIZE, 7, np.uint8))
    site.save("images/d.png", np.full(SIZE, 7, np.uint8))
    assert warnings_of(site, federation()) == (
        "site 'x' has images with one value throughout: 'a.png' and 'd.png'; check them",
    )


def test_the_range_of_deep_images_is_told(site, federation):
    site.masks()
    site.save("images/a.png", site.images["a"].astype(np.uint16) * 16 + 5)
    low, high = (int(edge) * 16 + 5 for edge in (site.images["a"].min(), site.images["a"].max()))
    assert warnings_of(site, federation()) == (
        f"site 'x' has images of more than 8 bits, with values from {low} to {high}; of each, the "
        "range from its 0.5th to its 99.5th percentile becomes 0 to 255: 'a.png'",
    )


def test_empty_masks_and_labels_that_never_occur_are_told(site, federation):
    site.masks(values=(0, 2))
    site.save("masks/b.png", np.zeros(SIZE, np.uint8))
    assert warnings_of(site, federation()) == (
        "site 'x' has masks that mark none of its labels (1 of 4): 'b.png'",
        "site 'x' annotates 'liver', but no training image shows it",
    )


def test_labels_that_are_not_annotated_are_told(site, federation):
    site.masks()
    found = inspect_folder(site.root, federation(annotates=["liver"]), "x")
    assert found.warnings == (
        "site 'x' does not annotate 'spleen', so what its training images show of it is not used: "
        "'a.png', 'b.png' and 'c.png'",
    )
    assert found.labels["spleen"].images == 1, "the test image"


def test_masks_without_an_image_are_told(site, federation):
    site.masks(*"abcdefghij")
    assert warnings_of(site, federation()) == (
        "site 'x' has masks without an image of the same name, which are not read: 'e.png', 'f.png', "
        "'g.png', 'h.png', 'i.png' and 1 more",
    )


def test_the_mask_of_a_refused_image_is_not_without_an_image(site, federation):
    site.masks()
    (site.root / "images/a.png").rename(site.root / "images/a.gif")
    site.table("cases.csv", "image,patient,split", "b,1,train", "c,2,train", "d,3,test")
    found = inspect_folder(site.root, federation(), "x")
    assert len(found.errors) == 1
    assert found.errors[0].startswith("image 'a.gif' of site 'x' has the type '.gif'")
    assert not any("same name" in sentence for sentence in found.warnings)


def test_images_without_boxes_are_told(site, federation):
    site.masks("d")
    site.table(
        "boxes.csv", "image,label,left,top,right,bottom", "a,liver,1,1,4,4", "c,spleen,1,1,4,4"
    )
    assert warnings_of(site, federation(supervision="box")) == (
        "site 'x' has training images without a row in boxes.csv, which means that they show none of "
        "its labels (1 of 3): 'b.png'",
    )
    found = inspect_folder(site.root, federation(supervision="box"), "x")
    assert found.labels["liver"].images == 2


def test_a_site_without_test_images_is_told(site, federation):
    site.masks()
    site.table("cases.csv", "image,patient,split", *(f"{name},1,train" for name in "abcd"))
    assert warnings_of(site, federation()) == (
        "site 'x' has no test images, so models cannot be judged on its own",
    )


def test_a_common_test_set_can_be_inspected(site, federation):
    site.masks()
    found = inspect_folder(site.root, federation(test="x"), None)
    assert found.problems == ()
    assert found.splits == {"train": 0, "validation": 0, "test": 4}


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize(
    "form", ["mask", "scribble", "box", "image", "none", "classification", "no classification"]
)
def test_the_estimate_of_memory_is_what_is_read(site, federation, form):
    site.masks()
    site.table("boxes.csv", "image,label,left,top,right,bottom", "a,liver,1,1,4,4")
    site.table("labels.csv", "image,liver,spleen", *(f"{name},1,0" for name in "abcd"))
    declared = federation(supervision=form) if "class" not in form else None
    if declared is None:
        supervision = "none" if form.startswith("no") else "image"
        declared = federation(task="classification", supervision=supervision)
    data = read_folder(site.root, declared, "x")
    held = [data.train.image, data.test.image, data.test.truth, data.view.target]
    held += [data.view.known_labels, data.view.known_pixels, data.view.constraint]
    taken = sum(array.nbytes for array in held if array is not None)
    assert inspect_folder(site.root, declared, "x").memory == taken
