"""Losses against loops over pixels, METHODS' numbers, and the promise to read only what is known."""

import math

import pytest
import torch

from consilia.ops.losses import (
    ClassWeights,
    dice_flat,
    dice_foreground,
    dice_squared,
    labelled_cross_entropy,
    marginal_cross_entropy,
    masked_bce,
    masked_dice_loss,
    negatives_over_positives,
    proximal_term,
)
from consilia.ops.pseudo import fills


def plane(*values):
    return torch.tensor(values, dtype=torch.float32).reshape(1, 1, 1, -1)


def test_fedmix_dice():  # METHODS 1.9 facts 6 and 8
    assert dice_flat(plane(1, 1, 1, 0, 0), plane(1, 1, 1, 1, 0)).item() == pytest.approx(
        0.857145, abs=1e-6
    )
    assert dice_flat(plane(0, 0), plane(0, 0)).item() == 1
    assert dice_flat(plane(1, 1, 0, 0), plane(0, 0, 1, 1)).item() == pytest.approx(
        2.49994e-05, rel=1e-4
    )
    loss = masked_dice_loss(plane(0.9, 0.8, 0.1, 0.2), plane(1, 1, 0, 0))
    assert loss.item() == pytest.approx(0.149996, abs=1e-6)


@pytest.mark.parametrize(("share", "dice"), [(0.30, 0.4615), (1 / 3, 0.5), (0.40, 0.5714)])
def test_the_box_rule_of_fedmix(share, dice):  # METHODS 1.9 fact 7
    box = torch.ones(1, 1, 1, 3000)
    filled = (torch.arange(3000) < round(3000 * share)).float().reshape(1, 1, 1, -1)
    assert dice_flat(filled, box).item() == pytest.approx(dice, abs=1e-4)
    assert fills(filled.bool(), box.bool()).item() is (share > 0.3)


def test_fedia_dice_scores_empty_against_empty_as_zero():
    empty = torch.zeros(1, 2, 2)
    assert dice_foreground(empty, empty).item() == 0
    p = torch.tensor([[[0.5, 1.0]]])
    y = torch.tensor([[[1.0, 1.0]]])
    assert dice_foreground(p, y).item() == pytest.approx(3 / 3.5001)


def test_squared_dice_of_fedlppa():  # METHODS 3.9 fact 5
    p = torch.tensor([0.9, 0.6, 0.2, 0.1])
    y = torch.tensor([1.0, 1, 0, 0])
    two = torch.stack((1 - p, p)).reshape(1, 2, 1, 4)
    hot = torch.stack((1 - y, y)).reshape(1, 2, 1, 4)
    background, foreground = (1 - dice_squared(two, hot)).tolist()
    assert foreground == pytest.approx(0.068323, abs=1e-5)
    assert background == pytest.approx(0.060773, abs=1e-5)
    known = torch.tensor([True, True, False, False]).reshape(1, 1, 4)
    part = dice_squared(two, hot, known)
    assert part[1].item() == pytest.approx((2 * 1.5 + 1e-5) / (0.81 + 0.36 + 2 + 1e-5), abs=1e-6)


def test_unknown_pixels_are_never_read_by_dice():
    p = torch.rand(2, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    y = (p > 0.5).float()
    known = torch.ones(2, 2, 4, 4, dtype=torch.bool)
    known[:, 0, 2:] = False
    before = masked_dice_loss(p, y, known)
    y[:, 0, 2:] = 1 - y[:, 0, 2:]
    assert torch.equal(before, masked_dice_loss(p, y, known))
    assert torch.equal(masked_dice_loss(p, y), masked_dice_loss(p, y, torch.ones_like(known)))


def test_an_image_without_known_pixels_costs_nothing():
    p = torch.rand(2, 1, 3, 3, requires_grad=True)
    known = torch.zeros(2, 1, 3, 3, dtype=torch.bool)
    loss = masked_dice_loss(p, torch.ones(2, 1, 3, 3), known)
    loss.backward()
    assert loss.item() == 0
    assert p.grad.abs().sum() == 0


def logits_of(probabilities):
    return torch.log(torch.tensor(probabilities)).T.reshape(1, len(probabilities[0]), 1, -1)


def test_partial_cross_entropy():  # METHODS 3.9 fact 4
    logits = logits_of([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]])
    target = torch.tensor([[[1, 0, 1]]])
    known = torch.tensor([[[True, True, False]]])
    labels = torch.ones(1, 1, dtype=torch.bool)
    assert marginal_cross_entropy(logits, target, known, labels).item() == pytest.approx(
        0.289909, abs=1e-6
    )
    assert marginal_cross_entropy(logits, target, known).item() == pytest.approx(0.289909, abs=1e-6)
    nothing = torch.zeros_like(known)
    assert marginal_cross_entropy(logits, target, nothing, labels).item() == 0


def test_an_unmarked_pixel_may_hold_what_the_site_does_not_mark():
    p = [[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]]
    target = torch.tensor([[[0, 1]]])
    known = torch.tensor([[True, False]])  # marks label 1, not label 2
    loss = marginal_cross_entropy(logits_of(p), target, None, known)
    assert loss.item() == pytest.approx(-(math.log(0.2 + 0.5) + math.log(0.6)) / 2, abs=1e-6)


def test_masked_bce():  # METHODS 5.9 fact 4
    p = torch.tensor([[0.9, 0.2, 0.6]])
    y = torch.tensor([[1.0, 1.0, 0.0]])
    known = torch.tensor([[True, False, True]])
    assert masked_bce(torch.logit(p), y, known).item() == pytest.approx(0.510826, abs=1e-6)
    absent = masked_bce(torch.logit(p), torch.tensor([[1.0, 0.0, 0.0]]), torch.ones_like(known))
    assert absent.item() == pytest.approx(0.414932, abs=1e-6)
    weight = torch.tensor([3.0, 1.0, 1.0])
    present = masked_bce(torch.logit(p), y, known, ClassWeights.read("positive", weight))
    assert present.item() == pytest.approx((-3 * math.log(0.9) - math.log(0.4)) / 2, abs=1e-6)
    weight = torch.tensor([3.0, 1.0, 5.0])
    entries = masked_bce(torch.logit(p), y, known, ClassWeights.read("entry", weight))
    assert entries.item() == pytest.approx((-3 * math.log(0.9) - 5 * math.log(0.4)) / 2, abs=1e-6)
    nothing = masked_bce(torch.logit(p), y, known, ClassWeights.read("none", weight))
    assert nothing.item() == pytest.approx(0.510826, abs=1e-6)


@pytest.mark.parametrize("weighs", ["none", "positive", "entry"])
def test_class_weights_travel_by_name(weighs):
    weight = torch.tensor([3.0, 1.0])
    weights = ClassWeights.read(weighs, weight)
    assert len(weights.named()) == (weighs != "none")
    assert ClassWeights.among({**weights.named(), "anchor": weight}) == weights
    assert ClassWeights.read(weighs, None) == ClassWeights()


def test_negatives_over_positives():  # METHODS 5.9 fact 5
    positives, negatives = torch.tensor([141.0, 0.0, 5.0]), torch.tensor([859.0, 10.0, 0.0])
    found = negatives_over_positives(positives, negatives)
    assert found.tolist() == pytest.approx([6.092199, 1, 1], abs=1e-6)


def test_cross_entropy_leaves_unlabelled_images_out():
    logits = torch.tensor([[1.0, 2.0, 0.5], [3.0, 0.0, 0.0]], requires_grad=True)
    target = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    loss = labelled_cross_entropy(logits, target)
    assert loss.item() == pytest.approx(-torch.log_softmax(logits[0], 0)[1].item(), abs=1e-6)
    loss.backward()
    assert logits.grad[1].abs().sum() == 0


def test_proximal_term():  # METHODS 6.5 fact 3
    found = proximal_term([("w", torch.tensor([1.0, 2.0]))], {"w": torch.zeros(2)}, 0.001)
    assert found.item() == pytest.approx(0.0025)
    length = (found / 0.0005).sqrt()  # not squared, as in code that we do not follow
    assert 0.0005 * length.item() == pytest.approx(0.001118, abs=1e-6)


def test_the_proximal_term_of_many_tensors_and_its_slope():
    randoms = torch.Generator().manual_seed(0)
    shapes = [(3, 2, 3, 3), (7,), (), (5, 4)]
    w = {
        str(i): torch.randn(s, generator=randoms, requires_grad=True) for i, s in enumerate(shapes)
    }
    anchor = {name: torch.randn(value.shape, generator=randoms) for name, value in w.items()}
    found = proximal_term(list(w.items()), anchor, 0.3)
    found.backward()
    plain = 0.15 * torch.stack([(v - anchor[n]).pow(2).sum() for n, v in w.items()]).sum()
    assert found.item() == plain.item()
    for name, value in w.items():
        torch.testing.assert_close(value.grad, 0.3 * (value.detach() - anchor[name]))
