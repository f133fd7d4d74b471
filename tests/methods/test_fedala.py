"""FedALA against a second, plain implementation; with W fixed at 1 it is FedAvg."""

import numpy as np
import pytest
import torch

from consilia.testing import run_toy, toy_spec
from consilia.training.batch import orders
from consilia.training.seeds import generator
from tests.methods.plain_personal import Plain, at_server, close, kept, spec_of, uneven
from tests.methods.support import (
    assert_same_state,
    ledger_fields,
    server_weights,
    without_times,
)


def plain_run(spec, sites, *, eta=1.0, longest=20, portion=0.8, steady=0.1):
    """Algorithm 1 of FedALA on decoder and head; returns the average, every W and how it went."""
    plain = Plain(spec, sites)
    upper = [n for n, _ in plain.net.named_parameters() if n.startswith(("decoder.", "head."))]
    world, own, weights, passes = plain.start, {}, {}, {}
    for number in range(1, spec.rounds + 1):
        sent = {}
        for name, cases in plain.cases.items():
            plain.net.load_state_dict(world)
            if name in own:
                w = weights.get(name) or {n: torch.ones_like(world[n]) for n in upper}
                first = name not in weights
                randoms = generator(spec.seed, name, number, "shares")
                used = torch.arange(len(cases))
                if not first and portion < 1:
                    used = torch.randperm(len(cases), generator=randoms)[
                        : int(portion * len(cases))
                    ]
                parameters = dict(plain.net.named_parameters())
                mixed = {n: own[name][n] + (world[n] - own[name][n]) * w[n] for n in upper}
                plain.net.load_state_dict({**world, **mixed})
                plain.net.train()
                losses = []
                while len(losses) < (longest if first else 1):
                    costs = []
                    for index in orders(len(used), spec.training.batch, 1, None, randoms):
                        torch.rand(3, len(index), generator=randoms)  # the augmentation's draw
                        plain.net.zero_grad()
                        loss = plain.task(cases.cut(used[index]))
                        loss.backward()
                        costs.append(loss.item())
                        for n in upper:
                            slope = parameters[n].grad * (world[n] - own[name][n])
                            w[n] = (w[n] - eta * slope).clamp(0, 1)
                        mixed = {n: own[name][n] + (world[n] - own[name][n]) * w[n] for n in upper}
                        plain.net.load_state_dict({**world, **mixed})
                    losses.append(np.mean(costs))
                    if first and len(losses) > 10 and np.std(losses[-10:]) < steady:
                        break
                passes[name, number] = len(losses)
                weights[name] = w
            plain.train(name, number)
            sent[name] = plain.state()
            own[name] = sent[name]
        world = plain.average(sent, world)
    return world, weights, own, passes


def test_fedala_is_its_algorithm(tmp_path):
    changes = {"rounds": 4, "training": {"learning_rate": 0.5}}
    spec = spec_of("fedala", settings={"eta": 50.0}, **changes)
    run_toy(spec, tmp_path / "run", uneven(spec))
    world, w, own, passes = plain_run(spec, uneven(spec), eta=50.0)
    assert passes["anna", 2] == 11
    assert passes["anna", 3] == 1
    close(at_server(tmp_path / "run"), world, rtol=1e-3, atol=1e-5)
    moved = 0.0
    for site in w:
        close(kept(tmp_path / "run", site, "follow"), w[site], rtol=1e-3, atol=1e-4)
        moved += sum(float((1 - value).sum()) for value in w[site].values())
        mine = kept(tmp_path / "run", site, "own")
        close(mine, {name: own[site][name] for name in mine}, rtol=1e-3, atol=1e-5)
    assert moved > 1  # sites did keep something of their own


def test_the_first_learning_is_capped(tmp_path):
    settings = {"longest": 3, "eta": 20.0}
    spec = spec_of("fedala", settings=settings, rounds=2)
    run_toy(spec, tmp_path / "run", uneven(spec))
    _, w, _, passes = plain_run(spec, uneven(spec), longest=3, eta=20.0)
    assert passes["bo", 2] == 3
    close(kept(tmp_path / "run", "bo", "follow"), w["bo"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", ["segmentation", "single-label"])
def test_with_w_fixed_at_one_it_is_fedavg_to_the_bit(task, tmp_path):
    ala = {"name": "fedala", "settings": {"eta": 0.0}}
    one = run_toy(toy_spec(task, method=ala), tmp_path / "fedala")
    two = run_toy(toy_spec(task, method={"name": "fedavg"}), tmp_path / "fedavg")
    assert_same_state(server_weights(tmp_path / "fedala"), server_weights(tmp_path / "fedavg"))
    assert one["sites"] == two["sites"]
    for value in kept(tmp_path / "fedala", "anna", "follow").values():
        assert (value == 1).all()


def test_one_site_alone_is_local_training(tmp_path):
    sites = [{"name": "anna", "supervision": "mask"}]
    ala = run_toy(toy_spec(sites=sites, method={"name": "fedala"}), tmp_path / "fedala")
    local = run_toy(toy_spec(sites=sites, method={"name": "local"}), tmp_path / "local")
    assert ala["sites"] == local["sites"]  # the average is its own model: there is nothing to mix


def test_w_and_the_own_decoder_stay(tmp_path):
    run_toy(spec_of("fedala"), tmp_path / "run")
    fields = {("Up", name) for name in ("weights", "images", "loss")}
    assert ledger_fields(tmp_path / "run", "up", "train") == fields
    follow = kept(tmp_path / "run", "anna", "follow")
    assert all(name.startswith(("decoder.", "head.")) for name in follow)


def test_a_site_keeps_its_w_while_it_is_away(tmp_path):
    for path, rounds, away in (("short", 2, []), ("long", 4, [3, 4])):
        spec = spec_of("fedala", rounds=rounds, participation={"absent": {"anna": away}})
        run_toy(spec, tmp_path / path)
    for field in ("follow", "own"):
        one, two = (kept(tmp_path / path, "anna", field) for path in ("short", "long"))
        assert_same_state(one, two)


def test_a_site_without_labels_uses_the_average(tmp_path):
    sites = [{"name": "anna", "supervision": "mask"}, {"name": "bo", "supervision": "none"}]
    one = run_toy(toy_spec(sites=sites, method={"name": "fedala"}), tmp_path / "fedala")
    two = run_toy(toy_spec(sites=sites, method={"name": "fedavg"}), tmp_path / "fedavg")
    assert without_times(one)["sites"]["bo"] == without_times(two)["sites"]["bo"]


def test_both_decoders_are_mixed(tmp_path):
    run_toy(spec_of("fedala", learner={"name": "dual"}, rounds=2), tmp_path / "run")
    names = kept(tmp_path / "run", "anna", "follow")
    assert any(name.startswith("aux.") for name in names)
