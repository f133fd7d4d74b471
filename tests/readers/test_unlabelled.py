"""New images to predict: pictures and volumes, and masks written where volumes lie."""

from __future__ import annotations

import nibabel
import numpy as np
import pytest
from PIL import Image

from consilia.errors import DataError
from consilia.readers.images import fit_image
from consilia.readers.nifti import nifti_mask, nifti_planes, write_mask
from consilia.readers.unlabelled import read_unlabelled
from consilia.readers.volumes import read_geometry

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 255, (8, 10)).astype(np.uint8)
RGB = RNG.integers(0, 255, (8, 10, 3)).astype(np.uint8)


@pytest.mark.parametrize("inner", ["", "images"])
def test_images_to_predict_come_sorted_with_their_sizes(tmp_path, inner):
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    Image.fromarray(RGB).save(folder / "b.png")
    np.save(folder / "a.npy", GREY[:4].astype(np.float32))
    first, second = read_unlabelled(tmp_path, (8, 10), 1)
    assert (first.name, second.name) == ("a", "b")
    assert first.image.shape == second.image.shape == (1, 1, 8, 10)
    assert first.image.dtype == np.uint8
    assert (first.stored, second.stored) == ((4, 10), (8, 10))
    assert (second.image[0] == fit_image(RGB, (8, 10), 1, "image")).all()


def test_a_folder_to_predict_is_checked(tmp_path):
    with pytest.raises(DataError) as problem:
        list(read_unlabelled(tmp_path / "gone", (8, 10), 1))
    assert str(problem.value) == f"folder '{tmp_path / 'gone'}' does not exist; check the path"
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError) as problem:
        list(read_unlabelled(tmp_path / "in", (8, 10), 1))
    assert str(problem.value) == (
        "folder 'in' holds no images; expected files of type '.png', '.jpg', '.jpeg', '.tif', "
        "'.tiff', '.bmp', '.npy', '.nii', '.nii.gz' and '.dcm'"
    )
    Image.fromarray(np.zeros((8, 10, 4), np.uint8)).save(tmp_path / "in/a.png")
    with pytest.raises(DataError) as problem:
        list(read_unlabelled(tmp_path / "in", (8, 10), 1))
    assert str(problem.value) == (
        "image 'a.png' of folder 'in' has 4 channels, but the federation's images have 1; only grey "
        "and RGB are turned into each other: convert it"
    )


def test_a_single_image_can_be_predicted(tmp_path):
    Image.fromarray(GREY).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("no image")
    (one,) = read_unlabelled(tmp_path / "a.png", (8, 10), 1)
    assert (one.name, one.stored) == ("a", (8, 10))
    assert (one.image[0, 0] == GREY).all()
    with pytest.raises(DataError) as problem:
        list(read_unlabelled(tmp_path / "notes.txt", (8, 10), 1))
    assert str(problem.value) == (
        f"file '{tmp_path / 'notes.txt'}' is no image; expected a folder, or a file of type '.png', "
        "'.jpg', '.jpeg', '.tif', '.tiff', '.bmp', '.npy', '.nii', '.nii.gz' or '.dcm'"
    )


@pytest.mark.parametrize("codes", ["RAS", "LPS", "ASL", "SPR"])
def test_a_volume_comes_as_planes_and_its_mask_goes_back_in_place(tmp_path, codes):
    voxels = RNG.integers(0, 250, (6, 7, 5)).astype(np.uint8)
    affine = np.array([[0.8, 0, 0, 4], [0, 0.9, 0, -3], [0, 0, 2.5, 1], [0, 0, 0, 1.0]])
    image = nibabel.Nifti1Image(voxels, affine)
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(codes)
    )
    stored = image.as_reoriented(turn)
    path = tmp_path / "scan.nii.gz"
    nibabel.save(stored, path)
    (one,) = read_unlabelled(tmp_path, (14, 12), 1)
    assert one.image.shape == (5, 1, 14, 12)
    assert one.stored == (7, 6)
    assert one.place is not None
    planes = nifti_planes(path, "image")
    bright = (planes > 128).astype(np.uint8)
    out = tmp_path / "mask.nii.gz"
    write_mask(out, bright, one.place, path)
    back = nibabel.load(out)
    assert back.shape == stored.shape
    assert np.allclose(back.affine, stored.affine)
    where = read_geometry(path, tmp_path, "image")
    assert (nifti_mask(out, "mask", where) == bright).all()
