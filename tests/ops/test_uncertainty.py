"""Entropies and the split of images against METHODS 2.9 and loops."""

import math

import pytest
import torch

from consilia.ops.uncertainty import binary_entropy, entropy, split, split_sizes


def test_entropy():  # METHODS 2.9 fact 1
    assert entropy(torch.tensor([[0.7, 0.2, 0.1]])).item() == pytest.approx(0.801819, abs=1e-6)
    assert entropy(torch.full((1, 3), 1 / 3)).item() == pytest.approx(1.098612, abs=1e-6)
    assert entropy(torch.full((1, 7), 1 / 7)).item() == pytest.approx(1.945910, abs=1e-6)
    assert entropy(torch.tensor([[1.0, 0.0]])).item() == 0  # and no NaN


def test_binary_entropy_over_unknown_labels():  # METHODS 2.9 fact 2
    p = torch.tensor([[0.5, 0.9, 0.3]])
    unknown = torch.tensor([[True, True, False]])
    one = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
    assert one == pytest.approx(0.468996, abs=1e-6)
    assert binary_entropy(p, unknown).item() == pytest.approx(0.734498, abs=1e-6)
    assert binary_entropy(p, torch.zeros_like(unknown)).item() == 0
    sure = binary_entropy(torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool))
    assert sure.item() == 0


def test_entropy_as_the_code_has_it_would_rank_otherwise():  # METHODS 2.9 fact 2
    """Known labels count 0, the sum is divided by all labels, and log(1 - p) is left out."""
    theirs = entropy(torch.tensor([[0.5, 0.9, 0.0]])).item() / 3
    assert theirs == pytest.approx(0.147133, abs=1e-6)
    unknown = torch.ones(1, 1, dtype=torch.bool)
    sure, unsure = torch.tensor([[1 / math.e]]), torch.tensor([[0.5]])
    assert entropy(sure) > entropy(unsure)
    assert binary_entropy(sure, unknown) < binary_entropy(unsure, unknown)


def test_sizes():  # METHODS 2.9 fact 7
    assert split_sizes(1402, 50, 200) == (50, 200)
    assert split_sizes(100, 50, 200) == (20, 80)  # scaled in proportion
    assert split_sizes(3, 50, 200) == (1, 2)
    assert split_sizes(1, 50, 200) == (0, 1)
    assert split_sizes(3, 50, 1) == (2, 1)  # never all uncertain
    assert split_sizes(10, 0, 4) == (0, 4)
    assert split_sizes(0, 50, 200) == (0, 0)


def test_split():
    score = torch.rand(1402, generator=torch.Generator().manual_seed(0))
    high, low, stream = split(score, 50, 200)
    assert (len(high), len(low), len(stream)) == (50, 200, 1352)
    assert score[high].min() >= score[stream].max()
    assert score[low].max() <= score.sort().values[199]
    assert sorted([*high.tolist(), *stream.tolist()]) == list(range(1402))


def test_equal_scores_go_by_position():
    high, low, stream = split(torch.zeros(5), 2, 1)
    assert (high.tolist(), low.tolist(), stream.tolist()) == ([3, 4], [0], [0, 1, 2])
