"""Drawn studies: the same from the same seed, valid, and different from site to site."""

from itertools import combinations

import numpy as np
import pytest

from consilia.datasets.phantoms import (
    PHANTOMS,
    _cases,
    load_common_test,
    load_phantom,
    phantom_federation,
)
from consilia.datasets.phantoms.canvas import Blob, draw_blob
from consilia.datasets.phantoms.scanner import Scanner
from consilia.datasets.phantoms.study import co_occurring, generator, one_each
from consilia.declare import Supervision
from consilia.errors import UsageError

SIZE = 32
EVERY_SITE = [(name, site) for name, card in PHANTOMS.items() for site in card.sites]
SEGMENTING = [name for name, card in PHANTOMS.items() if card.task == "segmentation"]
CLASSIFYING = [name for name, card in PHANTOMS.items() if card.task == "classification"]
SITES_WITH_OWN_SCANNERS = [name for name in PHANTOMS if name != "phantom-lesions"]


def test_seven_kinds_have_the_sites_that_studies_refer_to():
    assert {name: card.sites for name, card in PHANTOMS.items()} == {
        "phantom-mixed": ("ashford", "bergen", "cusco"),
        "phantom-disc": ("almeria", "bristol", "chiba", "dakar", "erfurt"),
        "phantom-lesions": ("graz", "hanoi", "izmir", "jaipur"),
        "phantom-findings": ("kyoto", "lagos", "malmo", "natal"),
        "phantom-findings-b": ("kyoto", "lagos", "malmo", "natal", "tbilisi", "ulsan"),
        "phantom-skin": ("oslo", "porto", "quito", "riga", "seoul"),
        "phantom-fluids": ("tartu", "utrecht", "vaasa"),
    }


@pytest.mark.parametrize(("name", "site"), EVERY_SITE)
def test_cases_have_valid_shapes_types_and_names(name, site):
    federation = phantom_federation(name)
    for split, cases in zip(("train", "test"), load_phantom(name, site, size=SIZE), strict=True):
        n, labels = len(cases), len(PHANTOMS[name].labels)
        assert cases.image.shape == (n, federation.image.channels, SIZE, SIZE)
        assert cases.image.dtype == cases.truth.dtype == np.uint8
        assert not cases.image.flags.writeable
        assert not cases.truth.flags.writeable
        if federation.task == "segmentation":
            assert cases.truth.shape == (n, SIZE, SIZE)
            assert cases.truth.max() <= labels
        else:
            assert cases.truth.shape == (n, labels)
            assert cases.truth.max() == 1
        assert len(set(cases.case)) == len(cases.group) == n
        assert cases.case[7] == f"{site}-{split}-007"


@pytest.mark.parametrize(("name", "site"), EVERY_SITE)
def test_train_and_test_share_no_patient(name, site):
    train, test = load_phantom(name, site, size=SIZE)
    assert not set(train.group) & set(test.group)


@pytest.mark.parametrize(("name", "site"), EVERY_SITE)
def test_every_label_is_present_in_train_and_test(name, site):
    for cases in load_phantom(name, site, size=SIZE):
        if cases.truth.ndim == 3:
            found = set(np.unique(cases.truth).tolist())
            assert set(range(1, len(PHANTOMS[name].labels) + 1)) <= found
        else:
            assert cases.truth.any(axis=0).all()


@pytest.mark.parametrize("name", PHANTOMS)
def test_a_site_is_the_same_whatever_was_drawn_before(name):
    first, *_, last = PHANTOMS[name].sites
    before = load_phantom(name, last, size=SIZE)[1]
    draw_again = _cases.__wrapped__  # past the cache
    draw_again(name, first, "test", SIZE, 0)
    after = draw_again(name, last, "test", SIZE, 0)
    assert np.array_equal(before.image, after.image)
    assert np.array_equal(before.truth, after.truth)
    assert (before.case, before.group, before.volume) == (after.case, after.group, after.volume)


@pytest.mark.parametrize("name", PHANTOMS)
def test_sites_seeds_and_splits_draw_different_patients(name):
    first, second, *_ = PHANTOMS[name].sites
    train, test = load_phantom(name, first, size=SIZE)
    neighbor = load_phantom(name, second, size=SIZE)[1]
    reseeded = _cases(name, first, "test", SIZE, 1)
    for other in (train, neighbor, reseeded):
        assert not np.array_equal(test.image[0], other.image[0])


@pytest.mark.parametrize("name", SITES_WITH_OWN_SCANNERS)
def test_every_two_sites_look_different(name):
    looks = [looks_of(load_phantom(name, site, size=SIZE)[0]) for site in PHANTOMS[name].sites]
    for one, other in combinations(looks, 2):
        spread = np.sqrt((one.var(axis=0) + other.var(axis=0)) / 2)
        effect = np.abs(one.mean(axis=0) - other.mean(axis=0)) / spread
        assert effect.max() > 0.8  # Cohen's "large"


def looks_of(cases):
    """Return brightness, contrast, grain of the texture and tint of every image."""
    values = cases.image.astype(float)
    brightness = values.mean(axis=(1, 2, 3))
    contrast = values.std(axis=(1, 2, 3))
    grain = np.abs(np.diff(values, axis=-1)).mean(axis=(1, 2, 3))
    tint = values.mean(axis=(2, 3)) / brightness[:, None]  # (n, c)
    looks = [brightness, contrast, grain, grain / contrast, *tint.T[1:]]
    return np.stack(looks, axis=1)


@pytest.mark.parametrize("size", [SIZE, 96])
def test_size_scales_the_anatomy(size):
    usual = (load_phantom("phantom-disc", "chiba")[1].truth > 0).mean()
    scaled = load_phantom("phantom-disc", "chiba", size=size)[1]
    assert scaled.image.shape[-2:] == (size, size)
    assert (scaled.truth > 0).mean() == pytest.approx(usual, rel=0.3)


def test_healthy_images_are_in_the_first_two_sites_training_only():
    for site, healthy in (("ashford", 0.15), ("bergen", 0.15), ("cusco", 0.0)):
        train, test = load_phantom("phantom-mixed", site, size=SIZE)
        assert (~train.truth.any(axis=(1, 2))).mean() == pytest.approx(healthy, abs=0.06)
        assert test.truth.any(axis=(1, 2)).all()


def test_the_cup_lies_inside_the_disc():
    for cases in load_phantom("phantom-disc", "dakar", size=SIZE):
        for truth in cases.truth:
            rows, columns = np.nonzero(truth == 2)
            cup_rows, cup_columns = np.nonzero(truth == 1)
            assert rows.min() <= cup_rows.min()
            assert rows.max() >= cup_rows.max()
            assert columns.min() <= cup_columns.min()
            assert columns.max() >= cup_columns.max()


def test_lesion_patients_are_dealt_to_exactly_one_site():
    dealt = [
        load_phantom("phantom-lesions", site, size=SIZE)
        for site in PHANTOMS["phantom-lesions"].sites
    ]
    patients = [patient for pair in dealt for cases in pair for patient in sorted(set(cases.group))]
    assert len(patients) == len(set(patients)) == 4 * (8 + 6)


def test_lesion_slices_all_show_a_lesion_and_know_their_volume():
    train, _ = load_phantom("phantom-lesions", "izmir", size=SIZE)
    assert train.truth.any(axis=(1, 2)).all()
    assert train.volume == train.group
    assert max(train.group.count(patient) for patient in train.group) <= 8


@pytest.mark.parametrize("name", ["phantom-mixed", "phantom-findings", "phantom-skin"])
def test_some_training_patients_come_back_and_keep_their_diagnosis(name):
    train, test = load_phantom(name, PHANTOMS[name].sites[0], size=SIZE)
    assert len(set(train.group)) < len(train)
    assert len(set(test.group)) == len(test)
    has = train.truth.any(axis=(1, 2)) if train.truth.ndim == 3 else train.truth
    for first, second in zip(range(len(train)), range(1, len(train)), strict=False):
        if train.group[first] == train.group[second]:
            assert np.array_equal(has[first], has[second])
            assert not np.array_equal(train.image[first], train.image[second])


def test_findings_occur_together_at_declared_shares():
    truth = load_phantom("phantom-findings", "lagos", size=SIZE)[0].truth
    assert ((truth.mean(axis=0) > 0.08) & (truth.mean(axis=0) < 0.4)).all()
    assert (truth.sum(axis=1) >= 2).mean() > 0.15
    assert (truth.sum(axis=1) == 0).mean() > 0.2


def test_skin_images_have_one_label_each_and_are_unbalanced():
    truth = load_phantom("phantom-skin", "seoul", size=SIZE)[0].truth
    assert (truth.sum(axis=1) == 1).all()
    assert truth.sum(axis=0).max() > 5 * truth.sum(axis=0).min()


@pytest.mark.parametrize(("name", "images"), [("phantom-findings", 160), ("phantom-skin", 200)])
def test_common_test_has_every_site_and_no_patient_of_theirs(name, images):
    common = load_common_test(name, size=SIZE)
    assert len(common) == len(set(common.case)) == images
    assert common.truth.any(axis=0).all()
    assert {case.split("-")[0] for case in common.case} == set(PHANTOMS[name].sites)
    for site in PHANTOMS[name].sites:
        for cases in load_phantom(name, site, size=SIZE):
            assert not set(cases.group) & set(common.group)


@pytest.mark.parametrize("name", SEGMENTING)
def test_segmentation_has_no_common_test(name):
    assert load_common_test(name) is None


@pytest.mark.parametrize("name", PHANTOMS)
def test_federation_marks_everything_at_every_site(name):
    federation = phantom_federation(name)
    card = PHANTOMS[name]
    assert federation.labels == card.labels
    assert federation.exclusive == (not name.startswith("phantom-findings"))
    assert tuple(site.name for site in federation.site) == card.sites
    form = Supervision.IMAGE if name in CLASSIFYING else Supervision.MASK
    assert {site.supervision for site in federation.site} == {form}
    assert federation.site[0].data == f"dataset:{name}/{card.sites[0]}"
    assert federation == federation.with_full_labels()


def test_disc_regions_unite_cup_and_rim():
    assert phantom_federation("phantom-disc").regions == {"disc": ("cup", "disc"), "cup": ("cup",)}


def test_unknown_names_get_one_sentence_with_a_suggestion():
    with pytest.raises(
        UsageError, match=r"no phantom 'phantom-mixd'.*did you mean 'phantom-mixed'"
    ):
        phantom_federation("phantom-mixd")
    with pytest.raises(UsageError, match=r"no site 'ashfort'.*'bergen'.*did you mean 'ashford'"):
        load_phantom("phantom-mixed", "ashfort")
    with pytest.raises(UsageError, match="no phantom 'xyz'"):
        load_common_test("xyz")


def test_generators_depend_on_every_part():
    draws = {
        generator(name, site, split, seed, part).integers(1 << 62)
        for name in "ab"
        for site in "cd"
        for split in "ef"
        for seed in (0, 1)
        for part in "gh"
    }
    assert len(draws) == 32


def test_one_each_and_co_occurring_keep_their_shares():
    rng = np.random.default_rng(0)
    exclusive = one_each(rng, 40, (0.5, 0.3, 0.2))
    assert exclusive.sum(axis=0).tolist() == [20, 12, 8]
    assert (exclusive.sum(axis=1) == 1).all()
    together = co_occurring(rng, 400, (0.3, 0.2))
    assert together.sum(axis=0).tolist() == [120, 80]
    assert (together.all(axis=1)).mean() > 0.3 * 0.2


def test_a_round_blob_has_its_area_and_depth():
    depth = Blob(0.0, 0.0, radius=0.5).depth(128)
    assert (depth > 0).mean() == pytest.approx(np.pi * 0.5**2 / 4, rel=0.02)
    assert depth.max() <= 1
    rough = draw_blob(np.random.default_rng(0), 0.0, 0.0, 0.5, roughness=0.1).depth(128)
    assert not np.array_equal(rough > 0, depth > 0)


def test_a_neutral_scanner_takes_the_scene_as_it_is():
    scene = np.linspace(0, 1, 64).reshape(1, 8, 8)
    still = Scanner(noise=0.0, drift=0.0)
    image = still.drifted(np.random.default_rng(0)).acquire(scene, np.random.default_rng(0))
    assert np.array_equal(image, (scene * 255).round().astype(np.uint8))
    negative = Scanner(noise=0.0, inverted=True).acquire(scene, np.random.default_rng(0))
    assert np.abs(negative.astype(int) + image - 255).max() <= 1
