from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.evaluate import classification as m

LABELS = ("a", "b", "c", "d")
pairs = settings(max_examples=60, deadline=None)


def draw_scores(seed: int, n: int = 80, k: int = 4, ties: bool = False):
    rng = np.random.default_rng(seed)
    truth = np.eye(k, dtype=np.uint8)[rng.integers(0, k, n)]
    logits = rng.normal(size=(n, k)) + 1.2 * truth
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.round(probability, 1) if ties else probability, truth


def test_auroc_by_hand():
    positive = np.array([1, 1, 0, 0], bool)
    assert m.auroc(np.array([0.9, 0.4, 0.5, 0.1]), positive) == 0.75  # METHODS 5.9, fact 7
    assert m.auroc(np.array([0.5, 0.5, 0.5, 0.5]), positive) == 0.5
    assert m.auroc(np.array([0.5, 0.9, 0.5, 0.1]), positive) == 0.875  # one tie counts half


@pytest.mark.parametrize("ties", [False, True])
def test_exclusive_scores_are_those_of_sklearn(ties):
    from sklearn import metrics as sk

    probability, truth = draw_scores(0, ties=ties)
    scores = m.classification_scores(probability, truth, LABELS, exclusive=True)
    y, decided = truth.argmax(1), probability.argmax(1)
    assert scores == pytest.approx(
        {
            "auroc": sk.roc_auc_score(truth, probability, average="macro"),
            **{
                f"auroc/{c}": sk.roc_auc_score(truth[:, i], probability[:, i])
                for i, c in enumerate(LABELS)
            },
            "average_precision": sk.average_precision_score(truth, probability, average="macro"),
            "accuracy": sk.accuracy_score(y, decided),
            "macro_f1": sk.f1_score(y, decided, average="macro", zero_division=0),
            "precision": sk.precision_score(y, decided, average="macro", zero_division=np.nan),
            "recall": sk.recall_score(y, decided, average="macro", zero_division=np.nan),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_multi_label_scores_are_those_of_sklearn(seed):
    from sklearn import metrics as sk

    rng = np.random.default_rng(seed)
    truth = (rng.random((60, 4)) < [0.5, 0.2, 0.1, 0.05]).astype(np.uint8)
    truth[0], truth[1] = 1, 0
    probability = np.clip(0.4 * truth + 0.6 * rng.random((60, 4)), 0, 1)
    scores = m.classification_scores(probability, truth, LABELS, exclusive=False)
    decided = probability >= 0.5
    assert scores["auroc"] == pytest.approx(sk.roc_auc_score(truth, probability))
    assert scores["average_precision"] == pytest.approx(
        sk.average_precision_score(truth, probability)
    )
    assert scores["accuracy"] == pytest.approx((decided == truth).mean())
    assert scores["macro_f1"] == pytest.approx(sk.f1_score(truth, decided, average="macro"))
    assert scores["precision"] == pytest.approx(sk.precision_score(truth, decided, average="macro"))
    assert scores["recall"] == pytest.approx(sk.recall_score(truth, decided, average="macro"))


def test_labels_without_both_classes_are_left_out():
    from sklearn.metrics import roc_auc_score

    probability, truth = draw_scores(1)
    truth = truth.copy()
    truth[:, 3] = 0
    scores = m.classification_scores(probability, truth, LABELS, exclusive=False)
    assert np.isnan(scores["auroc/d"])
    assert scores["auroc"] == pytest.approx(roc_auc_score(truth[:, :3], probability[:, :3]))


def test_what_is_not_there_nor_predicted_does_not_lower_f1():
    truth = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], np.uint8)
    probability = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.7, 0.3, 0.0]])
    scores = m.classification_scores(probability, truth, "abc", exclusive=False)
    assert scores["macro_f1"] == pytest.approx((0.8 + 0) / 2)  # b is there and missed: 0
    assert scores["precision"] == pytest.approx(2 / 3)  # b and c were never predicted
    assert scores["recall"] == pytest.approx((1 + 0) / 2)  # c is not there
    assert scores["accuracy"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


@pytest.mark.parametrize("exclusive", [False, True])
def test_unknown_truth_is_never_read(exclusive):
    probability, truth = draw_scores(2)
    known = np.random.default_rng(0).random(truth.shape) < 0.7
    if exclusive:
        known = np.repeat(known[:, :1], 4, axis=1)  # whole images
    twisted = np.where(known, truth, 1 - truth).astype(np.uint8)
    a, b = (
        m.classification_scores(probability, y, LABELS, exclusive, known) for y in (truth, twisted)
    )
    assert a == b
    if exclusive:
        seen = known[:, 0]
        assert a == m.classification_scores(probability[seen], truth[seen], LABELS, exclusive=True)


def test_multi_label_scores_use_the_known_images_of_each_label():
    from sklearn.metrics import f1_score, roc_auc_score

    probability, truth = draw_scores(3)
    known = np.random.default_rng(1).random(truth.shape) < 0.6
    scores = m.classification_scores(probability, truth, LABELS, exclusive=False, known=known)
    columns = [(truth[s, c], probability[s, c]) for c, s in enumerate(known.T)]
    assert scores["auroc"] == pytest.approx(np.mean([roc_auc_score(*pair) for pair in columns]))
    assert scores["macro_f1"] == pytest.approx(np.mean([f1_score(y, p >= 0.5) for y, p in columns]))
    assert scores["accuracy"] == pytest.approx(
        np.mean([(y == (p >= 0.5)).mean() for y, p in columns])
    )


def test_a_known_positive_settles_exclusive_labels():
    probability = np.array([[0.2, 0.7, 0.1], [0.2, 0.1, 0.7], [0.8, 0.1, 0.1]])
    truth = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]], np.uint8)
    known = np.array([[0, 1, 0], [1, 1, 0], [1, 1, 0]], bool)
    scores = m.classification_scores(probability, truth, "abc", exclusive=True, known=known)
    assert scores["accuracy"] == 0.5  # the third image's one positive is not known


def test_a_diverged_model_has_no_scores():
    probability, truth = draw_scores(4)
    probability[3, 1] = np.nan
    for exclusive in (False, True):
        scores = m.classification_scores(probability, truth, LABELS, exclusive)
        assert np.isnan(list(scores.values())).all()


def test_no_images_have_no_scores():
    nothing = np.zeros((0, 2))
    scores = m.classification_scores(nothing, nothing.astype(np.uint8), "ab", exclusive=True)
    assert np.isnan(list(scores.values())).all()


tied = st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), min_size=2)


@pairs
@given(tied)
def test_weighted_auroc_is_the_auroc_of_repeated_images(rows):
    score, positive, weight = (np.array(column) for column in zip(*rows, strict=True))
    score = score / 5
    repeated = m.auroc(np.repeat(score, weight), np.repeat(positive, weight))
    found = m.weighted_auroc(score, positive, np.stack([weight, np.ones_like(weight)]))
    assert found == pytest.approx([repeated, m.auroc(score, positive)], nan_ok=True)


@pairs
@given(tied)
def test_auroc_counts_pairs(rows):
    score, positive = np.array([r[0] for r in rows]) / 5, np.array([r[1] for r in rows])
    won = [np.sign(p - q) / 2 + 0.5 for p in score[positive] for q in score[~positive]]
    found = m.auroc(score, positive)
    assert found == pytest.approx(np.mean(won)) if won else np.isnan(found)
    assert np.isnan(found) or m.auroc(-score, positive) == pytest.approx(1 - found)
