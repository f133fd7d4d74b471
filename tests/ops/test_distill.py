"""Distillation: the strength of METHODS 3.8, and the divergence and Dice against loops."""

import math

import pytest
import torch

from consilia.ops.distill import distillation_strength, known_dice, label_divergence


def test_the_strength_grows_with_the_gap_and_is_zero_for_a_worse_teacher():
    assert distillation_strength(0.5, 0.5, 0.5) == 0
    assert distillation_strength(0.4, 0.5, 0.5) == 0
    assert distillation_strength(0.6, 0.5, 0.5) == pytest.approx(0.05 * 10**0.5)
    assert distillation_strength(0.7, 0.5, 0.5) == pytest.approx(0.5)
    assert distillation_strength(1.0, 0.0, 0.5) == pytest.approx(0.5)  # never more than λ₀


def test_the_divergence_of_one_label_is_that_of_the_softmax():
    student, teacher = torch.tensor([[0.7], [0.2]]), torch.tensor([[0.9], [0.4]])
    expected = 0.0
    for s, t in ((0.7, 0.9), (0.2, 0.4)):
        expected += t * math.log(t / s) + (1 - t) * math.log((1 - t) / (1 - s))
    assert label_divergence(student, teacher).item() == pytest.approx(expected / 2, rel=1e-5)
    assert label_divergence(teacher, teacher).item() == 0


def test_the_divergence_teaches_the_student():
    student = torch.full((1, 1, 2, 2), 0.3, requires_grad=True)
    label_divergence(student, torch.full((1, 1, 2, 2), 0.8)).backward()
    assert (student.grad < 0).all()


def test_dice_reads_only_what_is_known():
    p = torch.tensor([[[0.9, 0.9, 0.1, 0.1]], [[0.1, 0.9, 0.9, 0.1]]])[..., None]
    y = torch.tensor([[[1.0, 0, 1, 0]], [[0, 1, 0, 0]]])[..., None]
    p, y = p > 0.5, y > 0.5
    assert known_dice(p, y, None) == pytest.approx(2 * 2 / (4 + 3))
    known = torch.ones_like(y, dtype=torch.bool)
    known[0, 0, 1] = known[1, 0, 2] = False  # the two false alarms
    assert known_dice(p, y, known) == pytest.approx(2 * 2 / (2 + 3))


def test_dice_is_the_mean_over_labels_that_occur():
    p = torch.tensor([[0.9, 0.1, 0.1], [0.9, 0.9, 0.1]])
    y = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    assert known_dice(p > 0.5, y > 0.5, None) == pytest.approx((2 / 3 + 1) / 2)
    nothing = torch.zeros(2, 1, dtype=torch.bool)
    assert known_dice(nothing, nothing, None) == 1
