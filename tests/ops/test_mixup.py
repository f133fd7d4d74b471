"""MixUp and the teacher against METHODS 2.9."""

import pytest
import torch
from torch import nn

from consilia.ops.mixup import draw_share, mixed, mixed_labels
from consilia.ops.teacher import follow, moving_average


def test_a_blend_of_one_hot_labels():  # METHODS 2.9 fact 8
    one, two = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    torch.testing.assert_close(mixed(one, two, 0.3), torch.tensor([[0.3, 0.7]]))
    known = torch.tensor([[True, True]])
    soft, told = mixed_labels(one, known, two, torch.tensor([[True, False]]), 0.3)
    assert told.tolist() == [[True, False]]
    torch.testing.assert_close(soft, torch.tensor([[0.3, 0.0]]))


def test_the_share_is_beta_and_of_the_generator_alone():
    randoms = torch.Generator().manual_seed(0)
    drawn = torch.tensor([draw_share(0.2, randoms) for _ in range(2000)])
    assert 0 <= drawn.min() <= drawn.max() <= 1
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.03)
    assert drawn.var().item() == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.01)
    assert draw_share(0.2, torch.Generator().manual_seed(0)) == pytest.approx(drawn[0].item())


@pytest.mark.parametrize(("steps", "left"), [(200, 0.818649), (30, 0.970431)])
def test_how_much_of_the_start_a_teacher_keeps(steps, left):  # METHODS 2.9 fact 6
    teacher, student = [torch.ones(3, dtype=torch.float64)], [torch.zeros(3, dtype=torch.float64)]
    for _ in range(steps):
        moving_average(teacher, student, 0.999)
    assert teacher[0][0].item() == pytest.approx(left, abs=1e-6)
    once = [torch.zeros(1, dtype=torch.float64)]
    moving_average(once, [torch.ones(1, dtype=torch.float64)], 0.999)
    assert once[0].item() == pytest.approx(0.001)


def test_a_teacher_copies_statistics_and_averages_parameters():
    teacher, student = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    student(torch.randn(8, 2))
    with torch.no_grad():
        student.weight += 1
    follow(teacher, student, 0.9)
    torch.testing.assert_close(teacher.weight, torch.full((2,), 1.1))
    assert torch.equal(teacher.running_mean, student.running_mean)
    assert torch.equal(teacher.num_batches_tracked, student.num_batches_tracked)
    assert teacher.weight.requires_grad


def test_a_teachers_statistics_may_follow_as_its_weights_do():
    teacher, student = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    student(torch.randn(8, 2))
    follow(teacher, student, 0.9, "followed")
    torch.testing.assert_close(teacher.running_mean, 0.1 * student.running_mean)
    torch.testing.assert_close(teacher.running_var, 0.9 + 0.1 * student.running_var)
    assert torch.equal(teacher.num_batches_tracked, student.num_batches_tracked)
