from __future__ import annotations

import gzip
import struct

import nibabel
import numpy as np
import pytest

from consilia.readers.folder import read_folder
from consilia.readers.inspect import inspect_folder
from consilia.readers.nifti import nifti_planes
from consilia.readers.volumes import read_geometry

SIZE = (8, 10)
AFFINE = np.diag([-0.7, -0.7, 2.5, 1.0])


def save(path, voxels, affine=AFFINE, **header):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(voxels, affine)
    for key, value in header.items():
        image.header[key] = value
    nibabel.save(image, path)
    return image


@pytest.fixture
def scans(tmp_path):
    """Return the folder of a site with two volumes of five slices, of which two show something."""
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        save(tmp_path / f"x/images/{name}.nii.gz", rng.integers(0, 900, (10, 8, 5)).astype("i2"))
        mask = np.zeros((10, 8, 5), np.uint8)
        mask[2:5, 1:4, 1] = 1
        mask[6:8, 3:6, 3] = 2
        save(tmp_path / f"x/masks/{name}.nii.gz", mask)
    (tmp_path / "x/cases.csv").write_text("image,patient,split\none,1,train\ntwo.nii.gz,2,test\n")
    return tmp_path / "x"


def test_training_keeps_slices_that_show_something_and_testing_keeps_all(scans, federation):
    data = read_folder(scans, federation(), "x")
    assert data.train.case == ("one:001", "one:003")
    assert data.train.volume == ("one", "one")
    assert data.train.group == ("1", "1")
    assert data.test.case == tuple(f"two:{z:03d}" for z in range(5))
    assert data.view.target[0, 1:4, 2:5].tolist() == [[1] * 3] * 3
    assert (data.view.target[0] == 1).sum() == 9
    assert (data.test.truth[3, 3:6, 6:8] == 2).all()
    assert inspect_folder(scans, federation(), "x").errors == ()


@pytest.mark.parametrize(("keep", "count"), [("keep", 5), ("drop", 2), ("auto", 2)])
def test_empty_slices_can_be_kept_or_dropped(scans, federation, keep, count):
    assert len(read_folder(scans, federation(), "x", empty_slices=keep).train) == count


def test_a_site_declares_what_becomes_of_empty_slices(scans, federation):
    assert len(read_folder(scans, federation(empty_slices="keep"), "x").train) == 5


def test_spacing_follows_the_size_that_images_are_brought_to(scans, federation):
    data = read_folder(scans, federation(image={"size": (16, 40), "channels": 1}), "x")
    assert data.test.spacing.shape == (5, 3)
    assert np.allclose(data.test.spacing[0], [2.5, 0.7 * 8 / 16, 0.7 * 10 / 40])
    assert len(data.test.take(np.array([1, 3])).spacing) == 2


def test_slices_without_a_label_of_the_site_are_empty(scans, federation):
    assert read_folder(scans, federation(annotates=["spleen"]), "x").train.case == ("one:003",)


def test_intensities_are_scaled_over_the_whole_volume(scans, federation):
    voxels = np.zeros((10, 8, 5), np.int16)
    voxels += (np.arange(5) * 200).astype(np.int16)
    voxels[0] += 1
    save(scans / "images/one.nii.gz", voxels)
    data = read_folder(scans, federation(), "x", empty_slices="keep")
    means = data.train.image.mean(axis=(1, 2, 3))
    assert np.allclose(means, [0, 64, 127, 191, 255], atol=1)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "ASL", "SPR", "PIR"])
def test_any_storage_order_gives_the_same_planes_as_nibabel(tmp_path, codes):
    rng = np.random.default_rng(1)
    image = nibabel.Nifti1Image(rng.integers(0, 250, (6, 7, 5)).astype(np.uint8), np.eye(4))
    order = nibabel.orientations.axcodes2ornt(codes)
    stored = image.as_reoriented(
        nibabel.orientations.ornt_transform(nibabel.orientations.axcodes2ornt("RAS"), order)
    )
    path = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.asarray(stored.dataobj), stored.affine), path)
    canonical = nibabel.as_closest_canonical(nibabel.load(path))
    expected = np.asarray(canonical.dataobj)[::-1, ::-1].transpose(2, 1, 0)
    assert np.array_equal(nifti_planes(path, "image"), expected)
    where = read_geometry(path, tmp_path, "image")
    assert where.shape == (5, 7, 6)
    assert np.allclose(where.affine @ [0, 0, 0, 1], canonical.affine @ [5, 6, 0, 1])


def test_a_mask_may_be_stored_in_another_order_than_its_image(scans, federation):
    expected = read_folder(scans, federation(), "x").view.target
    mask = nibabel.load(scans / "masks/one.nii.gz")
    other = nibabel.as_closest_canonical(mask)
    assert not np.array_equal(other.affine, mask.affine)
    nibabel.save(
        nibabel.Nifti1Image(np.asarray(other.dataobj), other.affine), scans / "masks/one.nii.gz"
    )
    assert np.array_equal(read_folder(scans, federation(), "x").view.target, expected)


def test_scaled_and_second_versions_are_read(scans, federation):
    voxels = np.asarray(nibabel.load(scans / "images/one.nii.gz").dataobj)
    before = read_folder(scans, federation(), "x").train.image
    image = nibabel.Nifti2Image(voxels.astype(np.int16), AFFINE)
    image.header.set_slope_inter(2.0, -1024.0)
    (scans / "images/one.nii.gz").unlink()
    nibabel.save(image, scans / "images/one.nii")
    after = read_folder(scans, federation(), "x").train.image
    assert np.abs(after.astype(int) - before).max() <= 1


def test_weak_marks_in_volumes_know_only_what_was_marked(scans, federation):
    mask = np.full((10, 8, 5), 255, np.uint8)
    mask[2:5, 1:4, 1], mask[6, 3, 3] = 1, 0
    save(scans / "masks/one.nii.gz", mask)
    data = read_folder(scans, federation(supervision="scribble"), "x")
    assert len(data.train) == 5
    assert data.view.known_pixels.sum(axis=(1, 2)).tolist() == [0, 9, 0, 1, 0]
    dropped = read_folder(scans, federation(supervision="scribble"), "x", empty_slices="drop")
    assert dropped.train.case == ("one:001", "one:003")


def test_tables_name_slices(scans, federation):
    rows = [f"one:{z:03d},{int(z == 1)},{'' if z == 2 else 0}" for z in range(5)]
    (scans / "labels.csv").write_text("\n".join(["image,liver,spleen", *rows]) + "\n")
    data = read_folder(scans, federation(supervision="image"), "x")
    assert data.view.known_labels[:, 1].tolist() == [True, True, False, True, True]
    (scans / "boxes.csv").write_text("image,label,left,top,right,bottom\none:001,liver,2,1,4,3\n")
    data = read_folder(scans, federation(supervision="box"), "x")
    assert data.view.constraint[:, 0].sum(axis=(1, 2)).tolist() == [0, 9, 0, 0, 0]


# ------------------------------------------------------------------------------ what cannot be read


def cut(path, part=0.6):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])


def shifted(millimetres):
    affine = AFFINE.copy()
    affine[:3, 3] = millimetres
    return affine


def mask_of(shape=(10, 8, 5), **options):
    return lambda root: save(root / "masks/one.nii.gz", np.ones(shape, np.uint8), **options)


def image_of(voxels, name="images/one.nii.gz"):
    return lambda root: save(root / name, voxels)


def bomb(root):
    """Claim 2000 x 2000 x 2000 voxels of 8 bytes in a file of a few hundred bytes."""
    header = bytearray(nibabel.Nifti1Image(np.zeros((2, 2, 2)), AFFINE).header.binaryblock)
    header[40:56] = struct.pack("<8h", 3, 2000, 2000, 2000, 1, 1, 1, 1)
    header[344:348] = b"n+1\0"
    header[108:112] = struct.pack("<f", 352)
    (root / "images/one.nii.gz").write_bytes(gzip.compress(bytes(header) + bytes(4)))


def late(root):
    """Claim that voxels begin after a gigabyte, so that a reader would unpack it."""
    data = bytearray(gzip.decompress((root / "images/one.nii.gz").read_bytes()))
    data[108:112] = struct.pack("<f", 1e9)
    (root / "images/one.nii.gz").write_bytes(gzip.compress(bytes(data)))


DAMAGED = "cannot be read; it is damaged, cut short or of another type: export it again"
IMAGE, MASK = "image 'one.nii.gz' of site 'x'", "mask 'one.nii.gz' of site 'x'"
BAD = [
    ("image cut short", lambda r: cut(r / "images/one.nii.gz"), f"{IMAGE} {DAMAGED}"),
    ("mask cut short", lambda r: cut(r / "masks/one.nii.gz"), f"{MASK} {DAMAGED}"),
    ("not packed", lambda r: (r / "images/one.nii.gz").write_text("hello"), f"{IMAGE} {DAMAGED}"),
    (
        "no header",
        lambda r: (r / "images/one.nii.gz").write_bytes(gzip.compress(bytes(400))),
        f"{IMAGE} {DAMAGED}",
    ),
    (
        "empty",
        lambda r: (r / "images/one.nii.gz").write_bytes(b""),
        f"{IMAGE} is an empty file (0 bytes); copy or export it again",
    ),
    (
        "bomb",
        bomb,
        f"{IMAGE} claims to hold 2000 x 2000 x 2000 values; expected 1 to 268435456: crop or split it",
    ),
    ("late voxels", late, f"{IMAGE} has a header that makes no sense; export it again"),
    (
        "four dimensions",
        image_of(np.zeros((10, 8, 5, 2), np.int16)),
        f"{IMAGE} has 4 dimensions; expected a volume of three: save one in each file",
    ),
    (
        "complex",
        image_of(np.zeros((10, 8, 5), np.complex64)),
        f"{IMAGE} holds values of type 'complex64'; save plain numbers",
    ),
    (
        "NaN",
        image_of(np.full((10, 8, 5), np.nan, np.float32)),
        f"{IMAGE} holds 400 values that are NaN or infinite; expected finite numbers: replace them "
        "before you save it",
    ),
    (
        "mask of another size",
        mask_of((10, 8, 4)),
        f"{MASK} has 4 x 8 x 10 voxels (planes x rows x columns), but its image has 5 x 8 x 10; export "
        "both in the same size",
    ),
    (
        "mask of another spacing",
        mask_of(affine=np.diag([-0.7, -0.7, 5, 1])),
        f"{MASK} has a spacing of 5 x 0.7 x 0.7 mm, but its image has 2.5 x 0.7 x 0.7 mm; export both "
        "in the same geometry",
    ),
    (
        "mask elsewhere",
        mask_of(affine=shifted((0, 12, 0))),
        f"{MASK} lies up to 12 mm from its image; export both in the same geometry",
    ),
    (
        "mask is a picture",
        lambda r: ((r / "masks/one.nii.gz").unlink(), np.save(r / "masks/one.npy", np.zeros(SIZE))),
        "mask 'one.npy' of site 'x' is a single picture, but its image is a volume; save it as "
        ".nii.gz or DICOM SEG",
    ),
    (
        "class too high",
        lambda r: save(r / "masks/one.nii.gz", np.full((10, 8, 5), 7, np.uint8)),
        f"{MASK} holds class 7, but the federation has 2 labels ('liver', 'spleen'); map its values to "
        "0 to 2",
    ),
    (
        "half a class",
        lambda r: save(r / "masks/one.nii.gz", np.full((10, 8, 5), 0.5, np.float32)),
        f"{MASK} holds values that are not whole numbers; map its values to 0, 1, 2, ...",
    ),
    (
        "no mask",
        lambda r: (r / "masks/one.nii.gz").unlink(),
        f"{IMAGE} has no mask; add 'masks/one.nii.gz' or remove the image",
    ),
    (
        "link outside",
        lambda r: (
            (r / "images/one.nii.gz").rename(r.parent / "secret.nii.gz"),
            (r / "images/one.nii.gz").symlink_to(r.parent / "secret.nii.gz"),
        ),
        f"{IMAGE} leads outside its folder by a link; copy the file itself into the folder",
    ),
]


@pytest.mark.parametrize(("spoil", "sentence"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_volumes_that_cannot_be_read_are_refused_once(scans, federation, refusal, spoil, sentence):
    spoil(scans)
    assert refusal(scans, federation()) == sentence
    found = inspect_folder(scans, federation(), "x")
    assert len([s for s in found.errors if s == sentence]) == 1


def test_a_picture_cannot_have_a_volume_as_its_mask(site, federation, refusal):
    site.masks("b", "c", "d")
    save(site.root / "masks/a.nii.gz", np.zeros((10, 8, 1), np.uint8))
    assert refusal(site.root, federation()) == (
        "mask 'a.nii.gz' of site 'x' is a volume, but its image is a single picture; save it as .png"
    )
