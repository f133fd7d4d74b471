"""RMD against a second, plain implementation, and what its parts do alone."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from consilia.methods import make_method, why_not
from consilia.methods.incomplete.rmd import DROPOUT, Down, Server
from consilia.testing import run_toy, toy_spec
from consilia.training.seeds import generator
from consilia.training.warp import apply_warp, draw_warp
from tests.methods.plain import (
    Plain,
    assert_close,
    half_trained,
    lesion_sites,
    lesion_spec,
    run_twice_with_a_stop,
)
from tests.methods.support import assert_same_state, ledger_fields, server_weights


def shaken(net, image):
    """The network with dropout after each level, its layers called one by one."""
    x, features = image, []
    for depth, (level, rate) in enumerate(zip(net.encoder.levels, (0.05, 0.1), strict=True)):
        x = F.dropout(level(F.max_pool2d(x, 2) if depth else x), rate)
        features.append(x)
    found = net.head(net.decoder(features))
    return found if found.shape[1] == 2 else torch.cat((torch.zeros_like(found), found), 1)


def margin(scores):
    return scores[:, 1] - scores[:, 0]


def noted(loss, halves):
    """The same loss, which also writes down its mean over the two networks."""

    def noting(*batch):
        total = loss(*batch)
        halves.append(total.item() / 2)
        return total

    return noting


def plain_run(spec, sites, t1, u, tau, weight):
    """Return both global networks, and what each site reports as its loss in each round."""
    run, reported = Plain(spec, sites, ("main", "second")), []
    for t in range(spec.rounds):
        forget = tau * min(1, t / (t1 - 1))
        grown = math.exp(-5 * (1 - min(t / t1, 1)) ** 2)
        sent, losses = {"main": {}, "second": {}}, {s: [] for s in sites}
        for site in sorted(sites):
            run.load()
            randoms = generator(spec.seed, site, t + 1, "strong views")

            def loss(image, target, index, forget=forget, grown=grown, t=t, randoms=randoms):
                nets = [run.nets["main"], run.nets["second"]]
                plain = [run.scores(image, net) for net in nets]
                marked = (target > 0).float()
                bce = [
                    F.binary_cross_entropy_with_logits(
                        margin(s), marked, reduction="none"
                    ).flatten()
                    for s in plain
                ]
                count = int((1 - forget) * len(bce[0]))
                easy = [torch.sort(x.detach(), stable=True).indices[:count] for x in bce]
                total = bce[0][easy[1]].mean() + bce[1][easy[0]].mean()
                warp = draw_warp(len(image), randoms, bent=t >= t1)
                if t >= t1:
                    image = image + 0.02 * torch.randn(image.shape, generator=randoms)
                    image = image.clamp(0, 1)
                view = apply_warp(warp, image)
                strong = [shaken(net, view) for net in nets]
                carried = [apply_warp(warp, s) for s in plain]
                change = [
                    ((margin(a) - margin(b)) ** 2).detach().flatten()
                    for a, b in zip(strong, carried, strict=True)
                ]
                count = int(min(1, grown * u) * len(change[0]))
                for me, you in ((0, 1), (1, 0)):
                    steady = torch.sort(change[you], stable=True).indices[:count]
                    p = margin(strong[me]).flatten()[steady].sigmoid()
                    q = margin(carried[you]).detach().flatten()[steady].sigmoid()
                    kl = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
                    total = total + weight * grown * kl.mean()
                return total

            run.train(site, t + 1, noted(loss, losses[site]))
            for name in run.names:
                sent[name][site] = run.sent(name)
        for name in run.names:
            run.average(sent[name], run.counts, name)
        reported.append({s: sum(x) / len(x) for s, x in losses.items()})
    return run.world, reported


@pytest.mark.parametrize("objective", ["dice-foreground", "dice"])
def test_rmd_is_its_algorithm(tmp_path, objective):
    settings = {"ramp": 2, "reliable": 0.7, "forget": 0.2, "distill": 0.5}
    spec = lesion_spec("rmd", 3, settings, learner={"objective": objective})
    sites = lesion_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    expected, reported = plain_run(spec, sites, 2, 0.7, 0.2, 0.5)
    assert_close(tmp_path / "run", expected["main"], "first")
    assert_close(tmp_path / "run", expected["second"], "second")
    lines = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    for line, told in zip(lines, reported, strict=True):
        assert {s: x["loss"] for s, x in line["sites"].items()} == pytest.approx(told, rel=1e-4)


def test_two_networks_that_do_not_meet_train_as_under_fedavg(tmp_path):
    """Nothing forgotten, nothing taught, one batch per round: the first network is FedAvg's."""
    init = half_trained(tmp_path / "init.safetensors", "partial-ce")
    learner = {"objective": "partial-ce", "init": init}
    training = {"batch": 16, "learning_rate": 0.05}
    rmd = lesion_spec("rmd", 3, {"forget": 0.0, "distill": 0.0}, learner=learner, training=training)
    fedavg = lesion_spec("fedavg", 3, learner=learner, training=training)
    one = run_toy(rmd, tmp_path / "rmd", lesion_sites(rmd))
    two = run_toy(fedavg, tmp_path / "fedavg", lesion_sites(fedavg))
    assert_close(tmp_path / "rmd", server_weights(tmp_path / "fedavg"), "first")
    dice = one["mean"]["dice"]  # of the first network, which has learned more than the second
    assert dice == pytest.approx(two["mean"]["dice"], abs=0.02)
    assert dice > 0.5


def test_the_first_network_alone_is_judged():
    down = Down({"w": torch.zeros(2)}, {"w": torch.ones(2)}, 0.0, 1.0, bent=False)
    assert make_method("rmd").model_for(down, None, None) is down.first


def test_every_level_of_the_encoder_has_its_rate():
    """The toy network has two levels only, so that a run does not see the others."""
    assert DROPOUT == (0.05, 0.1, 0.2, 0.3, 0.5)


def test_schedules():
    method = make_method("rmd")
    states = [Server({}, {}, {}, over, {}) for over in (0, 5, 9, 10, 200)]
    downs = [method.broadcast(state, "a") for state in states]
    assert [d.forget for d in downs] == pytest.approx([0, 0.005 * 5 / 9, 0.005, 0.005, 0.005])
    grown = [math.exp(-5), math.exp(-1.25), math.exp(-5 * 0.01), 1, 1]
    assert [d.grown for d in downs] == pytest.approx(grown)
    assert [d.bent for d in downs] == [False, False, False, True, True]


def test_a_stopped_run_goes_on(tmp_path):
    spec = lesion_spec("rmd", 4, {"ramp": 2, "distill": 0.5})
    assert_same_state(*run_twice_with_a_stop(spec, lesion_sites(spec), tmp_path, 2))


def test_exactly_what_is_declared_leaves_a_site(tmp_path):
    run_toy(lesion_spec("rmd", 1), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        ("Up", name) for name in ("first", "second", "images", "loss")
    }


def test_only_masks_of_one_label():
    assert "segments one label" in why_not("rmd", toy_spec().federation)
