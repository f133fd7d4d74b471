"""Planes that move with images, and back."""

import pytest
import torch

from consilia.training.augment import POLICIES, draw
from consilia.training.carry import carry, undo
from consilia.training.seeds import generator


@pytest.mark.parametrize("policy", ["none", "hflip", "flips"])
def test_what_is_undone_is_as_before(policy):
    planes = torch.rand(40, 2, 6, 6)
    move = draw(POLICIES[policy], 40, generator("carry", policy))
    moved = carry(move, planes)
    assert torch.equal(carry(undo(move), moved), planes)
    assert torch.equal(moved, planes) == (policy == "none")


def test_turns_are_undone_with_and_without_flips():
    from consilia.training.augment import Policy

    move = draw(Policy(hflip=0.5, vflip=0.5, turns=1.0), 64, generator("turns"))
    planes = torch.rand(64, 1, 5, 5)
    seen = set(zip(move.hflip.tolist(), move.vflip.tolist(), move.turns.tolist(), strict=True))
    assert len(seen) == 16  # every combination is there
    assert torch.equal(carry(undo(move), carry(move, planes)), planes)


def test_what_is_carried_is_a_copy():
    planes = torch.rand(2, 1, 4, 4)
    carried = carry(draw(POLICIES["none"], 2, generator("copy")), planes)
    carried.zero_()
    assert planes.sum() > 0
