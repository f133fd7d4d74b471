from __future__ import annotations

import hashlib
import os
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageFile

from consilia.datasets.contract import Cases
from consilia.errors import DataError
from consilia.readers import folder as folder_module
from consilia.readers.folder import read_folder
from consilia.readers.inspect import inspect_folder
from consilia.readers.site import load_common, load_site
from consilia.weaken import weaken

SIZE = (8, 10)
SEEN = 255
ABSENT = "image,liver,spleen"


# ------------------------------------------------------------------------------- what can be read


def test_masks_give_targets_truth_and_test_cases(site, federation):
    masks = site.masks()
    data = read_folder(site.root, federation(), "x")
    assert data.train.case == ("a", "b", "c")
    assert data.train.group == ("1", "1", "2")
    assert data.train.image.shape == (3, 1, *SIZE)
    assert (data.train.image[1, 0] == site.images["b"]).all()
    assert (data.view.target == np.stack([masks[name] for name in "abc"])).all()
    assert data.view.known_labels.all()
    assert data.view.known_pixels is None
    assert data.view.constraint is None
    assert data.train.truth is data.view.target
    assert data.validation is None
    assert data.test.case == ("d",)
    assert data.test.group == ("3",)
    assert (data.test.truth == masks["d"]).all()


def test_validation_images_are_named_in_the_table(site, federation):
    masks = site.masks()
    site.table(
        "cases.csv",
        "image,patient,split",
        "a,1,train",
        "b.png,2,validation",
        "c,3,test",
        "d,4,test",
    )
    data = read_folder(site.root, federation(), "x")
    assert data.validation.case == ("b",)
    assert (data.validation.truth[0] == masks["b"]).all()
    assert data.test.case == ("c", "d")


def test_without_a_table_a_hash_of_each_name_decides(site, federation):
    site.remove("cases.csv")
    names = [f"p{number}" for number in range(40)]
    for name in names:
        site.save(f"images/{name}.png", site.rng.integers(0, 256, SIZE).astype(np.uint8))
    site.masks(*names, *"abcd")
    data = read_folder(site.root, federation(), "x")

    def drawn(name):
        return int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) / 2**64

    assert data.test.case == tuple(sorted(n for n in [*names, *"abcd"] if drawn(n) < 0.2))
    assert 2 <= len(data.test) <= 16
    assert data.train.group == data.train.case
    assert not set(data.test.case) & set(data.train.case)


def test_labels_that_a_site_does_not_annotate_are_hidden_in_training_and_kept_in_testing(
    site, federation
):
    masks = site.masks()
    data = read_folder(site.root, federation(annotates=["spleen"]), "x")
    assert (data.view.target[0] == np.where(masks["a"] == 2, 2, 0)).all()
    assert (data.view.known_labels == [False, True]).all()
    assert data.train.truth is None
    assert (data.test.truth[0] == masks["d"]).all()


def test_incomplete_masks_are_no_truth(site, federation):
    site.masks()
    data = read_folder(site.root, federation(complete=False), "x")
    assert data.train.truth is None
    assert data.view.known_labels.all()


@pytest.mark.parametrize("form", ["scribble", "point", "block"])
def test_sparse_forms_know_only_the_marked_pixels(site, federation, form):
    marks = site.masks("a", "b", "c", values=(0, 1, 2, SEEN))
    test = site.masks("d")
    data = read_folder(site.root, federation(supervision=form, annotates=["liver"]), "x")
    for at, name in enumerate("abc"):
        assert (data.view.known_pixels[at] == (marks[name] != SEEN)).all()
        assert (data.view.target[at] == np.where(marks[name] == 1, 1, 0)).all()
    assert data.view.constraint is None
    assert data.train.truth is None
    assert (data.test.truth[0] == test["d"]).all()


def test_a_single_label_may_be_255(site, federation):
    masks = site.masks(values=(0, 255))
    data = read_folder(site.root, federation(labels=("liver",)), "x")
    assert (data.view.target[2] == (masks["c"] == 255)).all()
    assert (data.test.truth[0] == (masks["d"] == 255)).all()


def test_image_tags_bound_where_labels_may_be(site, federation):
    site.masks("d")
    site.table("labels.csv", ABSENT, "a,1,0", "b.png,,1.0", "c,0,")
    data = read_folder(site.root, federation(supervision="image"), "x")
    assert data.view.known_labels.tolist() == [[True, True], [False, True], [True, False]]
    assert not data.view.target.any()
    assert not data.view.known_pixels.any()
    assert data.view.constraint.shape == (3, 2, *SIZE)
    bounds = data.view.constraint.all(axis=(2, 3))
    assert bounds.tolist() == [[True, False], [True, True], [False, True]]
    assert (data.view.constraint.any(axis=(2, 3)) == bounds).all()


@pytest.mark.parametrize("task", ["segmentation", "classification"])
def test_a_site_without_labels_needs_no_annotation_of_training_images(site, federation, task):
    site.masks("d")
    site.table("labels.csv", ABSENT, "d,1,0")
    data = read_folder(site.root, federation(task=task, exclusive=True, supervision="none"), "x")
    assert not data.view.known_labels.any()
    assert not data.view.target.any()
    assert not data.view.supervises
    assert len(data.test) == 1


@pytest.mark.parametrize("sparsity", ["dense", "medium"])
@pytest.mark.parametrize("annotates", [None, ["spleen"]])
def test_boxes_give_the_same_view_as_weakening(site, federation, sparsity, annotates):
    truth = np.zeros((3, 32, 40), dtype=np.uint8)
    truth[0, 4:20, 6:30] = 1
    truth[0, 8:14, 10:20] = 2
    truth[1, 20:30, 2:9] = 2
    image = site.rng.integers(0, 256, (3, 1, 32, 40)).astype(np.uint8)
    cases = Cases(image, truth, ("a", "b", "c"), ("1", "1", "2"))
    declared = federation(
        supervision="box",
        sparsity=sparsity,
        annotates=annotates,
        image={"size": (32, 40), "channels": 1},
    )
    expected, provenance = weaken(cases, declared.labels, declared["x"], seed=0)
    rows = ["image,label,left,top,right,bottom"]
    for at, name in enumerate(cases.case):
        site.save(f"images/{name}.png", image[at, 0])
        for label, box in provenance.marks[name]["boxes"].items():
            if box is not None:
                rows.append(
                    f"{name},{label},{box['left']},{box['top']},{box['right']},{box['bottom']}"
                )
    site.table("boxes.csv", *rows)
    site.masks("d")
    view = read_folder(site.root, declared, "x").view
    for field in ("target", "known_labels", "known_pixels", "constraint"):
        assert (getattr(view, field) == getattr(expected, field)).all(), field


def test_several_boxes_of_a_label_are_united(site, federation):
    site.masks("d")
    site.table(
        "boxes.csv",
        "image,label,left,top,right,bottom",
        "a,liver,0,0,2,2",
        "a,liver,6,4,9.0,7",
        "a,spleen,7,0,9,2",
    )
    view = read_folder(site.root, federation(supervision="box"), "x").view
    expected = np.zeros((2, *SIZE), dtype=bool)
    expected[0, 0:3, 0:3] = True
    expected[0, 4:8, 6:10] = True
    expected[1, 0:3, 7:10] = True
    assert (view.constraint[0] == expected).all()
    assert view.target[0, 1, 1] == 1
    assert view.target[0, 5, 7] == 1
    assert view.target[0, 1, 8] == 2
    for label in (1, 2):
        assert expected[label - 1][view.target[0] == label].all()
    assert view.known_pixels[1].all(), "an image without a row shows none of the labels"
    assert not view.target[1].any()
    assert not view.constraint[1].any()


def test_boxes_are_scaled_with_their_images_and_never_shrink(site, federation):
    site.save("images/a.png", site.rng.integers(0, 256, (16, 30)).astype(np.uint8))
    site.masks("d")
    site.table("boxes.csv", "image,label,left,top,right,bottom", "a,liver,7,3,12,4")
    view = read_folder(site.root, federation(supervision="box"), "x").view
    expected = np.zeros(SIZE, dtype=bool)
    expected[1:3, 2:5] = True
    assert (view.constraint[0, 0] == expected).all()


def test_classification_reads_one_column_per_label(site, federation):
    site.table("labels.csv", "image,spleen,liver", "a,1,0", "b,,1", "c,0,", "d,1,1")
    declared = federation(task="classification", exclusive=False, supervision="image")
    data = read_folder(site.root, declared, "x")
    assert data.view.target.tolist() == [[0, 1], [1, 0], [0, 0]]
    assert data.view.known_labels.tolist() == [[True, True], [True, False], [False, True]]
    assert data.train.truth is None
    assert data.test.truth.tolist() == [[1, 1]]


def test_of_exclusive_labels_one_says_all_about_the_others(site, federation):
    site.table("labels.csv", "image,liver,spleen,kidney", "a,1,,", "b,0,,", "c,,1,", "d,,,1")
    declared = federation(
        task="classification",
        labels=("liver", "spleen", "kidney"),
        supervision="image",
        annotates=["liver", "spleen"],
    )
    data = read_folder(site.root, declared, "x")
    assert data.view.target.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert data.view.known_labels.tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert data.test.truth.tolist() == [[0, 0, 1]]


def test_fully_known_tags_are_the_truth(site, federation):
    site.table("labels.csv", ABSENT, "a,1,0", "b,0,1", "c,1,0", "d,0,1")
    data = read_folder(site.root, federation(task="classification", supervision="image"), "x")
    assert data.train.truth.tolist() == [[1, 0], [0, 1], [1, 0]]


def test_all_cases_of_a_common_test_set_are_test_cases(site, federation):
    masks = site.masks()
    data = read_folder(site.root, federation(test="x"), None)
    assert data.test.case == ("a", "b", "c", "d")
    assert data.test.group == ("1", "1", "2", "3")
    assert (data.test.truth == np.stack(list(masks.values()))).all()
    assert len(data.train) == len(data.view) == 0
    site.remove("cases.csv")
    assert read_folder(site.root, federation(test="x"), None).test.group == ("a", "b", "c", "d")


def test_hidden_files_and_links_inside_the_folder_are_fine(site, federation):
    site.masks()
    (site.root / "images/.DS_Store").write_bytes(b"\0")
    (site.root / "images/Thumbs.db").write_bytes(b"\0")
    (site.root / "raw.png").write_bytes((site.root / "images/a.png").read_bytes())
    site.remove("images/a.png")
    (site.root / "images/a.png").symlink_to("../raw.png")
    data = read_folder(site.root, federation(), "x")
    assert (data.train.image[0, 0] == site.images["a"]).all()


def test_the_site_folder_itself_may_be_a_link(site, federation, tmp_path):
    site.masks()
    (tmp_path / "link").symlink_to(site.root)
    assert len(read_folder(tmp_path / "link", federation(), "x").train) == 3


def test_tables_may_have_a_byte_order_mark_and_spaces(site, federation):
    site.masks()
    text = (
        "\ufeffimage, patient, split\r\n\r\na , 1, Train\r\nb,1,train\r\nc,2,train\r\nd,3,test\r\n"
    )
    (site.root / "cases.csv").write_bytes(text.encode())
    assert read_folder(site.root, federation(), "x").train.group == ("1", "1", "2")


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    drawn=arrays.arrays(np.uint8, (4, *SIZE), elements=st.integers(0, 2)),
    suffix=st.sampled_from([".png", ".tif", ".npy", ".bmp"]),
)
def test_masks_of_the_federations_size_come_back_as_they_are(site, federation, drawn, suffix):
    for old in (site.root / "masks").glob("*"):
        old.unlink()
    for name, mask in zip("abcd", drawn, strict=True):
        site.save(f"masks/{name}{suffix}", mask)
    data = read_folder(site.root, federation(), "x")
    assert (data.view.target == drawn[:3]).all()
    assert (data.test.truth == drawn[3:]).all()


@pytest.mark.parametrize("kind", ["I;16", "P", "1", "bool.npy", "int64.npy", "float.npy", "F"])
def test_masks_may_be_stored_in_any_way_that_keeps_whole_numbers(site, federation, kind):
    values = site.masks(values=(0, 1))["a"]
    site.remove("masks/a.png")
    stored = {
        "I;16": lambda: Image.fromarray(values.astype(np.uint16)).save(site.root / "masks/a.png"),
        "P": lambda: _indexed(values).save(site.root / "masks/a.png"),
        "1": lambda: Image.fromarray(values.astype(bool)).save(site.root / "masks/a.png"),
        "bool.npy": lambda: np.save(site.root / "masks/a.npy", values.astype(bool)),
        "int64.npy": lambda: np.save(site.root / "masks/a.npy", values.astype(np.int64)),
        "float.npy": lambda: np.save(site.root / "masks/a.npy", values[..., None] * 1.0),
        "F": lambda: Image.fromarray(values.astype(np.float32)).save(site.root / "masks/a.tif"),
    }
    stored[kind]()
    assert (read_folder(site.root, federation(), "x").view.target[0] == values).all()


def _indexed(values: np.ndarray) -> Image.Image:
    image = Image.fromarray(values)
    image.putpalette([200, 0, 0, 0, 200, 0])
    assert image.mode == "P"
    return image


def test_thin_marks_survive_a_smaller_size(site, federation):
    marks = np.full((32, 40), SEEN, dtype=np.uint8)
    marks[3, 3], marks[0:2, 20:22], marks[30, 37] = 1, 0, 2
    marks[2, 23] = 1
    for name in "abc":
        site.save(f"images/{name}.png", site.rng.integers(0, 256, (32, 40)).astype(np.uint8))
        site.save(f"masks/{name}.png", marks)
    site.masks("d")
    view = read_folder(site.root, federation(supervision="point"), "x").view
    known = {
        (r, c): int(view.target[0, r, c]) for r, c in np.argwhere(view.known_pixels[0]).tolist()
    }
    assert known == {(0, 0): 1, (0, 5): 1, (7, 9): 2}


# ------------------------------------------------------------------------------ what cannot be read


def _whole(site):
    site.masks()


def _cut(path: Path, part: float = 0.6) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])


def _png_that_claims(path: Path, width: int, height: int) -> None:
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


class _Explosive:
    def __reduce__(self):
        return (os.mkdir, ("/tmp/consilia-must-never-exist",))


def _save_objects(site) -> None:
    site.remove("images/a.png")
    np.save(site.root / "images/a.npy", np.array([[_Explosive()]], dtype=object), allow_pickle=True)


def _save_pickle(site) -> None:
    site.remove("images/a.png")
    (site.root / "images/a.npy").write_bytes(pickle.dumps(_Explosive()))


def _replace_image(site, name: str, pixels: np.ndarray) -> None:
    site.remove("images/a.png")
    site.save(name, pixels)


def _link_outside(site, name: str) -> None:
    outside = site.root.parent / "secret"
    outside.write_bytes((site.root / name).read_bytes())
    site.remove(name)
    (site.root / name).symlink_to(outside)


def _link_folder_outside(site) -> None:
    (site.root / "images").rename(site.root.parent / "elsewhere")
    (site.root / "images").symlink_to(site.root.parent / "elsewhere")


def _with_nan(value: float) -> np.ndarray:
    pixels = np.ones(SIZE, dtype=np.float32)
    pixels[2, 3] = value
    return pixels


def _many_pages(site) -> None:
    site.remove("images/a.png")
    page = Image.fromarray(site.images["a"])
    page.save(site.root / "images/a.tif", save_all=True, append_images=[page, page])


TYPES = ".png, .jpg, .jpeg, .tif, .tiff, .bmp, .npy, .nii, .nii.gz, .dcm"
DAMAGED = "cannot be read; it is damaged, cut short or of another type: export it again"
MAP = "map its values to 0 to 2"
SEG = [
    (
        "folder missing",
        lambda s: s.root.rename(s.root.parent / "y"),
        "folder '{root}' of site 'x' does not exist; check `data` and where relative paths begin",
    ),
    (
        "folder is a file",
        lambda s: (s.root.rename(s.root.parent / "y"), s.root.write_text("")),
        "folder '{root}' of site 'x' is not a folder; check `data` and where relative paths begin",
    ),
    (
        "no images folder",
        lambda s: (s.root / "images").rename(s.root / "pictures"),
        "folder '{root}' of site 'x' has no folder 'images'; found 4 images in 'pictures': rename it "
        "to 'images' or link it",
    ),
    (
        "no images",
        lambda s: s.remove(*(f"images/{n}.png" for n in "abcd")),
        f"site 'x' has no images that can be read in 'images'; expected {TYPES}",
    ),
    (
        "image cut short",
        lambda s: _cut(s.root / "images/a.png"),
        f"image 'a.png' of site 'x' {DAMAGED}",
    ),
    (
        "image is text",
        lambda s: (s.root / "images/a.png").write_text("hello"),
        f"image 'a.png' of site 'x' {DAMAGED}",
    ),
    (
        "image is empty",
        lambda s: (s.root / "images/a.png").write_bytes(b""),
        "image 'a.png' of site 'x' is an empty file (0 bytes); copy or export it again",
    ),
    (
        "image of a format that is not listed",
        lambda s: Image.fromarray(s.images["a"]).save(s.root / "images/a.png", format="GIF"),
        f"image 'a.png' of site 'x' {DAMAGED}",
    ),
    (
        "bomb",
        lambda s: _png_that_claims(s.root / "images/a.png", 16000, 16000),
        "image 'a.png' of site 'x' claims to have a huge number of pixels; make it smaller or crop it",
    ),
    (
        "half a bomb",
        lambda s: _png_that_claims(s.root / "images/a.png", 10000, 12000),
        "image 'a.png' of site 'x' is 10000 x 12000 pixels (width x height); expected 1 to 16384 a "
        "side and 89478485 in all: make it smaller or crop it",
    ),
    (
        "image too long",
        lambda s: _png_that_claims(s.root / "images/a.png", 16385, 10),
        "image 'a.png' of site 'x' is 16385 x 10 pixels (width x height); expected 1 to 16384 a side "
        "and 89478485 in all: make it smaller or crop it",
    ),
    (
        "NaN",
        lambda s: _replace_image(s, "images/a.tif", _with_nan(np.nan)),
        "image 'a.tif' of site 'x' holds 1 values that are NaN or infinite; expected finite numbers: "
        "replace them before you save it",
    ),
    (
        "infinity",
        lambda s: _replace_image(s, "images/a.npy", _with_nan(-np.inf)),
        "image 'a.npy' of site 'x' holds 1 values that are NaN or infinite; expected finite numbers: "
        "replace them before you save it",
    ),
    (
        "unsupported type",
        lambda s: (s.root / "images/e.gif").write_bytes(b"GIF89a"),
        f"image 'e.gif' of site 'x' has the type '.gif'; expected one of {TYPES}: convert or remove it",
    ),
    (
        "no type",
        lambda s: (s.root / "images/README").write_text("hello"),
        f"image 'README' of site 'x' has no file type; expected one of {TYPES}: convert or remove it",
    ),
    (
        "folder among images",
        lambda s: (s.root / "images/e.png").mkdir(),
        "image 'e.png' of site 'x' is not a file; expected one file for each image: remove it",
    ),
    (
        "pipe among images",
        lambda s: os.mkfifo(s.root / "images/e.png"),
        "image 'e.png' of site 'x' is not a file; expected one file for each image: remove it",
    ),
    (
        "unprintable name",
        lambda s: s.save("images/e\x1b[31m.png", s.images["a"]),
        "image 'e?[31m.png' of site 'x' has a name with characters that cannot be printed; rename it",
    ),
    (
        "two types",
        lambda s: s.save("images/a.bmp", s.images["a"]),
        "images 'a.bmp' and 'a.png' of site 'x' have the same name but for their type; remove or "
        "rename one",
    ),
    (
        "several pages",
        _many_pages,
        "image 'a.tif' of site 'x' holds 3 pages; expected one image in each file: split it",
    ),
    (
        "color mode",
        lambda s: (
            s.remove("images/a.png"),
            Image.new("CMYK", SIZE[::-1]).save(s.root / "images/a.jpg"),
        ),
        "image 'a.jpg' of site 'x' has the color mode 'CMYK'; expected grey or RGB: convert it",
    ),
    (
        "channels",
        lambda s: s.save("images/a.png", np.zeros((*SIZE, 4), np.uint8)),
        "image 'a.png' of site 'x' has 4 channels, but the federation's images have 1; only grey and "
        "RGB are turned into each other: convert it",
    ),
    (
        "pickled objects",
        _save_objects,
        "image 'a.npy' of site 'x' holds pickled Python objects, which are never opened; save plain "
        "numbers",
    ),
    ("pickle", _save_pickle, f"image 'a.npy' of site 'x' {DAMAGED}"),
    (
        "complex",
        lambda s: _replace_image(s, "images/a.npy", np.zeros(SIZE, complex)),
        "image 'a.npy' of site 'x' holds values of type 'complex128'; save plain numbers",
    ),
    (
        "four dimensions",
        lambda s: _replace_image(s, "images/a.npy", np.zeros((1, 1, *SIZE))),
        "image 'a.npy' of site 'x' has 4 dimensions; expected height x width, or height x width x "
        "channels: save one image in each file",
    ),
    (
        "channels first",
        lambda s: _replace_image(s, "images/a.npy", np.zeros((3, 8, 32))),
        "image 'a.npy' of site 'x' has 32 channels; expected 1 to 16 in the last of three dimensions "
        "(height x width x channels): change their order",
    ),
    (
        "no pixels",
        lambda s: _replace_image(s, "images/a.npy", np.zeros((0, 4))),
        "image 'a.npy' of site 'x' is 4 x 0 pixels (width x height); expected 1 to 16384 a side and "
        "89478485 in all: make it smaller or crop it",
    ),
    (
        "array cut short",
        lambda s: (
            _replace_image(s, "images/a.npy", np.zeros(SIZE)),
            _cut(s.root / "images/a.npy"),
        ),
        f"image 'a.npy' of site 'x' {DAMAGED}",
    ),
    (
        "no masks folder",
        lambda s: (s.root / "masks").rename(s.root / "labels"),
        "site 'x' has no folder 'masks', but its supervision is 'mask'; put its masks there",
    ),
    (
        "mask missing",
        lambda s: s.remove("masks/b.png"),
        "image 'b.png' of site 'x' has no mask; add 'masks/b.png' or remove the image",
    ),
    (
        "test mask missing",
        lambda s: s.remove("masks/d.png"),
        "test image 'd.png' of site 'x' has no mask, but test images need complete labels; add "
        "'masks/d.png' or put its patient in 'train' in cases.csv",
    ),
    (
        "mask of another size",
        lambda s: s.save("masks/a.png", np.zeros((10, 8), np.uint8)),
        "mask 'a.png' of site 'x' is 8 x 10 pixels (width x height), but its image is 10 x 8; export "
        "both in the same size",
    ),
    (
        "mask in color",
        lambda s: s.save("masks/a.png", np.zeros((*SIZE, 3), np.uint8)),
        "mask 'a.png' of site 'x' has 3 channels, but a mask has one, with 0 for background and 1 for "
        "the first label; save it as a grey or indexed image",
    ),
    (
        "mask as JPEG",
        lambda s: s.save("masks/a.jpg", np.zeros(SIZE, np.uint8)),
        "mask 'a.jpg' of site 'x' has the type '.jpg'; expected one of .png, .tif, .tiff, .bmp, "
        ".npy, .nii, .nii.gz, .dcm: convert or remove it",
    ),
    (
        "mask as JPEG in disguise",
        lambda s: s.save("masks/a.png", np.zeros(SIZE, np.uint8), format="JPEG"),
        f"mask 'a.png' of site 'x' {DAMAGED}",
    ),
    (
        "class too high",
        lambda s: s.save("masks/a.png", np.full(SIZE, 7, np.uint8)),
        "mask 'a.png' of site 'x' holds class 7, but the federation has 2 labels ('liver', 'spleen'); "
        + MAP,
    ),
    (
        "class of 16 bits",
        lambda s: s.save("masks/a.png", np.full(SIZE, 257, np.uint16)),
        "mask 'a.png' of site 'x' holds class 257, but the federation has 2 labels ('liver', "
        f"'spleen'); {MAP}",
    ),
    (
        "255 with two labels",
        lambda s: s.save("masks/a.png", np.full(SIZE, 255, np.uint8)),
        "mask 'a.png' of site 'x' holds 255, which stands for a label only where the federation has "
        f"one, and it has 2; {MAP}",
    ),
    (
        "negative class",
        lambda s: (s.remove("masks/a.png"), s.save("masks/a.npy", np.full(SIZE, -1))),
        "mask 'a.npy' of site 'x' holds the value -1; map its values to 0, 1, 2, ...",
    ),
    (
        "half a class",
        lambda s: (s.remove("masks/a.png"), s.save("masks/a.npy", np.full(SIZE, 0.5))),
        "mask 'a.npy' of site 'x' holds values that are not whole numbers; map its values to 0, 1, 2, "
        "...",
    ),
    (
        "NaN in a mask",
        lambda s: (s.remove("masks/a.png"), s.save("masks/a.npy", np.full(SIZE, np.nan))),
        "mask 'a.npy' of site 'x' holds values that are not whole numbers; map its values to 0, 1, 2, "
        "...",
    ),
    (
        "image outside",
        lambda s: _link_outside(s, "images/a.png"),
        "image 'a.png' of site 'x' leads outside its folder by a link; copy the file itself into the "
        "folder",
    ),
    (
        "mask outside",
        lambda s: _link_outside(s, "masks/a.png"),
        "mask 'a.png' of site 'x' leads outside its folder by a link; copy the file itself into the "
        "folder",
    ),
    (
        "table outside",
        lambda s: _link_outside(s, "cases.csv"),
        "cases.csv of site 'x' leads outside its folder by a link; copy the file itself into the "
        "folder",
    ),
    (
        "images folder outside",
        _link_folder_outside,
        "folder 'images' of site 'x' leads outside its folder by a link; copy the file itself into "
        "the folder",
    ),
    (
        "link to nowhere",
        lambda s: (s.remove("cases.csv"), (s.root / "cases.csv").symlink_to("gone.csv")),
        "cases.csv of site 'x' is not a file; replace it by a table of comma-separated values",
    ),
    (
        "link in a circle",
        lambda s: (s.root / "images/e.png").symlink_to("e.png"),
        "image 'e.png' of site 'x' leads outside its folder by a link; copy the file itself into the "
        "folder",
    ),
    (
        "image not listed",
        lambda s: s.table("cases.csv", "image,patient,split", "a,1,train", "d,3,test"),
        "cases.csv of site 'x' does not list the images 'b.png' and 'c.png'; add a row for each image "
        "or remove it",
    ),
    (
        "no column",
        lambda s: s.table("cases.csv", "image,split", "a,train"),
        "cases.csv of site 'x' has no column 'patient'; expected image, patient, split",
    ),
    (
        "semicolons",
        lambda s: s.table("cases.csv", "image;patient;split", "a;1;train"),
        "cases.csv of site 'x' has the unknown column 'image;patient;split' (known, separated by "
        "commas: image, patient, split)",
    ),
    (
        "misspelt column",
        lambda s: s.table("cases.csv", "image,patient,splt", "a,1,train"),
        "cases.csv of site 'x' has the unknown column 'splt'; did you mean 'split'? (known, separated "
        "by commas: image, patient, split)",
    ),
    (
        "column twice",
        lambda s: s.table("cases.csv", "image,patient,split,split", "a,1,train,train"),
        "cases.csv of site 'x' has the column 'split' more than once; keep one",
    ),
    (
        "cells missing",
        lambda s: s.table("cases.csv", "image,patient,split", "a,1"),
        "cases.csv of site 'x', line 2, has 2 cells; expected 3",
    ),
    (
        "bad split",
        lambda s: s.table("cases.csv", "image,patient,split", "a,1,training"),
        "cases.csv of site 'x', line 2, has the split 'training'; expected 'train', 'validation' or "
        "'test'; did you mean 'train'?",
    ),
    (
        "no patient",
        lambda s: s.table("cases.csv", "image,patient,split", "a,,train"),
        "cases.csv of site 'x', line 2, has no patient; expected a name or number",
    ),
    (
        "unknown image",
        lambda s: s.table("cases.csv", "image,patient,split", "../../etc/passwd,1,train"),
        "cases.csv of site 'x', line 2, names the image '../../etc/passwd', which is not in 'images'; "
        "correct or remove the row",
    ),
    (
        "row twice",
        lambda s: s.table("cases.csv", "image,patient,split", "a,1,train", "a.png,2,test"),
        "cases.csv of site 'x', line 3, lists the image 'a' again (first in line 2); keep one row for "
        "each image",
    ),
    (
        "not UTF-8",
        lambda s: (s.root / "cases.csv").write_bytes(
            "image,patient,split\na,Müller,train".encode("cp1252")
        ),
        "cases.csv of site 'x' is not UTF-8 text; save it as 'CSV UTF-8'",
    ),
    (
        "empty table",
        lambda s: (s.root / "cases.csv").write_text("\n"),
        "cases.csv of site 'x' is empty; expected the first line 'image,patient,split'",
    ),
    (
        "endless cell",
        lambda s: (s.root / "cases.csv").write_text("image,patient,split\n" + "a" * 140_000),
        "cases.csv of site 'x' is not a table of comma-separated values: field larger than field "
        "limit (131072)",
    ),
    (
        "patient leaks",
        lambda s: s.table(
            "cases.csv", "image,patient,split", "a,1,train", "b,1,test", "c,2,train", "d,3,test"
        ),
        "patient '1' of site 'x' is in the splits 'train' and 'test', so a model would be judged on a "
        "patient it has seen; keep each patient in one split",
    ),
    (
        "image leaks",
        lambda s: s.save("images/d.png", s.images["b"]),
        "images 'b.png' and 'd.png' of site 'x' are the same, but one is in 'train' and one in "
        "'test', so a model would be judged on an image it has seen; remove one or keep both in one "
        "split",
    ),
    (
        "nothing to train on",
        lambda s: s.table("cases.csv", "image,patient,split", *(f"{n},1,test" for n in "abcd")),
        "site 'x' has no training images; put some patients in 'train' in cases.csv",
    ),
]


def refused(site, declared, name="x") -> str:
    """Return the sentence with which a folder is refused; an inspection must say the same first."""
    with pytest.raises(DataError) as problem:
        read_folder(site.root, declared, name)
    sentence = str(problem.value)
    assert inspect_folder(site.root, declared, name).errors[0].partition(" (also ")[0] == sentence
    assert "\n" not in sentence
    assert not sentence.endswith(".") or sentence.endswith("...")
    return sentence


@pytest.mark.parametrize(("spoil", "sentence"), [case[1:] for case in SEG], ids=[c[0] for c in SEG])
def test_what_cannot_be_read_is_refused_with_one_sentence(site, federation, spoil, sentence):
    site.masks()
    spoil(site)
    assert refused(site, federation()) == sentence.replace("{root}", str(site.root))
    assert not Path("/tmp/consilia-must-never-exist").exists()


BOXES = "image,label,left,top,right,bottom"
MANY = [f"a,liver,{i % 10},0,9,{b}" for b in range(8) for i in range(10)]
MANY += [f"a,liver,{i % 10},1,9,{b}" for b in range(1, 8) for i in range(10)]
MANY += [f"a,liver,{i % 10},2,9,{b}" for b in range(2, 8) for i in range(10)]
MANY += [f"a,liver,{i % 10},3,9,{b}" for b in range(3, 8) for i in range(9)]
BOX = [
    (
        "no boxes",
        None,
        "site 'x' has no table boxes.csv, but its supervision is 'box'; add one with the columns "
        "image, label, left, top, right, bottom",
    ),
    (
        "no column",
        ["image,label,left,top,right", "a,liver,1,1,2"],
        "boxes.csv of site 'x' has no column 'bottom'; expected image, label, left, top, right, bottom",
    ),
    (
        "right < left",
        [BOXES, "a,liver,5,1,4,2"],
        "boxes.csv of site 'x', line 2, has right 4 < left 5; expected left <= right, both included: "
        "swap them",
    ),
    (
        "bottom < top",
        [BOXES, "a,liver,1,2,4,1"],
        "boxes.csv of site 'x', line 2, has bottom 1 < top 2; expected top <= bottom, both included: "
        "swap them",
    ),
    (
        "outside",
        [BOXES, "a,liver,5,1,10,2"],
        "boxes.csv of site 'x', line 2, has a box of columns 5 to 10 and rows 1 to 2, but image "
        "'a.png' has columns 0 to 9 and rows 0 to 7; give both ends in pixels, counted from 0",
    ),
    (
        "negative",
        [BOXES, "a,liver,-1,1,3,2"],
        "boxes.csv of site 'x', line 2, has a box of columns -1 to 3 and rows 1 to 2, but image "
        "'a.png' has columns 0 to 9 and rows 0 to 7; give both ends in pixels, counted from 0",
    ),
    (
        "unknown label",
        [BOXES, "a,livr,1,1,3,2"],
        "boxes.csv of site 'x', line 2, has the label 'livr', but the federation's labels are 'liver' "
        "and 'spleen'; did you mean 'liver'?",
    ),
    (
        "not a number",
        [BOXES, "a,liver,1,1,3.5,2"],
        "boxes.csv of site 'x', line 2, has '3.5' for 'right'; expected a whole number",
    ),
    (
        "not even finite",
        [BOXES, "a,liver,1,1,inf,2"],
        "boxes.csv of site 'x', line 2, has 'inf' for 'right'; expected a whole number",
    ),
    (
        "unknown image",
        [BOXES, "e,liver,1,1,3,2"],
        "boxes.csv of site 'x', line 2, names the image 'e', which is not in 'images'; correct or "
        "remove the row",
    ),
    (
        "twice",
        [BOXES, "a,liver,1,1,3,2", "a.png,liver,1,1,3.0,2"],
        "boxes.csv of site 'x', line 3, repeats line 2; keep one of them",
    ),
    (
        "too many",
        [BOXES, *MANY],
        "image 'a.png' of site 'x' has 255 boxes; expected at most 254: unite some of them",
    ),
]


@pytest.mark.parametrize(("rows", "sentence"), [case[1:] for case in BOX], ids=[c[0] for c in BOX])
def test_boxes_that_cannot_be_read_are_refused(site, federation, rows, sentence):
    site.masks("d")
    if rows:
        site.table("boxes.csv", *rows)
    assert refused(site, federation(supervision="box")) == sentence


TAGS = "image,liver,spleen"
COLUMNS = "(known, separated by commas: image, liver, spleen)"
TAG = [
    (
        "no labels",
        None,
        "site 'x' has no table labels.csv, which says what its images show; add one with the columns "
        "image, liver, spleen",
    ),
    (
        "no column",
        ["image,liver", "a,1"],
        "labels.csv of site 'x' has no column 'spleen'; expected image, liver, spleen",
    ),
    (
        "unknown label",
        ["image,liver,splen", "a,1,0"],
        f"labels.csv of site 'x' has the unknown column 'splen'; did you mean 'spleen'? {COLUMNS}",
    ),
    (
        "bad value",
        [TAGS, "a,-1,0"],
        "labels.csv of site 'x', line 2, has '-1' for 'liver'; expected 1 (present), 0 (absent) or "
        "blank (unknown)",
    ),
    (
        "unknown image",
        [TAGS, "e,1,0"],
        "labels.csv of site 'x', line 2, names the image 'e', which is not in 'images'; correct or "
        "remove the row",
    ),
    (
        "row twice",
        [TAGS, "a,1,0", "a,0,1"],
        "labels.csv of site 'x', line 3, lists the image 'a' again (first in line 2); keep one row "
        "for each image",
    ),
    (
        "no row",
        [TAGS, "a,1,0", "b,1,0", "d,1,0"],
        "image 'c.png' of site 'x' has no row in labels.csv; add one, blank where nothing is known",
    ),
    (
        "two exclusive labels",
        [TAGS, "a,1,1"],
        "labels.csv of site 'x', line 2, has the labels 'liver' and 'spleen', but labels are "
        "exclusive; keep one or set `exclusive = false`",
    ),
    (
        "no exclusive label",
        [TAGS, "a,0,0"],
        "labels.csv of site 'x', line 2, has none of the labels, but labels are exclusive; keep one "
        "or set `exclusive = false`",
    ),
    (
        "test image with a blank",
        [TAGS, "a,1,", "b,0,", "c,1,0", "d,0,"],
        "test image 'd.png' of site 'x' has no value for 'spleen' in labels.csv, but test images need "
        "all labels; fill it in or put its patient in 'train' in cases.csv",
    ),
]


@pytest.mark.parametrize(("rows", "sentence"), [case[1:] for case in TAG], ids=[c[0] for c in TAG])
def test_tags_that_cannot_be_read_are_refused(site, federation, rows, sentence):
    if rows:
        site.table("labels.csv", *rows)
    declared = federation(task="classification", supervision="image")
    assert refused(site, declared) == sentence


def test_a_scribble_site_tests_on_complete_masks(site, federation):
    site.masks(values=(0, 1, SEEN))
    assert refused(site, federation(supervision="scribble", labels=("liver",))) == (
        "mask 'd.png' of site 'x' holds 255, 'not looked at', but test images need complete labels; "
        "map its values to 0 to 1"
    )


def test_one_label_has_one_value(site, federation):
    site.masks(values=(0, 1, 255))
    assert refused(site, federation(labels=("liver",))) == (
        "mask 'a.png' of site 'x' holds both 1 and 255 for 'liver'; use one of them throughout"
    )
    site.save("masks/a.png", np.full(SIZE, 2, np.uint8))
    assert refused(site, federation(labels=("liver",))) == (
        "mask 'a.png' of site 'x' holds class 2, but the federation has 1 label ('liver'); map its "
        "values to 0 to 1"
    )


def test_a_weak_site_without_masks_is_told_about_its_test_images(site, federation):
    site.table("labels.csv", TAGS, "a,1,0", "b,1,0", "c,1,0")
    assert refused(site, federation(supervision="image")) == (
        "site 'x' has no folder 'masks', but its test images need complete labels; put its masks "
        "there, or put all patients in 'train' in cases.csv"
    )


def test_a_hash_that_leaves_nobody_to_train_on_asks_for_a_table(site, federation):
    site.remove("cases.csv", "images/b.png", "images/c.png", "images/d.png")
    (site.root / "images/a.png").rename(site.root / "images/p1.png")
    name = next(f"p{i}" for i in range(99) if hashlib.sha256(f"p{i}".encode()).digest()[0] < 50)
    (site.root / "images/p1.png").rename(site.root / f"images/{name}.png")
    site.masks(name)
    assert refused(site, federation()) == (
        "site 'x' has no training images; put some patients in 'train' in a table cases.csv"
    )


def test_unknown_sites_and_too_many_labels_are_refused(site, federation):
    assert refused(site, federation(), "xx") == (
        "no site is named 'xx'; did you mean 'x'? (known: 'x')"
    )
    many = tuple(f"l{number}" for number in range(255))
    assert refused(site, federation(labels=many)) == (
        "the federation has 255 labels, but the masks of site 'x' can tell 254 apart; unite some labels"
    )


def test_a_common_test_set_speaks_for_itself(site, federation):
    site.masks("a", "b", "c")
    assert refused(site, federation(test="x"), None) == (
        "test image 'd.png' of the common test set has no mask, but test images need complete labels; "
        "add 'masks/d.png' or remove the image"
    )


def test_other_libraries_cannot_make_pillow_lenient(site, federation, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    site.masks()
    _cut(site.root / "images/a.png")
    assert refused(site, federation()) == f"image 'a.png' of site 'x' {DAMAGED}"
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_large_files_are_decoded_by_threads_to_the_same_result(site, federation, monkeypatch):
    names = [f"p{number:02d}" for number in range(30)]
    for name in names:
        site.save(f"images/{name}.png", site.rng.integers(0, 256, SIZE).astype(np.uint8))
    site.masks(*names, *"abcd")
    site.remove("cases.csv")
    expected = read_folder(site.root, federation(), "x")
    monkeypatch.setattr(folder_module, "LARGE", 0)
    found = read_folder(site.root, federation(), "x")
    assert found.train.case == expected.train.case
    assert (found.train.image == expected.train.image).all()
    assert (found.view.target == expected.view.target).all()


def test_threads_find_the_same_first_problem_and_leave_pillow_as_it_was(
    site, federation, monkeypatch
):
    monkeypatch.setattr(folder_module, "LARGE", 0)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    site.masks()
    site.save("masks/b.png", np.full(SIZE, 9, np.uint8))
    _cut(site.root / "images/c.png")
    assert refused(site, federation()).startswith("mask 'b.png' of site 'x' holds class 9")
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_an_inspection_finds_problems_in_the_order_of_reading(site, federation):
    site.masks()
    site.table(
        "cases.csv", "image,patient,split", "a,1,test", "b,2,validation", "c,3,train", "d,4,train"
    )
    for name in "abcd":
        _cut(site.root / f"images/{name}.png")
    assert refused(site, federation()) == f"image 'c.png' of site 'x' {DAMAGED}"


def test_a_folder_can_be_loaded_as_a_site_of_a_study(site, federation):
    site.masks()
    data = load_site(federation(), "x", site.root.parent, validation=0.5)
    assert len(data.train) + len(data.validation) == 3
    assert load_common(federation(test="x"), site.root.parent).case == ("a", "b", "c", "d")


def test_reading_twice_gives_the_same(site, federation):
    site.masks()
    first, second = (read_folder(site.root, federation(), "x") for _ in range(2))
    assert (first.train.image == second.train.image).all()
    assert first.test.case == second.test.case
