"""Training in two turns: how a round's steps are split, and what each turn moves."""

import torch
from tests.training.test_taps import site_of

from consilia.training.job import moved
from consilia.training.local import draw_plan
from consilia.training.seeds import seeded
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


def test_two_turns_are_those_of_one_adamw_that_sees_only_what_is_trained():
    """As in the authors' loop: one optimiser, whose other parameters have no gradient meanwhile."""
    site = site_of()
    site.training = site.training.model_copy(
        update={"optimizer": "adamw", "weight_decay": 0.1, "keep_optimizer": False, "steps": 6}
    )
    start = site.weights()
    train_in_turns(site, site.task_loss, 0.5)
    ours = site.weights()
    site.load(start)
    settings = site.training.model_copy(update={"steps": 3})
    parameters = dict(site.network.named_parameters())
    one = torch.optim.AdamW(
        parameters.values(), settings.learning_rate, settings.betas, weight_decay=0.1
    )
    site.network.train()
    for turn in ("head", "body"):
        for name, parameter in parameters.items():
            parameter.requires_grad_((name in site.bench.groups["head"]) == (turn == "head"))
        used = site.train.supervised()
        plan = draw_plan(used, settings, site.generator(f"{turn} main"))
        with seeded(site.seed, site.name, site.round, "layers", "main"):
            for step in plan:
                one.zero_grad(set_to_none=True)
                site.task_loss(moved(step, site.train.take(step.images))).backward()
                one.step()
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    for name, value in site.weights().items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6, msg=name)
