"""Pseudo labels by thresholds and their losses, against METHODS 2.9 and by hand."""

import math

import pytest
import torch

from consilia.ops.confident import (
    class_loss,
    entry_loss,
    sure_class,
    sure_entries,
    unweighted,
)
from consilia.ops.losses import ClassWeights

ALL = torch.ones(1, 3, dtype=torch.bool)


def test_entries_between_the_thresholds_are_ignored():  # METHODS 2.9 fact 3
    target, told = sure_entries(torch.tensor([[0.9, 0.5, 0.005]]), ALL, 0.85, 0.01)
    assert target.tolist() == [[1, 0, 0]]
    assert told.tolist() == [[True, False, True]]
    logits = torch.logit(torch.tensor([[0.8, 0.6, 0.1]]))
    assert entry_loss(logits, target, told).item() == pytest.approx(0.328504, abs=1e-6)
    assert entry_loss(logits, target, told).item() / 3 == pytest.approx(0.109501, abs=1e-6)
    # The code takes the mean of all entries first, the unsure one by its probability, then masks.
    soft = torch.where(told, target, 0.5)
    scalar = entry_loss(logits, soft, ALL) / 3
    assert (scalar * told).mean().item() == pytest.approx(0.231569, abs=1e-6)


def test_thresholds_are_met_by_equality():
    _, told = sure_entries(torch.tensor([[0.75, 0.25, 0.5]]), ALL, 0.75, 0.25)
    assert told.tolist() == [[True, True, False]]
    _, told = sure_class(torch.tensor([[0.75, 0.25]]), ALL[:, :2], 0.75)
    assert told.all()


def test_known_entries_get_no_pseudo_label():
    unknown = torch.tensor([[False, True, False]])
    target, told = sure_entries(torch.tensor([[0.99, 0.99, 0.001]]), unknown, 0.85, 0.01)
    assert target.tolist() == [[0, 1, 0]]
    assert told.tolist() == [[False, True, False]]


def test_a_single_label_that_the_site_marks_is_discarded():  # METHODS 2.9 fact 10
    p = torch.tensor([[0.0, 0.99, 0.0, 0.01], [0.01, 0.0, 0.0, 0.99], [0.1, 0.0, 0.0, 0.9]])
    unknown = torch.tensor([[False, False, False, True]] * 3)
    target, told = sure_class(p, unknown, 0.95)
    assert told[:, 0].tolist() == [False, True, False]
    assert target.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_losses_divide_by_images_and_not_by_accepted_ones():  # Eqs. 4 and 5
    logits = torch.tensor([[2.0, -1.0], [0.5, 0.3]])
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    told = torch.tensor([[True, True], [False, False]])
    by_hand = -math.log(1 / (1 + math.exp(-2))) - math.log(1 - 1 / (1 + math.exp(1)))
    assert entry_loss(logits, target, told).item() == pytest.approx(by_hand / 2)
    by_hand = -math.log(math.exp(2) / (math.exp(2) + math.exp(-1)))
    assert class_loss(logits, target, told, 2.0).item() == pytest.approx(by_hand / 2)


def test_a_weight_is_of_what_is_present_or_of_all_that_is_said():
    logits, told = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    weight, labels = torch.tensor([859 / 141, 100.0]), torch.tensor([[1.0, 0.0]])
    found = entry_loss(logits, labels, told, ClassWeights(positive=weight)).item()
    assert found == pytest.approx((6.092199 + 1) * math.log(2), abs=1e-5)  # METHODS 5.9 fact 5
    found = entry_loss(logits, labels, told, ClassWeights(entry=weight)).item()
    assert found == pytest.approx((6.092199 + 100) * math.log(2), abs=1e-4)


def test_weights_are_taken_out_of_the_odds():
    """The best constant answer to weighted labels is not their frequency; undone it is."""
    weight, logit = torch.tensor([859 / 141]), torch.zeros(1, requires_grad=True)
    labels = (torch.arange(1000) < 141).float()[:, None]
    told = torch.ones(1000, 1, dtype=torch.bool)
    for _ in range(200):
        loss = entry_loss(logit.expand(1000, 1), labels, told, ClassWeights(positive=weight))
        (slope,) = torch.autograd.grad(loss, logit)
        logit = (logit - slope).detach().requires_grad_()
    p = logit.sigmoid()[None].detach()
    assert p.item() == pytest.approx(0.5, abs=1e-4)
    assert unweighted(p, weight).item() == pytest.approx(0.141, abs=1e-4)
    ends = torch.tensor([[0.0, 1.0]])
    assert torch.equal(unweighted(ends, torch.tensor([30.0, 30.0])), ends)
    same = torch.tensor([[0.3, 0.8]])
    torch.testing.assert_close(unweighted(same, torch.ones(2)), same)


def test_what_is_not_told_is_never_read():
    logits = torch.zeros(1, 3)
    told = torch.tensor([[True, False, True]])
    one = entry_loss(logits, torch.tensor([[1.0, 7.0, 0.0]]), told)
    assert torch.equal(one, entry_loss(logits, torch.tensor([[1.0, float("nan"), 0.0]]), told))
