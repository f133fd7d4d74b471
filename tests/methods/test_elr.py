"""ELR against a second, plain implementation, its limit case, and its targets under moved images."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from consilia.methods import make_method, why_not
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.learner import Learner, PlainLearner
from consilia.training.site import Site, Workbench
from tests.methods.plain import (
    CPU,
    Plain,
    assert_close,
    lesion_sites,
    lesion_spec,
    run_twice_with_a_stop,
)
from tests.methods.support import assert_same_state, final_state, ledger_fields, server_weights


def plain_run(spec, sites, beta, weight):
    """Cross-entropy and log(1 - <p, t>), with a table of targets for every pixel."""
    run = Plain(spec, sites)
    table = {s: torch.zeros(len(run.labels[s]), 2, 16, 16) for s in sites}
    for t in range(1, spec.rounds + 1):
        sent = {}
        for site in sorted(sites):
            run.load()

            def loss(image, target, index, site=site):
                scores = run.scores(image)
                p = scores.softmax(1).clamp(1e-4, 1 - 1e-4)
                for row, i in enumerate(index.tolist()):
                    table[site][i] = beta * table[site][i] + (1 - beta) * p[row].detach() / p[
                        row
                    ].detach().sum(0)
                inner = (p * table[site][index]).sum(1)
                term = torch.log(1 - inner).mean()
                return F.cross_entropy(scores, (target > 0).long()) + weight * term

            run.train(site, t, loss, drawn=False)
            sent[site] = run.sent()
        run.average(sent, run.counts)
    return run.world["main"], table


@pytest.mark.parametrize("objective", ["dice-foreground", "dice"])
def test_elr_is_its_algorithm(tmp_path, objective):
    spec = lesion_spec("elr", 3, {"beta": 0.7, "weight": 2.0}, learner={"objective": objective})
    sites = lesion_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    expected, table = plain_run(spec, sites, 0.7, 2.0)
    assert_close(tmp_path / "run", expected)
    state = final_state(tmp_path / "run")
    for site in sites:
        kept = state[f"memories/{site}/overlay-targets.safetensors:target"]
        torch.testing.assert_close(kept, table[site], rtol=1e-3, atol=1e-4)


def test_without_weight_it_is_fedavg_on_the_cross_entropy_to_the_bit(tmp_path):
    learner, training = (
        {"objective": "partial-ce"},
        {"augment": "flips", "optimizer": "adam", "learning_rate": 0.01},
    )
    elr = lesion_spec("elr", 3, {"weight": 0.0}, learner=learner, training=training)
    fedavg = lesion_spec("fedavg", 3, learner=learner, training=training)
    run_toy(elr, tmp_path / "elr", lesion_sites(elr))
    run_toy(fedavg, tmp_path / "fedavg", lesion_sites(fedavg))
    assert_same_state(server_weights(tmp_path / "elr"), server_weights(tmp_path / "fedavg"))


def site_of(spec, number=1, overlays=None):
    data = toy_sites(spec)["anna"]
    bench = Workbench(PlainLearner.of(spec.learner, spec.federation), spec.federation, CPU, 0)
    return Site(
        name="anna",
        federation=spec.federation,
        bench=bench,
        train=ResidentCases.of(data.train, data.view, CPU),
        training=spec.training,
        seed=0,
        round=number,
        rounds=9,
        overlays=overlays or {},
    )


@pytest.mark.parametrize("augment", ["flips", "rotate"])
def test_targets_stay_with_their_pixels_when_images_move(augment):
    """A network that copies its image: after any move and back, targets are the image's."""
    spec = lesion_spec("elr", 1, training={"augment": augment, "learning_rate": 1e-12})
    method, overlays = make_method("elr", {"beta": 0.0}), {}
    for number in (1, 2, 3):
        site = site_of(spec, number, overlays)
        first = {k: v.clone() for k, v in site.network.state_dict().items()}
        copying = lambda network, image: torch.cat((1 - image, image), 1) + network.head.bias.sum()  # noqa: E731
        object.__setattr__(site.bench, "learner", Copying(site.bench.learner, copying))
        method.local_update(Down(first), None, site)
        overlays = site.overlays
        image = site.train.image.float() / 255
        expected = torch.cat((1 - image, image), 1).softmax(1)
        torch.testing.assert_close(overlays["targets"], expected, rtol=1e-4, atol=1e-4)


class Down:
    def __init__(self, weights):
        self.weights = weights


class Copying:
    place = Learner.place

    def __init__(self, learner, logits):
        self.inner, self.logits = learner, logits

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_sure_predictions_are_kept_away_from_one():
    """Else log(1 - <p, t>) would be minus infinity where t is what was just predicted."""
    spec = lesion_spec("elr", 1, training={"batch": 16, "learning_rate": 1e-12})
    site = site_of(spec)

    def sure(network, image):
        return torch.cat((40 + 0 * image, 0 * image), 1) + network.head.bias.sum()

    first = {k: v.clone() for k, v in site.network.state_dict().items()}
    object.__setattr__(site.bench, "learner", Copying(site.bench.learner, sure))
    up, _ = make_method("elr", {"beta": 0.0, "weight": 1.0}).local_update(Down(first), None, site)
    entropy = 40 * (site.train.target > 0).float().mean().item()
    term = math.log(1 - 0.9999**2 - 0.0001**2)
    assert up.loss == pytest.approx(entropy + term, abs=0.01)
    assert all(value.isfinite().all() for value in up.weights.values())


def test_targets_are_remembered_when_a_run_is_stopped(tmp_path):
    spec = lesion_spec("elr", 3, training={"augment": "flips"})
    assert_same_state(*run_twice_with_a_stop(spec, lesion_sites(spec), tmp_path, 2))


def test_targets_never_leave_a_site(tmp_path):
    run_toy(lesion_spec("elr", 2), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        ("Up", name) for name in ("weights", "images", "loss")
    }
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    assert not [line for line in lines if "target" in line["field"]]


def test_only_masks_of_one_label():
    assert "segments one label" in why_not("elr", toy_spec().federation)
