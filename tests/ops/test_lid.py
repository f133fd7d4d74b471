"""The local intrinsic dimension against the formula in a loop, and on points of known dimension."""

import math

import pytest
import torch

from consilia.ops.lid import local_dimension


def cloud(count, dimension, seed=0):
    return torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed))


def test_it_is_the_formula():
    points = cloud(12, 3)
    for i, found in enumerate(local_dimension(points, 5).tolist()):
        far = sorted(math.dist(points[i].tolist(), points[j].tolist()) for j in range(12) if j != i)
        near = far[:5]
        expected = -5 / sum(math.log(r / (near[-1] + 1e-6)) for r in near)
        assert found == pytest.approx(expected, rel=1e-4)


def test_it_grows_with_the_dimension():
    line = torch.outer(torch.linspace(0, 1, 200), torch.ones(8))
    means = [
        float(local_dimension(points).mean()) for points in (line, cloud(200, 2), cloud(200, 8))
    ]
    assert means == sorted(means)
    assert means[0] == pytest.approx(1, abs=0.4)


def test_few_and_equal_points():
    assert local_dimension(cloud(1, 4)).tolist() == [0]
    assert torch.isfinite(local_dimension(cloud(3, 4), 20)).all()
    same = local_dimension(torch.ones(6, 4))
    assert torch.isfinite(same).all()
    assert (same < 0.1).all()


def test_a_common_shift_changes_nothing():
    points = cloud(30, 5)
    torch.testing.assert_close(
        local_dimension(points + 100), local_dimension(points), rtol=1e-3, atol=1e-3
    )
