from __future__ import annotations

import hashlib

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.sr.codedict import codes
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from consilia.errors import DataError
from consilia.readers.dicom import series_geometry, series_planes
from consilia.readers.folder import read_folder
from consilia.readers.inspect import inspect_folder

SIZE = (8, 10)
#: Everything that could tell who a patient is; none of it may ever be shown.
SECRETS = {
    "PatientID": "MRN-8812734",
    "PatientName": "Zyxwvut^Qwerty",
    "PatientBirthDate": "19470312",
    "AccessionNumber": "ACC991827",
    "InstitutionName": "Saint Elsewhere",
    "StudyDescription": "Zyxwvut abdomen",
    "StudyInstanceUID": "1.2.3.99887766",
}


def slice_of(pixels, z, series="1.2.3.4", **changes):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    values = {
        **SECRETS,
        "SOPClassUID": CTImageStorage,
        "SOPInstanceUID": meta.MediaStorageSOPInstanceUID,
        "SeriesInstanceUID": series,
        "FrameOfReferenceUID": "1.2.3.5",
        "Modality": "CT",
        "StudyID": "1",
        "StudyDate": "20200101",
        "StudyTime": "000000",
        "PatientSex": "O",
        "ReferringPhysicianName": "",
        "SeriesNumber": 1,
        "InstanceNumber": 9,
        "ImagePositionPatient": [0.0, 0.0, float(z)],
        "ImageOrientationPatient": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        "PixelSpacing": [0.7, 0.7],
        "SliceThickness": 2.5,
        "Rows": pixels.shape[0],
        "Columns": pixels.shape[1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 16,
        "BitsStored": 12,
        "HighBit": 11,
        "PixelRepresentation": 0,
        "RescaleSlope": 2,
        "RescaleIntercept": -1000,
        "WindowCenter": 100,
        "WindowWidth": 400,
        "PixelData": pixels.astype("<u2").tobytes(),
    }
    for key, value in (values | changes).items():
        if value is not None:
            setattr(file, key, value)
    return file


def save(path, file):
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)


def stack(folder, count=4, seed=0, **changes):
    """Save a series whose file names do not follow its order, and return its raw values upwards."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1200, (count, *SIZE))
    for z in range(count):
        file = slice_of(values[z], 2.5 * z, series=f"1.2.3.{seed}", **changes)
        save(folder / f"IM{(z * 7 + 3) % count:04d}.dcm", file)
    return values


@pytest.fixture
def scans(tmp_path):
    """Return the folder of a site with two series; "one" is of the secret patient."""
    root = tmp_path / "x"
    stack(root / "images/one")
    stack(root / "images/two", seed=1, PatientID="other")
    for name in ("one", "two"):
        nifti_mask(root, name)
    (root / "cases.csv").write_text("image,patient,split\none,1,train\ntwo,2,test\n")
    return root


def nifti_mask(root, name, affine=None, shape=(10, 8, 4)):
    mask = np.zeros(shape, np.uint8)
    mask[2:5, 1:4, 1] = 1
    mask[6:8, 3:6, 3] = 2
    (root / "masks").mkdir(exist_ok=True)
    affine = np.diag([-0.7, -0.7, 2.5, 1]) if affine is None else affine
    nibabel.save(nibabel.Nifti1Image(mask, affine), root / f"masks/{name}.nii.gz")


def windowed(values):
    return np.rint(np.clip((values * 2.0 - 1000 - 99.5) / 399 + 0.5, 0, 1) * 255)


def test_slices_are_ordered_rescaled_and_windowed(scans, federation):
    values = stack(scans / "images/one")
    data = read_folder(scans, federation(), "x", empty_slices="keep")
    assert data.train.case == tuple(f"one:{z:03d}" for z in range(4))
    assert np.abs(data.train.image[:, 0].astype(float) - windowed(values)).max() <= 1
    assert (data.view.target[1, 1:4, 2:5] == 1).all()
    assert (data.view.target[3, 3:6, 6:8] == 2).all()
    assert read_folder(scans, federation(), "x").train.case == ("one:001", "one:003")


def test_low_values_are_bright_in_monochrome1(tmp_path):
    values = stack(tmp_path / "one", PhotometricInterpretation="MONOCHROME1")
    planes = series_planes(tmp_path / "one", tmp_path, "image 'one'")
    assert np.abs(planes.astype(float) - (255 - windowed(values))).max() <= 1


def test_deep_files_without_window_are_scaled_by_percentiles_and_told(scans, federation):
    values = stack(scans / "images/one", WindowCenter=None, WindowWidth=None)
    planes = series_planes(scans / "images/one", scans, "image 'one'").astype(float)
    low, high = np.percentile(values, (0.5, 99.5))
    assert np.abs(planes - np.clip((values - low) / (high - low), 0, 1) * 255).max() <= 1
    found = inspect_folder(scans, federation(), "x")
    assert found.errors == ()
    assert found.warnings[0] == (
        "site 'x' has 12-bit DICOM without window; of each series, the range from its 0.5th to its "
        "99.5th percentile becomes 0 to 255: 'one'"
    )


def test_without_a_table_patients_are_known_by_a_hash(scans, federation):
    (scans / "cases.csv").unlink()
    stack(scans / "images/three", seed=2)
    nifti_mask(scans, "three")
    data = read_folder(scans, federation(test="x"), None)
    hashed = hashlib.sha256(SECRETS["PatientID"].encode()).hexdigest()[:12]
    assert set(data.test.group) == {hashed, hashlib.sha256(b"other").hexdigest()[:12]}
    assert {g for g, v in zip(data.test.group, data.test.volume, strict=True) if v == "three"} == {
        hashed
    }


def test_a_single_file_is_an_image_with_any_kind_of_mask(site, federation):
    masks = site.masks()
    site.remove("images/a.png")
    values = np.random.default_rng(5).integers(0, 1200, SIZE)
    save(site.root / "images/a.dcm", slice_of(values, 0))
    data = read_folder(site.root, federation(), "x")
    assert data.train.case == ("a", "b", "c")
    assert data.train.volume is None
    assert np.abs(data.train.image[0, 0].astype(float) - windowed(values)).max() <= 1
    assert np.array_equal(data.view.target[0], masks["a"])
    site.remove("masks/a.png")
    stored = masks["a"].T[..., None]
    nibabel.save(
        nibabel.Nifti1Image(stored, np.diag([-0.7, -0.7, 2.5, 1])), site.root / "masks/a.nii.gz"
    )
    assert np.array_equal(read_folder(site.root, federation(), "x").view.target[0], masks["a"])


def test_color_is_kept(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3)).astype(np.uint8)
    file = slice_of(
        pixels[..., 0],
        0,
        SamplesPerPixel=3,
        PhotometricInterpretation="RGB",
        PlanarConfiguration=0,
        BitsAllocated=8,
        BitsStored=8,
        HighBit=7,
        PixelData=pixels.tobytes(),
        Modality="US",
    )
    save(tmp_path / "a.dcm", file)
    assert np.array_equal(series_planes(tmp_path / "a.dcm", tmp_path, "image")[0], pixels)


def test_a_series_in_another_plane_takes_a_mask_in_any_order(scans, federation):
    turned = [0.0, 1.0, 0.0, 0.0, 0.0, -1.0]  # sagittal
    rng = np.random.default_rng(3)
    for path in (scans / "images/one").glob("*"):
        path.unlink()
    for x in range(4):
        place = [-2.5 * x, 0.0, 0.0]  # the normal points to the right
        file = slice_of(
            rng.integers(0, 1200, SIZE),
            0,
            ImagePositionPatient=place,
            ImageOrientationPatient=turned,
        )
        save(scans / f"images/one/{x}.dcm", file)
    where = series_geometry(scans / "images/one", scans, "image")
    expected = np.zeros((4, *SIZE), np.uint8)
    expected[1, 2:4, 5:9] = 2
    image = nibabel.Nifti1Image(expected, where.affine)
    nibabel.save(nibabel.as_closest_canonical(image), scans / "masks/one.nii.gz")
    data = read_folder(scans, federation(), "x")
    assert data.train.case == ("one:001",)
    assert np.array_equal(data.view.target[0], expected[1])


# --------------------------------------------------------------------------- DICOM segmentations


def segmentation(folder, mask, names=("liver", "spleen"), **changes):
    """Save a DICOM SEG of the files in a folder; `mask` goes upwards."""
    sources = sorted(
        (pydicom.dcmread(path) for path in folder.glob("*.dcm")),
        key=lambda file: float(file.ImagePositionPatient[2]),
    )
    descriptions = [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=name,
            segmented_property_category=codes.cid7150.Tissue,
            segmented_property_type=codes.cid7166.ConnectiveTissue,
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for number, name in enumerate(names, start=1)
    ]
    options = {"segmentation_type": highdicom.seg.SegmentationTypeValues.BINARY} | changes
    return highdicom.seg.Segmentation(
        source_images=sources,
        pixel_array=mask,
        segment_descriptions=descriptions,
        series_instance_uid=generate_uid(),
        series_number=2,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="m",
        manufacturer_model_name="m",
        software_versions="1",
        device_serial_number="1",
        **options,
    )


@pytest.fixture
def drawn():
    mask = np.zeros((4, *SIZE), np.uint8)
    mask[1, 1:4, 2:5] = 1
    mask[2, 3:6, 6:8] = 2
    return mask


def test_segments_are_labels_by_name(scans, federation, drawn):
    (scans / "masks/one.nii.gz").unlink()
    file = segmentation(
        scans / "images/one", np.where(drawn, 3 - drawn, 0).astype(np.uint8), ("spleen", "liver")
    )
    file.save_as(scans / "masks/one.dcm")
    data = read_folder(scans, federation(), "x", empty_slices="keep")
    assert np.array_equal(data.view.target, drawn)
    assert inspect_folder(scans, federation(), "x").errors == ()


SEG = "mask 'one.dcm' of site 'x'"
DAMAGED = "cannot be read; it is damaged, cut short or of another type: export it again"


def cut(path, part=0.6):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])


SEGMENTS = [
    (
        "unknown segment",
        lambda r, m: segmentation(r / "images/one", m, ("livr", "spleen")).save_as(
            r / "masks/one.dcm"
        ),
        f"{SEG} has the segment 'livr', but the federation's labels are 'liver' and 'spleen'; did you "
        "mean 'liver'?",
    ),
    (
        "another series",
        lambda r, m: segmentation(r / "images/two", m).save_as(r / "masks/one.dcm"),
        f"{SEG} refers to another series than its image; export it for this series",
    ),
    (
        "fractions",
        lambda r, m: segmentation(
            r / "images/one",
            np.stack([(m == c) * 0.5 for c in (1, 2)], axis=-1),
            segmentation_type=highdicom.seg.SegmentationTypeValues.FRACTIONAL,
        ).save_as(r / "masks/one.dcm"),
        f"{SEG} holds fractions; expected a binary segmentation: export it again",
    ),
    (
        "overlap",
        lambda r, m: segmentation(
            r / "images/one", np.stack([m > 0, m > 0], axis=-1).astype(np.uint8)
        ).save_as(r / "masks/one.dcm"),
        f"{SEG} has segments that overlap; give each voxel one label",
    ),
    (
        "no segmentation",
        lambda r, _: save(r / "masks/one.dcm", slice_of(np.ones(SIZE), 0)),
        f"{SEG} is DICOM, but no segmentation; export it as DICOM SEG or .nii.gz",
    ),
    (
        "cut short",
        lambda r, m: (
            segmentation(r / "images/one", m).save_as(r / "masks/one.dcm"),
            cut(r / "masks/one.dcm", 0.97),
        ),
        f"{SEG} {DAMAGED}",
    ),
]


@pytest.mark.parametrize(
    ("spoil", "sentence"), [s[1:] for s in SEGMENTS], ids=[s[0] for s in SEGMENTS]
)
def test_segmentations_that_cannot_be_read_are_refused(
    scans, federation, refusal, drawn, spoil, sentence
):
    (scans / "masks/one.nii.gz").unlink()
    spoil(scans, drawn)
    assert refusal(scans, federation()) == sentence


# ------------------------------------------------------------------------------ what cannot be read


def add(**changes):
    def spoil(root):
        values = changes | {
            "ImagePositionPatient": changes.get("ImagePositionPatient", [0, 0, 50.0])
        }
        save(root / "images/one/extra.dcm", slice_of(np.ones(SIZE), 0, series="1.2.3.0", **values))

    return spoil


def deflate(root):
    file = slice_of(np.ones(SIZE), 0)
    file.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    save(root / "images/one/extra.dcm", file)


ONE, EXTRA = "image 'one' of site 'x'", "file 'extra.dcm' of image 'one' of site 'x'"
ALIKE = "keep the slices of one series in each folder"
BAD = [
    (
        "cut short",
        lambda r: cut(r / "images/one/IM0000.dcm"),
        f"file 'IM0000.dcm' of {ONE} {DAMAGED}",
    ),
    (
        "cut short in its pixels",
        lambda r: cut(r / "images/one/IM0000.dcm", 0.95),
        f"file 'IM0000.dcm' of {ONE} {DAMAGED}",
    ),
    (
        "cut short in its header",
        lambda r: cut(r / "images/one/IM0000.dcm", 0.2),
        f"file 'IM0000.dcm' of {ONE} {DAMAGED}",
    ),
    (
        "text",
        lambda r: (r / "images/one/extra.dcm").write_text(str(SECRETS)),
        f"{EXTRA} {DAMAGED}",
    ),
    (
        "segmentation among images",
        add(Modality="SEG"),
        f"{EXTRA} is a DICOM object of modality 'SEG', which is no image; put it in 'masks'",
    ),
    (
        "structured report",
        add(Modality="SR"),
        f"{EXTRA} is a DICOM object of modality 'SR', which is no image; remove it",
    ),
    ("another modality", add(Modality="MR"), f"{ONE} holds files of 2 modalities; {ALIKE}"),
    (
        "another series",
        lambda r: save(r / "images/one/extra.dcm", slice_of(np.ones(SIZE), 50, series="1.2.3.9")),
        f"{ONE} holds files of 2 series; {ALIKE}",
    ),
    ("another size", add(Rows=4, PixelData=bytes(80)), f"{ONE} holds files of 2 sizes; {ALIKE}"),
    ("another patient", add(PatientID="Q-77"), f"{ONE} holds files of 2 patients; {ALIKE}"),
    (
        "palette",
        add(PhotometricInterpretation="PALETTE COLOR"),
        f"{EXTRA} has the photometric interpretation 'PALETTE COLOR'; expected MONOCHROME1, "
        "MONOCHROME2 or RGB: convert it",
    ),
    (
        "a name as photometric interpretation",
        add(PhotometricInterpretation="ZYXWVUT"),
        f"{EXTRA} has unknown colors; expected MONOCHROME1, MONOCHROME2 or RGB: convert it",
    ),
    (
        "frames",
        add(NumberOfFrames=3, PixelData=bytes(480)),
        f"{EXTRA} holds 3 frames; expected single-frame files: export it as a series",
    ),
    (
        "no position",
        lambda r: save(
            r / "images/one/extra.dcm",
            slice_of(np.ones(SIZE), 0, series="1.2.3.0", ImagePositionPatient=None),
        ),
        f"{ONE} has slices without a position (ImagePositionPatient), so that their order is unknown; "
        "export the series again",
    ),
    (
        "same position",
        add(ImagePositionPatient=[0.0, 0.0, 2.5]),
        f"{ONE} has two slices at the same position; keep one stack in each folder",
    ),
    (
        "another orientation",
        add(ImageOrientationPatient=[0.0, 1.0, 0.0, 0.0, 0.0, -1.0]),
        f"{ONE} has slices of several orientations; keep one stack in each folder",
    ),
    (
        "bomb",
        add(Rows=60000, Columns=60000),
        f"{EXTRA} claims to hold 60000 x 60000 x 1 values; expected 1 to 268435456: crop or split it",
    ),
    (
        "deflated",
        deflate,
        f"{EXTRA} is stored deflated, which can unpack without end; export it uncompressed",
    ),
    (
        "folder without files",
        lambda r: [path.unlink() for path in (r / "images/one").glob("*")],
        f"{ONE} is a folder without DICOM files; put the slices of one series there",
    ),
    (
        "link outside",
        lambda r: (
            (r / "images/one/IM0000.dcm").rename(r.parent / "secret"),
            (r / "images/one/IM0000.dcm").symlink_to(r.parent / "secret"),
        ),
        f"{ONE} has a file that leads outside its folder by a link; copy the file itself",
    ),
    (
        "mask elsewhere",
        lambda r: nifti_mask(r, "one", np.diag([0.7, 0.7, 2.5, 1])),
        "mask 'one.nii.gz' of site 'x' lies up to 6.3 mm from its image; export both in the same "
        "geometry",
    ),
    (
        "mask of another size",
        lambda r: nifti_mask(r, "one", shape=(10, 8, 5)),
        "mask 'one.nii.gz' of site 'x' has 5 x 8 x 10 voxels (planes x rows x columns), but its image "
        "has 4 x 8 x 10; export both in the same size",
    ),
]


@pytest.mark.parametrize(("spoil", "sentence"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_series_that_cannot_be_read_are_refused_without_naming_anyone(
    scans, federation, refusal, spoil, sentence
):
    spoil(scans)
    assert refusal(scans, federation()) == sentence
    found = inspect_folder(scans, federation(), "x")
    for secret in (*SECRETS.values(), "Zyxwvut", "ZYXWVUT"):
        assert secret not in repr(found)


def test_no_identifying_tag_is_in_any_name(scans, federation):
    (scans / "cases.csv").unlink()
    data = read_folder(scans, federation(test="x"), None)
    found = inspect_folder(scans, federation(test="x"), None)
    told = repr((data.test.case, data.test.group, data.test.volume, found))
    for secret in SECRETS.values():
        assert secret not in told


@pytest.mark.parametrize(
    ("remarkable", "warning"),
    [
        (
            lambda r: (r / "images/one/IM0001.dcm").unlink(),
            "site 'x' has series whose slices are not evenly spaced: 'one'; check whether slices are "
            "missing",
        ),
        (
            lambda r: stack(r / "images/one", Modality="MR"),
            "site 'x' has DICOM of several modalities: 'CT' and 'MR'; check them",
        ),
    ],
)
def test_what_is_odd_about_series_is_told(scans, federation, remarkable, warning):
    remarkable(scans)
    assert warning in inspect_folder(scans, federation(), "x").warnings


def test_other_secrets_in_damaged_values_are_not_quoted(tmp_path, caplog, recwarn):
    file = slice_of(np.ones(SIZE), 0)
    save(tmp_path / "a.dcm", file)
    data = (tmp_path / "a.dcm").read_bytes().replace(b"1\\0\\0\\0\\1\\0", b"Zyxw\\0\\0\\1")
    data = data.replace(b"1.0\\0.0\\0.0\\0.0\\1.0\\0.0", b"Zyxwvut\\0.0\\0.0\\1.0\\0.0")
    (tmp_path / "a.dcm").write_bytes(data)
    with pytest.raises(DataError) as problem:
        series_planes(tmp_path / "a.dcm", tmp_path, "image 'a.dcm'")
    assert str(problem.value) == f"image 'a.dcm' {DAMAGED}"
    assert not caplog.records
    assert not recwarn.list


# ------------------------------------------------------------------------------ spacing and folders


def test_pixels_of_unknown_size_have_no_spacing(scans, federation):
    declared = federation(supervision="none")
    assert np.allclose(read_folder(scans, declared, "x").train.spacing[0], [2.5, 0.7, 0.7])
    stack(scans / "images/one", PixelSpacing=None)
    assert read_folder(scans, declared, "x").train.spacing is None
    stack(scans / "images/one", PixelSpacing=[0.0, 0.7])
    assert read_folder(scans, declared, "x").train.spacing is None


def test_masks_of_pixels_of_unknown_size_are_compared_by_their_shape(scans, federation, refusal):
    known = read_folder(scans, federation(empty_slices="keep"), "x").train
    stack(scans / "images/one", PixelSpacing=None)
    found = read_folder(scans, federation(empty_slices="keep"), "x").train
    assert np.array_equal(found.truth, known.truth)  # turned as the image lies, as before
    nifti_mask(scans, "one", shape=(10, 8, 5))
    assert "4 x 8 x 10; export both in the same size" in refusal(scans, federation())


def test_series_may_lie_in_sub_folders(scans, federation):
    flat = read_folder(scans, federation(), "x")
    for place, suffix in (("images", ""), ("masks", ".nii.gz")):
        (scans / place / "disc").mkdir()
        for name in ("one", "two"):
            old = scans / place / (name + suffix)
            old.rename(scans / place / "disc" / old.name)
    (scans / "images/disc/DICOMDIR").write_bytes(b"an index")
    found = read_folder(scans, federation(), "x")
    assert found.train.case == tuple(f"disc/{case}" for case in flat.train.case)
    assert np.array_equal(found.train.image, flat.train.image)
    assert np.array_equal(found.test.truth, flat.test.truth)
