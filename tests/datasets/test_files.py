"""Damaged and strange files of public datasets end in one sentence."""

import zlib

import numpy as np
import pytest

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import (
    natural,
    read_binary,
    read_h5,
    read_metaimage,
    read_nifti,
    read_npz,
    read_rows,
)
from consilia.datasets.source import Place
from consilia.errors import DataError
from consilia.readers.images import to_bytes
from consilia.readers.nifti import nifti_planes
from tests.datasets.trees import disc, save, save_metaimage, save_nifti, table

VALUES = np.arange(2 * 3 * 4, dtype="<i2").reshape(2, 3, 4)


@pytest.fixture
def place(tmp_path):
    return Place(DatasetCard("toy", "", "", (), (), "", "", "", "toy/*"), tmp_path)


def test_numbers_in_names_sort_as_numbers():
    assert sorted(["c10", "c9", "c1-2"], key=natural) == ["c1-2", "c9", "c10"]


@pytest.mark.parametrize("order", ["little", "big", "packed"])
def test_metaimages_in_either_byte_order_and_packed(order, place, tmp_path):
    path = tmp_path / "oct.mhd"
    more = {"big": {"BinaryDataByteOrderMSB": "True"}, "packed": {"CompressedData": "True"}}
    stored = VALUES.astype(">i2") if order == "big" else VALUES
    save_metaimage(path, stored, "MET_SHORT", **more.get(order, {}))
    if order == "packed":
        path.with_suffix(".raw").write_bytes(zlib.compress(VALUES.tobytes()))
    assert np.array_equal(read_metaimage(path, place), VALUES)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("ElementDataFile = oct.raw", "ElementDataFile = ../oct.raw"),
            "one file beside the header",
        ),
        (("ElementDataFile = oct.raw", "ElementDataFile = LOCAL"), "one file beside the header"),
        (("DimSize = 4 3 2", "DimSize = 4 3 9"), "announces 216 bytes, but 'oct.raw' has 48"),
        (("DimSize = 4 3 2", "DimSize = 4 3 99999"), "at most 4096 a side"),
        (("DimSize = 4 3 2", "DimSize = 4 3"), "expected one volume"),
        (("MET_SHORT", "MET_OTHER"), "is no MetaImage header"),
        (("DimSize = 4 3 2", ""), "is no MetaImage header"),
    ],
)
def test_strange_metaimages_are_refused(change, sentence, place, tmp_path):
    path = tmp_path / "oct.mhd"
    save_metaimage(path, VALUES, "MET_SHORT")
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(DataError, match=sentence):
        read_metaimage(path, place)


def test_nifti_is_read_in_axial_slices_whatever_its_axes(place, tmp_path):
    import nibabel

    values = np.random.default_rng(0).integers(0, 99, (5, 6, 7)).astype(np.int16)
    save_nifti(tmp_path / "a.nii.gz", values)
    turned = nibabel.Nifti1Image(values[::-1].transpose(2, 0, 1).copy(), None)
    turned.header.set_data_dtype(np.int16)
    affine = np.array([[0, -1, 0, 4], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=float)
    nibabel.save(nibabel.Nifti1Image(np.asarray(turned.dataobj), affine), tmp_path / "b.nii")
    found = read_nifti(tmp_path / "a.nii.gz", place)
    assert np.array_equal(found, values.transpose(2, 1, 0)[:, ::-1, ::-1])
    assert np.array_equal(read_nifti(tmp_path / "b.nii", place), found)
    assert np.array_equal(nifti_planes(tmp_path / "b.nii", "b"), to_bytes(found))


def test_damaged_files_are_named(place, tmp_path):
    pytest.importorskip("h5py")
    for name, read in (
        ("a.nii.gz", lambda p: read_nifti(p, place)),
        ("a.h5", lambda p: read_h5(p, place, "image")),
        ("a.npz", lambda p: read_npz(p, place)),
    ):
        (tmp_path / name).write_bytes(b"not what it says")
        with pytest.raises(DataError, match=f"'{name}' of dataset 'toy' cannot be read"):
            read(tmp_path / name)


def test_four_dimensions_are_no_volume(place, tmp_path):
    save_nifti(tmp_path / "a.nii", np.zeros((4, 4, 4, 2), dtype=np.uint8))
    with pytest.raises(DataError, match="expected one volume"):
        read_nifti(tmp_path / "a.nii", place)


def test_pickled_objects_are_never_opened(place, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="pickled"):
        read_npz(tmp_path / "a.npz", place)


def test_tables_need_their_columns(place, tmp_path):
    table(tmp_path / "a.csv", "x,y", "1,2")
    assert read_rows(tmp_path / "a.csv", place, ("x",)) == [{"x": "1", "y": "2"}]
    with pytest.raises(DataError, match="has no column 'z'; expected 'x' and 'z'"):
        read_rows(tmp_path / "a.csv", place, ("x", "z"))
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_rows(tmp_path / "b.csv", place, ())


def test_masks_of_any_kind_become_zero_and_one(place, tmp_path):
    save(tmp_path / "bits.png", disc(0, 255).astype(bool))
    save(tmp_path / "ones.png", disc(0, 1))
    save(tmp_path / "color.png", np.repeat(disc(0, 255)[..., None], 3, 2))
    for name in ("bits", "ones", "color"):
        assert np.array_equal(read_binary([tmp_path / f"{name}.png"], place), disc(0, 1))
    save(tmp_path / "wide.png", disc(0, 255, side=20))
    with pytest.raises(DataError, match="differ in size"):
        read_binary([tmp_path / "bits.png", tmp_path / "wide.png"], place)
