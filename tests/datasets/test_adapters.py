"""Every adapter reads a tiny copy of its dataset; absent data is one sentence."""

import re
from collections import Counter

import numpy as np
import pytest

from consilia.datasets.registry import DATASETS, find_dataset
from consilia.datasets.source import Place
from consilia.declare import ImageShape, SiteDeclaration
from consilia.errors import DataError, UsageError
from tests.datasets.trees import (
    SIDE,
    disc,
    pixels,
    save,
    save_metaimage,
    save_nifti,
    save_pairs,
    table,
    volume,
)

READ = [name for name in DATASETS if not name.startswith("phantom-")]


def load(name, site, root, size=SIDE, channels=None, seed=0):
    dataset = find_dataset(name)
    shape = ImageShape(size=(size, size), channels=channels or dataset.shape.channels)
    train, test = dataset.load(site, root, shape, seed)
    assert not set(train.group) & set(test.group)
    assert not train.image.flags.writeable
    return train, test


@pytest.mark.parametrize("name", READ)
def test_absent_data_is_one_sentence_with_the_place_and_the_card_that_has_the_layout(
    name, tmp_path
):
    dataset = DATASETS[name]
    with pytest.raises(DataError) as refused:
        dataset.load(dataset.card.sites[0], tmp_path, dataset.shape)
    sentence = str(refused.value)
    assert str(tmp_path) in sentence
    named = re.search(r"`consilia datasets --card (\S+)` shows its layout", sentence)
    assert named is not None  # its own, or of the files that it is made from
    assert named[1] in DATASETS
    assert "--data or CONSILIA_DATA" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("name", DATASETS)
def test_every_card_is_filled_and_every_name_can_be_declared(name):
    card = DATASETS[name].card
    for word in (card.title, card.source, card.licence, card.citation, card.layout):
        assert len(word) >= 3
    assert card.name == name
    for site in card.sites:
        SiteDeclaration(name=site, data=f"dataset:{name}/{site}")
    assert len(set(card.labels)) == len(card.labels)


@pytest.mark.parametrize("name", READ)
def test_unknown_sites_are_refused_with_a_suggestion(name, tmp_path):
    dataset = DATASETS[name]
    first = dataset.card.sites[0]
    with pytest.raises(UsageError, match=f"did you mean '{first}'"):
        dataset.load(f"{first}x", tmp_path, dataset.shape)


def test_busi_unites_masks_and_trains_only_on_healthy_images(tmp_path):
    home = tmp_path / "breast/BUSI"
    for kind in ("benign", "malignant"):
        for n in range(1, 6):
            save(home / kind / f"{kind} ({n}).png", pixels(n, SIDE, SIDE, 3))
            save(home / kind / f"{kind} ({n})_mask.png", disc(0))
    save(home / "benign/benign (1)_mask_1.png", disc(5))
    for n in range(4):
        save(home / "normal" / f"normal ({n}).png", pixels(n, SIDE, SIDE))
        save(home / "normal" / f"normal ({n})_mask.png", disc(0, 0))
    train, test = load("breast", "busi", tmp_path)
    assert (len(train), len(test)) == (12, 2)
    both = np.concatenate([train.truth, test.truth])
    area = dict(zip((*train.case, *test.case), both.sum(axis=(1, 2)), strict=True))
    assert area["benign (1)"] > area["benign (2)"] > 0
    assert test.truth.any(axis=(1, 2)).all()
    assert sum(not t.any() for t in train.truth) == 4


@pytest.mark.parametrize(
    ("site", "images", "masks"), [("udiat", "original", "GT"), ("busis", "images", "masks")]
)
def test_breast_folders_with_equal_names(site, images, masks, tmp_path):
    home = tmp_path / "breast" / site.upper()
    save_pairs(home / images, home / masks, 5, "bmp")
    train, test = load("breast", site, tmp_path)
    assert (len(train), len(test)) == (4, 1)
    assert train.image.shape[1:] == (1, SIDE, SIDE)


@pytest.mark.parametrize(
    ("site", "folder", "images", "masks", "kind"),
    [
        ("kvasir-seg", "Kvasir-SEG", "images", "masks", "jpg"),
        ("cvc-clinicdb", "CVC-ClinicDB", "Original", "Ground Truth", "tif"),
        ("cvc-colondb", "CVC-ColonDB", "images", "masks", "png"),
        ("etis", "ETIS-LaribPolypDB", "images", "masks", "png"),
    ],
)
def test_polyp_sources(site, folder, images, masks, kind, tmp_path):
    home = tmp_path / "polyp" / folder
    save_pairs(home / images, home / masks, 10, kind)
    train, test = load("polyp", site, tmp_path)
    assert (len(train), len(test)) == (9, 1)
    assert set(np.unique(train.truth)) == {0, 1}
    assert 5 < train.truth[0].sum() < 60  # JPEG masks have no exact values


@pytest.mark.parametrize(
    ("site", "folder", "images", "tested"),
    [
        ("cvc-clinicdb", "CVC-ClinicDB", 612, 62),
        ("cvc-colondb", "CVC-ColonDB", 390, 63),
        ("cvc-colondb", "CVC-ColonDB", 380, 38),
        ("etis", "ETIS-LaribPolypDB", 196, 26),
        ("etis", "ETIS-LaribPolypDB", 197, 20),
        ("kvasir-seg", "Kvasir-SEG", 1000, 100),
    ],
)
def test_as_many_polyps_are_tested_on_as_in_the_paper_where_a_source_has_as_many(
    site, folder, images, tested, tmp_path
):
    home = tmp_path / "polyp" / folder
    save_pairs(home / "images", home / "masks", 1)
    for part in ("images", "masks"):
        one = (home / part / "case0.png").read_bytes()
        for n in range(1, images):
            (home / part / f"case{n}.png").write_bytes(one)
    train, test = load("polyp", site, tmp_path)
    assert (len(train), len(test)) == (images - tested, tested)
    other = load("polyp", site, tmp_path, seed=1)[1]
    assert len(other) == tested
    assert set(other.case) != set(test.case)


def test_an_image_without_a_mask_is_named(tmp_path):
    home = tmp_path / "polyp/Kvasir-SEG"
    save_pairs(home / "images", home / "masks", 3)
    (home / "masks/case1.png").unlink()
    with pytest.raises(DataError, match=r"'case1.png' of dataset 'polyp' has no mask 'case1'"):
        load("polyp", "kvasir-seg", tmp_path)


def test_a_mask_of_another_size_is_named(tmp_path):
    home = tmp_path / "polyp/Kvasir-SEG"
    save_pairs(home / "images", home / "masks", 2)
    save(home / "masks/case1.png", disc(0, side=20))
    with pytest.raises(DataError, match=r"mask of 'case1.png' .* is 20 x 20 .* image is 16 x 16"):
        load("polyp", "kvasir-seg", tmp_path)


@pytest.fixture
def ham(tmp_path):
    home = tmp_path / "ham10000"
    rows = ["lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"]
    for n in range(24):
        site = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")[n % 4]
        rows.append(
            f"HAM_{n // 8},ISIC_{n:07d},{('nv', 'mel', 'bcc')[n % 3]},histo,50,male,back,{site}"
        )
        save(home / "images" / f"ISIC_{n:07d}.jpg", pixels(n, 12, 18, 3))
        save(home / "masks" / f"ISIC_{n:07d}_segmentation.png", np.full((12, 18), 255, np.uint8))
    table(home / "HAM10000_metadata.csv", *rows)
    return tmp_path


def test_ham10000_keeps_lesions_together_across_sites(ham):
    parts = [load("ham10000", site, ham) for site in DATASETS["ham10000"].card.sites]
    trained = {group for train, _ in parts for group in train.group}
    tested = {group for _, test in parts for group in test.group}
    assert not trained & tested
    assert parts[0][0].truth.sum(axis=1).tolist() == [1] * len(parts[0][0])
    common = DATASETS["ham10000"].common_test(ham, ImageShape(size=(8, 8), channels=3))
    assert set(common.group) == tested


def test_ham10000_masks_and_random_parts(ham):
    train, _ = load("ham10000-masks", "rosendahl", ham)
    assert train.truth.all()
    parts = [load("ham10000", f"{n}-of-2", ham)[0] for n in (1, 2)]
    assert not set(parts[0].case) & set(parts[1].case)
    for wrong in ("3-of-2", "0-of-2"):
        with pytest.raises(UsageError, match="'i-of-k' is the i-th of k random parts"):
            load("ham10000", wrong, ham)


def test_prostate_slices_without_prostate_are_left_out(tmp_path):
    for n in range(5):
        image, mask = volume(n)
        save_nifti(tmp_path / f"prostate/HK/Case{n:02d}.nii.gz", image)
        save_nifti(tmp_path / f"prostate/HK/Case{n:02d}_Segmentation.nii.gz", mask)
    train, test = load("prostate", "hk", tmp_path)
    assert (len(train), len(test)) == (4 * 3, 3)
    assert set(train.volume) == {f"hk-Case{int(g[-2:]):02d}" for g in train.group}
    assert train.case[0].endswith("-s001")
    assert train.truth.any(axis=(1, 2)).all()
    one, seen = volume(int(train.group[0][-2:]))[1][..., 1], train.truth[0]
    assert np.array_equal(seen, one.T[::-1, ::-1])  # the patient's right is on the left


@pytest.mark.parametrize("kind", ["MET_USHORT", "MET_UCHAR"])
def test_retouch_reads_metaimages_by_vendor(kind, tmp_path):
    number = np.dtype("<u2" if kind == "MET_USHORT" else "u1")
    for n in range(1, 6):
        home = tmp_path / "retouch/RETOUCH-TrainingSet-Cirrus" / f"TRAIN{n:03d}"
        oct_ = np.random.default_rng(n).integers(0, 200, (3, SIDE, 10)).astype(number)
        drawn = np.zeros(oct_.shape, dtype=np.uint8)
        drawn[1, 2:6], drawn[1, 6:9], drawn[2, 3:5] = 1, 3, 2
        save_metaimage(home / "oct.mhd", oct_, kind)
        save_metaimage(home / "reference.mhd", drawn, "MET_UCHAR")
    train, test = load("retouch", "cirrus", tmp_path)
    assert (len(train), len(test)) == (8, 2)
    assert set(train.volume) <= {"1", "2", "3", "4", "5"}
    assert set(np.unique(train.truth)) == {0, 1, 2, 3}


def test_ms_unites_two_sources_and_divides_patients(tmp_path):
    for n in range(3):
        image, mask = volume(n)
        home = tmp_path / f"ms/MSSEG-1/Center_01/Patient_{n:02d}"
        save_nifti(home / "Preprocessed_Data/FLAIR_preprocessed.nii.gz", image)
        save_nifti(home / "Masks/Consensus.nii.gz", mask)
        home = tmp_path / f"ms/3D-MR-MS/patient{n:02d}"
        save_nifti(home / f"patient{n:02d}_FLAIR.nii.gz", image)
        save_nifti(home / f"patient{n:02d}_consensus_gt.nii.gz", mask)
    parts = [load("ms", f"{n}-of-4", tmp_path) for n in range(1, 5)]
    volumes = [set(train.volume) for train, _ in parts]
    assert sum(map(len, volumes)) == len(set.union(*volumes)) == 5
    common = DATASETS["ms"].common_test(tmp_path, ImageShape(size=(SIDE, SIDE)))
    assert len(set(common.volume)) == 1
    assert all(test.case == common.case for _, test in parts)  # no other test patient anywhere


def test_lung_is_windowed_alike_in_every_volume(tmp_path):
    for n in range(3):
        image, mask = volume(n)
        image[0, 0], image[1, 1] = -2000, 3000
        save_nifti(tmp_path / f"lung/Train/volume-{n}_ct.nii.gz", image)
        save_nifti(tmp_path / f"lung/Train/volume-{n}_seg.nii.gz", mask)
    train, _ = load("lung", "covid-19-20", tmp_path)
    assert train.image[0, 0].min() == 0
    assert train.image[0, 0].max() == 255
    assert (train.image[:, 0, SIDE - 2, SIDE - 2] == 255).all()  # x 1, y 1


@pytest.fixture
def octa(tmp_path):
    """Write two sites; a test image of the first repeats a training image."""
    h5py = pytest.importorskip("h5py")
    for site in (1, 2):
        for split, count in (("train", 4), ("test", 3)):
            for n in range(count):
                path = tmp_path / f"octa-faz/Domain{site}/{split}/{n:02d}.h5"
                path.parent.mkdir(parents=True, exist_ok=True)
                repeats = split == "test" and n == 0 and site == 1
                seed = 100 * site + (0 if repeats else n + 10 * (split == "test"))
                with h5py.File(path, "w") as file:
                    file["image"] = pixels(seed, SIDE, SIDE) / 255
                    file["mask"] = disc(n, 1)
                    if split == "train":
                        for key, drawn in (("scribble", 4), ("keypoint", 1), ("box", 8)):
                            marks = np.full((SIDE, SIDE), 2, dtype=np.uint8)
                            marks[:drawn] = 0
                            marks[disc(n, 1) > 0] = 1
                            file[key] = marks
    return tmp_path


def test_h5_sites_have_the_authors_split_without_repeated_images(octa):
    train, test = load("octa-faz", "fazid", octa)
    assert (train.case, test.case) == (
        ("train-00", "train-01", "train-02", "train-03"),
        ("test-01", "test-02"),
    )
    assert np.array_equal(train.image[0, 0], pixels(100, SIDE, SIDE))
    assert [len(c) for c in load("octa-faz", "octa500-3m", octa)] == [4, 3]


def declared(form, **more):
    return SiteDeclaration(name="x", data="x", supervision=form, **more)


def test_h5_labels_of_the_authors_are_used_where_asked_for(octa):
    shape = ImageShape(size=(SIDE, SIDE))
    plain, own = DATASETS["octa-faz"], DATASETS["octa-faz-authors"]
    assert plain.annotation("fazid", declared("scribble"), octa, shape) is None
    assert own.annotation("fazid", declared("mask"), octa, shape) is None
    train, _ = own.load("fazid", octa, shape)
    for form, rows in (("scribble", 4), ("point", 1), ("box", 8)):
        view = own.annotation("fazid", declared(form), octa, shape)
        assert np.array_equal(view.target, train.truth)
        assert view.known_pixels[:, :rows].all()
        assert np.array_equal(view.known_pixels[:, rows:], train.truth[:, rows:] > 0)
        assert (view.constraint is not None) == (form == "box")
    assert view.constraint[0, 0, 12].all()
    with pytest.raises(DataError, match=r"no 'block' labels of its authors .* 'octa-faz' to have"):
        own.annotation("fazid", declared("block"), octa, shape)


def test_h5_marks_survive_another_size(octa):
    own = DATASETS["octa-faz-authors"]
    view = own.annotation("fazid", declared("point"), octa, ImageShape(size=(8, 8)))
    assert (view.known_pixels & (view.target == 1)).any(axis=(1, 2)).all()
    assert view.known_pixels[:, 0].all()  # one row of sixteen


def test_odoc_has_cup_and_disc_in_color(tmp_path):
    h5py = pytest.importorskip("h5py")
    for split in ("train", "test"):
        for n in range(2):
            path = tmp_path / f"odoc/Site5/{split}/{n}.h5"
            path.parent.mkdir(parents=True, exist_ok=True)
            with h5py.File(path, "w") as file:
                file["image"] = pixels(n + 5 * len(split), 3, SIDE, SIDE)
                file["mask"] = disc(n, 2)
    train, test = load("odoc", "gamma", tmp_path)
    assert (train.image.shape, len(test)) == ((2, 3, SIDE, SIDE), 2)
    assert np.array_equal(train.image[0], pixels(25, 3, SIDE, SIDE))


@pytest.fixture
def chest(tmp_path):
    rows = ["Image Index,Finding Labels,Follow-up #,Patient ID"]
    for n in range(12):
        found = ("No Finding", "Hernia", "Effusion|Pleural_Thickening")[n % 3]
        rows.append(f"{n // 2:08d}_{n % 2:03d}.png,{found},0,{n // 2}")
        archive = tmp_path / f"chestxray14/images_{1 + n // 6:03d}/images"
        values = pixels(n, SIDE, SIDE, 4) if n == 0 else pixels(n, SIDE, SIDE)
        save(archive / f"{n // 2:08d}_{n % 2:03d}.png", values)
    table(tmp_path / "chestxray14/Data_Entry_2017.csv", *rows)
    table(tmp_path / "chestxray14/test_list.txt", "00000004_000.png", "00000004_001.png")
    return tmp_path


def test_chestxray14_has_the_official_split_in_any_number_of_parts(chest):
    train, test = load("chestxray14", "nih", chest)
    assert (len(train), set(test.group)) == (10, {"4"})
    labels = DATASETS["chestxray14"].card.labels
    assert train.truth[2, [labels.index("effusion"), labels.index("pleural-thickening")]].all()
    assert train.truth[0].sum() == 0
    parts = [load("chestxray14", f"{n}-of-2", chest)[0] for n in (1, 2)]
    assert sorted(parts[0].case + parts[1].case) == sorted(train.case)


def test_chestxray14_reads_one_folder_of_images_too(chest):
    home = chest / "chestxray14"
    (home / "images").mkdir()
    for path in home.glob("images_0*/images/*.png"):
        path.rename(home / "images" / path.name)
    for archive in home.glob("images_0*"):
        (archive / "images").rmdir()
        archive.rmdir()
    assert len(load("chestxray14", "nih", chest)[0]) == 10


@pytest.mark.parametrize(("name", "sick"), [("tb-xray", "Tuberculosis"), ("covid-xray", "COVID")])
def test_radiography_sets_have_one_label(name, sick, tmp_path):
    for folder, count in ((sick, 3), ("Normal", 7)):
        inner = "images" if name == "covid-xray" else "."
        for n in range(count):
            save(tmp_path / name / folder / inner / f"{folder}-{n}.png", pixels(n, SIDE, SIDE))
    train, test = load(name, "all", tmp_path)
    assert (len(train), len(test)) == (8, 2)
    assert train.truth.sum() + test.truth.sum() == 3


def test_samples_of_radiography_sets_have_the_papers_counts(tmp_path):
    from consilia.datasets.radiography import _sampled

    for sick, healthy, expected in ((700, 3500, 167), (3616, 10192, 262)):
        found = {
            label: [tmp_path / f"{label}-{n}.png" for n in range(count)]
            for label, count in ((1, sick), (0, healthy))
        }
        chosen = _sampled(found)
        assert (len(chosen[1]), len(chosen[0])) == (expected, 1000 - expected)


@pytest.mark.parametrize(("kind", "labels"), [("bloodmnist", 8), ("chestmnist", 14)])
def test_medmnist_is_divided_and_tested_on_the_official_test_set(kind, labels, tmp_path):
    (tmp_path / "medmnist").mkdir()
    arrays = {}
    for split, count in (("train", 12), ("val", 4), ("test", 6)):
        shape = (count, 28, 28, 3) if kind == "bloodmnist" else (count, 28, 28)
        arrays[f"{split}_images"] = pixels(count, *shape)
        columns = 1 if kind == "bloodmnist" else labels
        arrays[f"{split}_labels"] = np.random.default_rng(0).integers(0, 2, (count, columns))
    np.savez(tmp_path / f"medmnist/{kind}.npz", **arrays)
    parts = [load(f"medmnist-{kind}", f"{n}-of-4", tmp_path) for n in range(1, 5)]
    assert [len(train) for train, _ in parts] == [4] * 4
    assert sum(len(test) for _, test in parts) == 6
    assert parts[0][0].truth.shape == (4, labels)


def test_a_single_patient_cannot_be_split(tmp_path):
    home = tmp_path / "polyp/Kvasir-SEG"
    save_pairs(home / "images", home / "masks", 1)
    with pytest.raises(DataError, match="has a single patient"):
        load("polyp", "kvasir-seg", tmp_path)


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    home = tmp_path / "polyp/Kvasir-SEG"
    home.mkdir(parents=True)
    (home / "images").write_text("")
    (home / "masks").mkdir()
    with pytest.raises(DataError, match="cannot be read as a folder"):
        load("polyp", "kvasir-seg", tmp_path)


def test_medmnist_classes_beyond_the_card_are_refused(tmp_path):
    (tmp_path / "medmnist").mkdir()
    arrays = {}
    for split in ("train", "val", "test"):
        arrays |= {f"{split}_images": pixels(0, 4, 28, 28), f"{split}_labels": np.full((4, 1), 9)}
    np.savez(tmp_path / "medmnist/breastmnist.npz", **arrays)
    with pytest.raises(DataError, match="has the class 9; expected 2 from 0"):
        load("medmnist-breastmnist", "all", tmp_path)
    np.savez(tmp_path / "medmnist/octmnist.npz", train_images=pixels(0, 4, 28, 28))
    with pytest.raises(DataError, match="has no arrays 'train_images' and 'train_labels'"):
        load("medmnist-octmnist", "all", tmp_path)


def test_fedpsl_sites_read_archives_and_share_the_test_set(tmp_path, monkeypatch):
    from consilia.datasets import chestxray14

    monkeypatch.setattr(chestxray14, "FIRST", 3)
    monkeypatch.setattr(chestxray14, "LATER", 6)
    monkeypatch.setattr(chestxray14, "PER_SITE", 4)
    monkeypatch.setattr(chestxray14, "PER_LABEL", 2)
    rows = ["Image Index,Finding Labels,Follow-up #,Patient ID"]
    for n in range(36):
        rows.append(f"{n:08d}_000.png,{('Nodule', 'Effusion|Mass', 'No Finding')[n % 3]},0,{n}")
        save(tmp_path / f"chestxray14/images/{n:08d}_000.png", pixels(n, SIDE, SIDE))
    table(tmp_path / "chestxray14/Data_Entry_2017.csv", *rows)
    train, test = load("chestxray14-fedpsl", "archive-3", tmp_path)
    assert train.case == tuple(f"{n:08d}_000" for n in range(9, 13))
    common = DATASETS["chestxray14-fedpsl"].common_test(tmp_path, ImageShape(size=(8, 8)))
    assert set(test.case) == set(common.case)
    assert all(int(name[:8]) < 3 or int(name[:8]) >= 27 for name in common.case)


def test_non_square_sizes_and_channels(tmp_path):
    home = tmp_path / "polyp/Kvasir-SEG"
    save_pairs(home / "images", home / "masks", 4)
    shape = ImageShape(size=(8, 12), channels=1)
    train, _ = DATASETS["polyp"].load("kvasir-seg", tmp_path, shape)
    assert train.image.shape[1:] == (1, 8, 12)
    assert train.truth.shape[1:] == (8, 12)


def test_a_sample_of_radiographs_is_tested_on_others(tmp_path, monkeypatch):
    from consilia.datasets import radiography

    monkeypatch.setattr(radiography, "SAMPLE", 10)
    monkeypatch.setattr(radiography, "PER_LABEL", 3)
    for folder, count in (("Tuberculosis", 8), ("Normal", 12)):
        for n in range(count):
            save(tmp_path / "tb-xray" / folder / f"{folder}-{n}.png", pixels(n, SIDE, SIDE))
    exams = radiography.index(
        "Tuberculosis", Place(DATASETS["tb-xray"].card, tmp_path), "sample-10"
    )
    splits = Counter((exam.split, exam.read()[0].truth[0]) for exam in exams)
    assert splits == {("train", 1): 4, ("train", 0): 6, ("test", 1): 3, ("test", 0): 3}
    assert len({exam.name for exam in exams}) == 16
