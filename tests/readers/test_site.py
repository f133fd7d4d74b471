"""A `data` reference becomes a site's data: folders, drawn datasets, public ones, common tests."""

from pathlib import Path

import numpy as np
import pytest

from consilia.datasets.phantoms import PHANTOMS
from consilia.declare import Federation
from consilia.errors import DataError, DeclarationError, UsageError
from consilia.readers.check import check_path
from consilia.readers.site import DATASET, data_root, load_common, load_site, pool
from consilia.weaken import weaken

SIZE = 32


def declare(dataset, site="a", labels=("lesion",), test=None, task="segmentation", **own):
    form = "mask" if task == "segmentation" else "image"
    return Federation.model_validate(
        {
            "name": "f",
            "task": task,
            "labels": labels,
            "exclusive": task == "segmentation",
            "image": {"size": (SIZE, SIZE)},
            "site": [{"name": site, "data": dataset, "supervision": form, **own}],
            "test": test,
        }
    )


MIXED = f"{DATASET}phantom-mixed/cusco"
FINDINGS = f"{DATASET}phantom-findings/lagos"
SOME = ("nodule", "effusion")


def test_where_paths_begin(monkeypatch, tmp_path):
    monkeypatch.setenv("CONSILIA_DATA", str(tmp_path))
    assert data_root(Path("x"), Path("y")) == Path("x")
    assert data_root(None, Path("y")) == tmp_path
    monkeypatch.delenv("CONSILIA_DATA")
    assert data_root(None, Path("y")) == Path("y")
    assert data_root(None) == Path.cwd()


def test_a_drawn_site_has_the_view_it_declares(tmp_path):
    federation = declare(MIXED, supervision="scribble")
    found = load_site(federation, "a", tmp_path, seed=2)
    view, _ = weaken(found.train, ("lesion",), federation["a"], seed=2)
    assert np.array_equal(found.view.known_pixels, view.known_pixels)
    assert len(found.test) == 48
    assert found.validation is None


def test_validation_patients_are_whole_and_disjoint(tmp_path):
    found = load_site(declare(MIXED), "a", tmp_path, validation=0.25)
    assert len(found.view) == len(found.train)
    assert not set(found.train.group) & set(found.validation.group)
    assert len(found.train) + len(found.validation) == 24


def test_labels_go_by_name(tmp_path):
    whole = load_site(
        declare(
            FINDINGS,
            task="classification",
            labels=PHANTOMS["phantom-findings"].labels,
        ),
        "a",
        tmp_path,
    )
    some = load_site(declare(FINDINGS, task="classification", labels=SOME), "a", tmp_path)
    assert np.array_equal(some.train.truth, whole.train.truth[:, [3, 1]])
    assert np.array_equal(some.view.target, whole.train.truth[:, [3, 1]])
    common = f"{DATASET}phantom-findings/common"
    test = load_common(declare(FINDINGS, task="classification", labels=SOME, test=common), tmp_path)
    assert test.truth.shape == (160, 2)


def test_a_site_cannot_annotate_what_its_dataset_does_not_mark(tmp_path):
    labels = (*SOME, "tuberculosis")
    with pytest.raises(DeclarationError, match=r"annotates 'tuberculosis', but dataset .* leave"):
        load_site(declare(FINDINGS, task="classification", labels=labels), "a", tmp_path)
    only = declare(FINDINGS, task="classification", labels=labels, annotates=SOME)
    assert not load_site(only, "a", tmp_path).view.known_labels[:, 2].any()


def test_a_single_label_may_have_another_name(tmp_path):
    found = load_site(declare(MIXED, labels=("tumour",)), "a", tmp_path)
    assert found.train.truth.max() == 1


def test_unknown_datasets_and_sites_are_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'phantom-mixed'"):
        load_site(declare(f"{DATASET}phantom-mixd/cusco"), "a", tmp_path)
    with pytest.raises(UsageError, match="did you mean 'cusco'"):
        load_site(declare(f"{DATASET}phantom-mixed/cuzco"), "a", tmp_path)
    with pytest.raises(DataError, match="dataset 'polyp' has no 'polyp/ETIS-LaribPolypDB'"):
        load_site(declare(f"{DATASET}polyp/etis"), "a", tmp_path)


def test_a_dataset_for_another_task_is_refused(tmp_path):
    with pytest.raises(DeclarationError, match=r"which is for classification, but .* segmentation"):
        load_site(declare(FINDINGS), "a", tmp_path)
    wrong = declare(MIXED, test=f"{DATASET}phantom-findings/common")
    with pytest.raises(DeclarationError, match=r"the common test set refers to .* classification"):
        load_common(wrong, tmp_path)
    table = declare(FINDINGS, task="classification", labels=SOME).model_dump()
    exclusive = Federation.model_validate(table | {"exclusive": True})
    with pytest.raises(DeclarationError, match="labels may occur together"):
        load_site(exclusive, "a", tmp_path)


def test_there_is_a_common_test_only_where_one_is_named(tmp_path):
    assert load_common(declare(MIXED), tmp_path) is None
    assert load_common(declare(MIXED, test=f"{DATASET}phantom-mixed/common"), tmp_path) is None


def test_pooled_sites_keep_their_own_names(tmp_path):
    sites = {
        name: load_site(declare(f"{DATASET}phantom-mixed/{name}", site=name), name, tmp_path)
        for name in ("cusco", "bergen")
    }
    united = pool(sites)
    assert len(united.train) == 24 + 48
    assert united.train.case[0].startswith("bergen/")
    assert len(united.test) == 0


def test_the_authors_labels_stand_for_those_that_would_be_drawn(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for n in range(3):
            path = tmp_path / f"odoc/Domain1/{split}/{n}.h5"
            path.parent.mkdir(parents=True, exist_ok=True)
            with h5py.File(path, "w") as file:
                file["image"] = rng.integers(0, 256, (3, SIZE, SIZE)).astype(np.uint8)
                file["mask"] = np.repeat([0, 1, 2, 0], SIZE // 4)[None].repeat(SIZE, 0)
                file["scribble"] = np.where(rng.random((SIZE, SIZE)) < 0.9, 3, file["mask"])
    table = declare(
        f"{DATASET}odoc-authors/drishti-gs1",
        labels=("disc", "cup"),
        supervision="scribble",
        annotates=("cup",),
    )
    found = load_site(table, "a", tmp_path)
    seen = found.view.known_pixels
    assert 0.05 < seen.mean() < 0.15
    cup = (found.train.truth == 2) & seen  # the federation counts the cup second
    assert np.array_equal(found.view.target == 2, cup)
    assert set(np.unique(found.view.target)) == {0, 2}
    assert found.view.known_labels.tolist() == [[False, True]] * 3
    full = load_site(table.with_full_labels(), "a", tmp_path)
    assert np.array_equal(full.view.target, found.train.truth)


def test_check_goes_on_after_datasets_and_sites_that_nobody_knows(tmp_path):
    sites = {"a": "phantom-mixd/cusco", "b": "phantom-mixed/cuzco", "c": "phantom-mixed/cusco"}
    lines = ['name = "f"', 'task = "segmentation"', 'labels = ["lesion"]']
    lines += [f'test = "{DATASET}phantom-mixd/common"', f"[image]\nsize = [{SIZE}, {SIZE}]"]
    lines += [f'[[site]]\nname = "{name}"\ndata = "{DATASET}{at}"' for name, at in sites.items()]
    (tmp_path / "federation.toml").write_text("\n".join(lines))
    unknown, nowhere, good, common = (one.inspection for one in check_path(tmp_path))
    assert "did you mean 'phantom-mixed'" in unknown.errors[0]
    assert "did you mean 'cusco'" in nowhere.errors[0]
    assert (good.errors, good.images) == ((), 72)
    assert "did you mean 'phantom-mixed'" in common.errors[0]
