"""Packs: the same datasets from a made-up pack as from the real ones, which are skipped by name."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from consilia.datasets.pack import read_pack
from consilia.datasets.registry import DATASETS
from consilia.declare import ImageShape, SiteDeclaration
from consilia.errors import DataError
from tests.datasets.trees import disc, pixels

REAL = ("faz128", "skinseg128", "nuclei256", "mslesion224", "ham64", "nih64")
SMALL = ImageShape(size=(16, 16))


def jpegs(images):
    """Return images as JPEG bytes one after another, and where each begins."""
    data = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=95)
        data.append(file.getvalue())
    ends = np.cumsum([0, *map(len, data)])
    return {"image_jpeg": np.frombuffer(b"".join(data), np.uint8), "image_offset": ends}


def write_pack(root, name, **arrays):
    np.savez(root / f"{name}.npz", **arrays)
    (root / f"{name}.json").write_text(json.dumps({"name": name, "task": "made up"}))


@pytest.fixture
def faz(tmp_path):
    """Twelve images of each of five sites; one test image repeats a training image."""
    count = 60
    split = (np.arange(count) // 5 >= 8).astype(np.uint8)
    group = np.arange(count).astype(np.uint16)
    group[50] = group[0]
    mask = np.stack([disc(n, 1) for n in range(count)])
    weak = np.where(mask == 1, 1, 2).astype(np.uint8)
    weak[:, :2] = 0
    weak[split == 1] = 255
    write_pack(
        tmp_path,
        "faz128",
        **jpegs([pixels(n, 16, 16) for n in range(count)]),
        mask=mask,
        site=(np.arange(count) % 5).astype(np.uint8),
        split=split,
        group=group,
        filename=np.array([f"{n // 5:03d}" for n in range(count)]),
        weak_scribble=weak,
        weak_scribble_noisy=weak,
        weak_keypoint=weak,
        weak_block=weak,
        weak_box=weak,
    )
    return tmp_path


def test_jpeg_bytes_are_decoded_and_the_card_is_read(faz):
    arrays, card = read_pack(faz, "faz128")
    assert card["task"] == "made up"
    assert arrays["image"].shape == (60, 16, 16)
    assert np.abs(arrays["image"][3].astype(int) - pixels(3, 16, 16)).mean() < 12


def test_the_authors_split_without_repeated_images(faz):
    sizes = [
        [len(c) for c in DATASETS["faz128"].load(s, faz, SMALL)]
        for s in DATASETS["faz128"].card.sites
    ]
    assert sizes == [[8, 3], *[[8, 4]] * 4]


def test_the_authors_weak_labels(faz):
    own = DATASETS["faz128-authors"]
    train, _ = own.load("rose", faz, SMALL)
    for form, style in (("scribble", "noisy"), ("point", "plain"), ("box", "plain")):
        declared = SiteDeclaration(name="rose", data="x", supervision=form, style=style)
        view = own.annotation("rose", declared, faz, SMALL)
        assert np.array_equal(view.target, train.truth)
        assert np.array_equal(view.known_pixels[:, 2:], train.truth[:, 2:] > 0)
        assert DATASETS["faz128"].annotation("rose", declared, faz, SMALL) is None


def test_a_pack_that_was_written_again_is_read_again(faz):
    first, _ = read_pack(faz, "faz128")
    arrays = {name: first[name] for name in first}
    arrays["mask"] = np.zeros_like(first["mask"])
    write_pack(faz, "faz128", **arrays)
    os.utime(faz / "faz128.npz", ns=(1, 1))
    assert not read_pack(faz, "faz128")[0]["mask"].any()


def test_damaged_packs_are_named(faz):
    (faz / "faz128.json").write_text("{")
    os.utime(faz / "faz128.npz", ns=(2, 2))
    with pytest.raises(DataError, match=r"pack 'faz128' in .* is damaged"):
        read_pack(faz, "faz128")
    (faz / "faz128.json").unlink()
    with pytest.raises(DataError, match=r"no 'faz128.json'"):
        read_pack(faz, "faz128")


def test_scans_of_one_patient_stay_together(tmp_path):
    patient = np.repeat(["A_P1_T1", "A_P1_T2", "A_P2_T1", "B_P1_T1", "A_P3_T1", "A_P4_T1"], 3)
    write_pack(
        tmp_path,
        "mslesion224",
        image=pixels(0, 18, 16, 16),
        mask=np.stack([disc(n, 1) for n in range(18)]),
        site=np.array([p.startswith("B") for p in patient], dtype=np.uint8),
        slice_index=np.tile(np.arange(7, 10), 6).astype(np.uint16),
        patient=patient,
    )
    dataset = DATASETS["mslesion224"]
    for seed in range(4):
        parts = [dataset.load(f"{n}-of-4", tmp_path, SMALL, seed) for n in range(1, 5)]
        tested = set(dataset.common_test(tmp_path, SMALL, seed).group)
        assert len(tested) == 1
        assert sorted(g for train, _ in parts for g in set(train.group)) == sorted(
            {"A_P1", "A_P2", "B_P1", "A_P3", "A_P4"} - tested
        )
        assert all(len(test) for _, test in parts)
    train, _ = dataset.load("mslesseg", tmp_path, SMALL)
    assert train.case[0].endswith("-s007")


@pytest.mark.parametrize("name", ["ham64", "nih64"])
def test_classes_become_columns_and_groups_are_never_split(name, tmp_path):
    count, rng = 2400, np.random.default_rng(0)
    more = {"site": (np.arange(count) % 4).astype(np.uint8), "group": np.arange(count) // 3}
    label = rng.integers(0, 7, count).astype(np.uint8)
    if name == "nih64":
        more, label = {"patient": np.arange(count) // 3}, rng.integers(0, 2, (count, 14))
    image = rng.integers(0, 256, (count, 2, 2)).astype(np.uint8)
    names = np.array([f"i{n:04d}" for n in range(count)])
    write_pack(tmp_path, name, image=image, label=label.astype(np.uint8), filename=names, **more)
    dataset, shape = DATASETS[name], ImageShape(size=(8, 8))
    parts = [dataset.load(f"{n}-of-5", tmp_path, shape) for n in range(1, 6)]
    common = dataset.common_test(tmp_path, shape)
    assert len(common) == (480 if name == "ham64" else 999)  # threes do not make 1,000
    trained = [set(train.group) for train, _ in parts]
    assert not set.union(*trained) & set(common.group)
    assert sum(map(len, trained)) == len(set.union(*trained))
    assert sum(len(train) for train, _ in parts) == count - len(common)
    assert parts[0][0].truth.shape[1] == len(dataset.card.labels)
    if name == "ham64":
        assert (parts[0][0].truth.sum(axis=1) == 1).all()


@pytest.mark.parametrize("name", REAL)
def test_real_packs_load_at_every_site(name):
    root = os.environ.get("CONSILIA_DATA")
    if not root or not (Path(root) / f"{name}.npz").is_file():
        pytest.skip(f"needs the pack {name} in CONSILIA_DATA")
    dataset = DATASETS[name]
    shape = dataset.shape.model_copy(update={"size": (32, 32)})
    for site in dataset.card.sites:
        train, test = dataset.load(site, Path(root), shape)
        assert len(train)
        assert len(test)
        assert not set(train.group) & set(test.group)
        assert train.truth.max() <= (len(dataset.card.labels) if train.truth.ndim == 3 else 1)
        assert len(set(train.case)) == len(train)


def test_real_faz_has_the_papers_counts():
    root = os.environ.get("CONSILIA_DATA")
    if not root or not (Path(root) / "faz128.npz").is_file():
        pytest.skip("needs the pack faz128 in CONSILIA_DATA")
    counts = {
        site: tuple(len(c) for c in DATASETS["faz128"].load(site, Path(root), SMALL))
        for site in DATASETS["faz128"].card.sites
    }
    assert counts == {
        "fazid": (244, 60),
        "octa500-3m": (150, 50),
        "octa500-6m": (200, 100),
        "octa-25k": (708, 275),  # of 304, less 29 that repeat a training image
        "rose": (30, 9),
    }
