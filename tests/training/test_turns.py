"""Training in two turns: how a round's steps are split, and what each turn moves."""

import torch
from tests.training.test_taps import site_of

from consilia.training.settings import Training
from consilia.training.turns import local_steps, split_steps, train_in_turns


def test_steps_are_split_as_the_code_of_fedlppa_does():
    assert split_steps(20, 0.4) == (8, 12)  # FedRep: rep_iters 12 of 20
    assert split_steps(5, 0.6) == (3, 2)  # FedLC: 2 of 5
    assert split_steps(5, 0.4) == (2, 3)  # FedICRA: 3 of 5
    assert split_steps(1, 0.4) == (1, 1)
    assert split_steps(3, 0.0) == (0, 3)
    assert split_steps(3, 1.0) == (3, 0)


def test_the_steps_of_a_round():
    assert local_steps(Training(batch=4, epochs=2), 10) == 6
    assert local_steps(Training(batch=4, steps=7), 10) == 7


def test_each_turn_moves_only_its_own_part():
    site = site_of()
    before = site.weights()
    for part, still in ((1.0, "body"), (0.0, "head")):
        site.load(before)
        trained = train_in_turns(site, site.task_loss, part)
        assert (trained.steps, trained.images) == (3, 10)
        after = site.weights()
        for group in ("body", "head"):
            same = all(torch.equal(after[n], before[n]) for n in site.bench.groups[group])
            assert same == (group == still)
