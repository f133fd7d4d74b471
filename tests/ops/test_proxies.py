"""Who teaches a label's row, against METHODS 2.9, 5.9 and 6.3."""

import numpy as np
import pytest
import torch

from consilia.ops.proxies import masked_shares, proxy_shares
from consilia.ops.reduce import normalise, reduce

SITES = ("a", "b", "c")
IMAGES = {"a": 900.0, "b": 300.0, "c": 800.0}
EVERY = {site: np.ones(3, bool) for site in SITES}


def per_site(rows):
    return {site: np.array(row) for site, row in zip(SITES, rows, strict=True)}


def test_rows_go_by_positives():  # METHODS 2.9 fact 4
    counts = per_site([[10, 0, 5], [30, 20, 0], [0, 20, 5]])
    shares = proxy_shares(counts, IMAGES, EVERY)
    weights = normalise(shares)
    assert weights["a"].tolist() == [0.25, 0, 0.5]
    assert weights["b"].tolist() == [0.75, 0.5, 0]
    assert weights["c"].tolist() == [0, 0.5, 0.5]
    proxies = per_site([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]])
    sent = {site: {"head": torch.tensor(value)[:, None]} for site, value in proxies.items()}
    new = reduce({"head": torch.zeros(3, 1)}, sent, {"head": shares}, {"head": ("head",)})
    assert new["head"].flatten().tolist() == [1.75, 5, 6]


def test_a_label_nobody_showed_goes_by_images_of_who_marks_it():  # METHODS 2.9 fact 5
    counts = per_site([[0, 1], [0, 0], [0, 0]])
    marks = per_site([[True, True], [False, True], [True, True]])
    weights = normalise(proxy_shares(counts, IMAGES, marks))
    assert [weights[s][0] for s in SITES] == pytest.approx([0.529412, 0, 0.470588], abs=1e-6)
    assert [weights[s][1] for s in SITES] == [1, 0, 0]


def test_a_label_nobody_showed_or_marks_keeps_its_row():
    none = {site: np.zeros(1, bool) for site in SITES}
    shares = proxy_shares({site: np.zeros(1) for site in SITES}, IMAGES, none)
    sent = {site: {"head": torch.full((1, 2), 5.0)} for site in SITES}
    before = {"head": torch.tensor([[0.1, -0.2]])}
    assert torch.equal(
        reduce(before, sent, {"head": shares}, {"head": ("head",)})["head"], before["head"]
    )


def test_a_floor_keeps_a_rare_label_that_a_site_marks():
    counts = per_site([[0.0], [10.0], [0.0]])
    marks = per_site([[True], [True], [False]])
    shares = proxy_shares(counts, IMAGES, marks, 1.0)
    assert [shares[s][0] for s in SITES] == [1, 10, 0]


def test_masked_shares_and_the_body():  # METHODS 2.4, 2.9 fact 9
    marks = per_site([[True, False], [False, True], [True, True]])
    shares = masked_shares(IMAGES, marks)
    assert [shares[s].tolist() for s in SITES] == [[900, 0], [0, 300], [800, 800]]
    body = normalise(IMAGES)
    assert [float(body[s]) for s in SITES] == pytest.approx([0.45, 0.15, 0.40])


def test_labelled_counts_and_positives_differ_for_rare_findings():  # METHODS 6.3, item 2
    nodule = {site: np.array([count]) for site, count in zip(SITES, (45, 67, 55), strict=True)}
    images = dict.fromkeys(SITES, 1000.0)
    one = {site: np.ones(1, bool) for site in SITES}
    by_positives = normalise(proxy_shares(nodule, images, one))
    found = [by_positives[s][0] for s in SITES]
    assert found == pytest.approx([0.269461, 0.401198, 0.329341], abs=1e-6)
    by_labelled = normalise(masked_shares(images, one))
    assert [by_labelled[s][0] for s in SITES] == pytest.approx([1 / 3] * 3)
