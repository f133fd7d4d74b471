"""Several datasets as one: each label is known where its own dataset marks it, and judged there alone."""

import numpy as np
import pytest

from consilia.datasets.contract import Cases, DatasetCard
from consilia.datasets.match import match_cases
from consilia.datasets.source import Exam, FileDataset, Frame
from consilia.datasets.united import FEDPSL_SETUP_B, UnitedDataset
from consilia.declare import ImageShape, SiteDeclaration
from consilia.engines.judge import _judge_classes
from consilia.errors import UsageError
from consilia.testing import toy_spec
from tests.datasets.trees import pixels

SHAPE = ImageShape(size=(8, 8))


def member(name, labels, count, *, common):
    """Return a dataset of random images, every label in every other image."""

    def exam(n):
        truth = np.array([(n >> k) & 1 for k in range(len(labels))], dtype=np.uint8)
        split = "test" if n % 4 == 3 else "train"
        return Exam(f"{name}{n}", f"{name}{n}", lambda: [Frame(f"{name}{n}", image, truth)], split)

    image = pixels(0, 8, 8)
    card = DatasetCard(name, name, "classification", labels, ("all",), "s", "l", "c", "layout")
    exams = [exam(n) for n in range(count)]
    return FileDataset(card, SHAPE, lambda place, site: exams, exclusive=False, common=common)


@pytest.fixture
def united():
    chest = member("chest", ("mass", "nodule", "edema"), 16, common=True)
    other = member("other", ("covid",), 8, common=False)
    card = DatasetCard(
        "u", "u", "classification", ("nodule", "mass", "covid"), ("a", "b"), "", "", ""
    )
    return UnitedDataset(card, SHAPE, {"a": (chest, "all"), "b": (other, "all")})


def test_labels_of_others_are_not_known(united, tmp_path):
    train, test = united.load("a", tmp_path, SHAPE)
    assert (len(train), len(test)) == (12, 4)
    assert train.marked == (True, True, False)
    assert train.truth[:, 0].tolist() == [(n >> 1) & 1 for n in range(16) if n % 4 != 3]  # nodule
    assert united.load("b", tmp_path, SHAPE)[0].marked == (False, False, True)


def test_the_common_test_set_says_what_is_known_of_each_image(united, tmp_path):
    common = united.common_test(tmp_path, SHAPE)
    assert len(common) == 6
    assert common.known.tolist() == [[True, True, False]] * 4 + [[False, False, True]] * 2
    assert common.take(np.array([5, 0])).known.tolist() == [
        [False, False, True],
        [True, True, False],
    ]
    turned = match_cases(common, (2, 0, None))
    assert turned.known.tolist() == [[False, True, False]] * 4 + [[True, False, False]] * 2


@pytest.mark.parametrize(
    ("annotates", "known"), [(("mass",), [0, 1, 0]), (None, [1, 1, 0]), (("covid",), [0, 0, 0])]
)
def test_a_site_declares_no_more_than_its_dataset_marks(united, tmp_path, annotates, known):
    declared = SiteDeclaration(name="a", data="x", supervision="image", annotates=annotates)
    view = united.annotation("a", declared, tmp_path, SHAPE)
    train, _ = united.load("a", tmp_path, SHAPE)
    assert (view.known_labels == np.array(known, dtype=bool)).all()
    assert np.array_equal(view.target, train.truth * np.array(known, dtype=np.uint8))


def test_unknown_sites_are_refused(united, tmp_path):
    with pytest.raises(UsageError, match="dataset 'u' has no site 'c'"):
        united.load("c", tmp_path, SHAPE)


def test_setup_b_has_eight_labels_and_six_sites():
    card = FEDPSL_SETUP_B.card
    assert (len(card.labels), len(card.sites)) == (8, 6)
    assert card.labels[-2:] == ("tuberculosis", "covid-19")


def test_a_label_is_judged_on_the_images_that_it_is_known_of():
    federation = toy_spec("multi-label", labels=["a", "b"]).federation
    truth = np.array([[1, 0], [0, 0], [0, 1], [0, 0]], dtype=np.uint8)
    known = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=bool)
    # Of `a`, the third and fourth image would come before the first; nobody knows whether they have it.
    probability = np.array([[0.5, 0.9], [0.4, 0.8], [0.9, 0.3], [0.8, 0.2]])
    cases = Cases(pixels(0, 4, 1, 8, 8), truth, tuple("wxyz"), tuple("wxyz"), known=known)
    judged = _judge_classes(federation, probability, cases)
    assert judged.means["auroc"] == judged.means["auroc/a"] == judged.means["auroc/b"] == 1.0
    columns = dict(zip(judged.columns, judged.values.T, strict=True))
    assert np.array_equal(columns["truth/a"], [1, 0, np.nan, np.nan], equal_nan=True)
