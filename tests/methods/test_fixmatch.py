"""FedAvg* + FixMatch and central FixMatch against a second, plain implementation."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from consilia.methods import make_method
from consilia.testing import run_toy, toy_spec
from consilia.training.seeds import generator
from consilia.training.strong import strong_view
from tests.methods.plain_labels import SITES, close, federate, parts_of, spec_of, supervised
from tests.methods.support import assert_same_state, ledger_fields, server_weights

LOOSE = {"threshold": 0.36, "high": 0.51, "low": 0.49}


def competes(spec):
    """Return whether scores compete: with exclusive labels, unless the run asks for a binary loss."""
    return spec.federation.exclusive and spec.learner.objective != "bce"


def guess_loss(scores, p, y, known, exclusive, loose):
    """Return the loss of a strong view on sure guesses of the weak one, and how many there were."""
    total, sure = scores.sum() * 0, 0
    if exclusive:
        unlabeled = [i for i in range(len(y)) if y[i].sum() == 0]
        for i in unlabeled:
            c = int(p[i].argmax())
            if p[i, c] >= loose["threshold"] and not known[i, c]:
                total = total + torch.logsumexp(scores[i], 0) - scores[i, c]
                sure += 1
        return total / max(1, len(unlabeled)), sure
    for i in range(len(y)):
        for c in range(y.shape[1]):
            if known[i, c]:
                continue
            if p[i, c] >= loose["high"]:
                total, sure = total + F.softplus(-scores[i, c]), sure + 1
            elif p[i, c] <= loose["low"]:
                total, sure = total + F.softplus(scores[i, c]), sure + 1
    return total / len(y), sure


def plain_fixmatch(spec, weight, pooled=False):
    exclusive, counted = competes(spec), []

    def begin(name, number, part, world, own):
        randoms = generator(spec.seed, name, number, "strong views")

        def loss(net, index, part):
            y, known = part.y[index], part.known[index]
            scores = net(part.weak)
            total = supervised(scores, y, known, exclusive)
            p = scores.detach().softmax(1) if exclusive else scores.detach().sigmoid()
            again = net(strong_view(part.x[index], randoms))
            guessed, sure = guess_loss(again, p, y, known, exclusive, LOOSE)
            counted.append(sure)
            return total + weight * guessed

        return loss, list(range(len(part.x)))

    world, _ = federate(spec, parts_of(spec, pooled), begin, rows="labelled")
    assert sum(counted) > 5  # the test would be empty without guesses
    return world


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_it_is_its_algorithm(task, tmp_path):
    spec = spec_of("fixmatch", task, {"weight": 0.7, **LOOSE})
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fixmatch(spec, 0.7))


def test_the_objective_says_whether_labels_compete_and_not_the_federation(tmp_path):
    binary = {"objective": "bce", "network": "cnn-small"}
    spec = spec_of("fixmatch", "single-label", {"weight": 0.7, **LOOSE}, learner=binary)
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fixmatch(spec, 0.7))


def test_weak_views_are_augmented_and_strong_ones_are_of_the_plain_images(tmp_path):
    spec = spec_of("fixmatch", settings={"weight": 0.7, **LOOSE}, training={"augment": "flips"})
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fixmatch(spec, 0.7))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_the_pooled_one_is_its_algorithm(task, tmp_path):
    spec = spec_of("central-fixmatch", task, {"weight": 0.7, **LOOSE})
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fixmatch(spec, 0.7, pooled=True))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("never", [{"threshold": 1.1, "high": 1.1, "low": -0.1}, {"weight": 0.0}])
def test_where_no_guess_counts_it_is_fedavg_star_to_the_bit(task, never, tmp_path):
    run_toy(spec_of("fedavg-masked", task), tmp_path / "fedavg")
    run_toy(spec_of("fixmatch", task, never), tmp_path / "fixmatch")
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / "fixmatch"))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_without_guesses_the_pooled_one_is_iml_to_the_bit(task, tmp_path):
    run_toy(spec_of("iml", task), tmp_path / "iml")
    run_toy(spec_of("central-fixmatch", task, {"weight": 0.0}), tmp_path / "fixmatch")
    assert_same_state(server_weights(tmp_path / "iml"), server_weights(tmp_path / "fixmatch"))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_where_everything_is_known_it_is_fedavg_to_the_bit(task, tmp_path):
    run_toy(toy_spec(task, method={"name": "fedavg"}), tmp_path / "fedavg")
    run_toy(toy_spec(task, method={"name": "fixmatch"}), tmp_path / "fixmatch")
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / "fixmatch"))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_a_site_without_labels_trains_on_guesses_alone(task, tmp_path):
    sites = [*SITES, {"name": "dora", "supervision": "none"}]
    spec = spec_of("fixmatch", task, LOOSE, sites=sites)
    assert make_method("fixmatch").trains_at(spec.federation, "dora")
    assert not make_method("fixmatch", {"weight": 0.0}).trains_at(spec.federation, "dora")
    run_toy(spec, tmp_path / "run")
    without = spec_of("fixmatch", task, LOOSE)
    run_toy(without, tmp_path / "without")
    one, two = (server_weights(tmp_path / part) for part in ("run", "without"))
    assert not torch.equal(one["body.0.weight"], two["body.0.weight"])


def test_defaults_are_those_of_the_papers():
    own, pooled = make_method("fixmatch"), make_method("central-fixmatch")
    assert (own.threshold, own.high, own.low, own.weight) == (0.95, 0.85, 0.01, 1.0)
    assert (own.unknown, own.rows) == ("masked", "labelled")
    assert (pooled.threshold, pooled.high, pooled.low) == (0.75, 0.75, 0.25)


def test_the_pooled_one_says_that_it_pools():
    own, pooled = make_method("fixmatch").card, make_method("central-fixmatch").card
    assert own.summary.startswith("FedAvg ")
    assert pooled.summary.startswith("all images in one place")
    assert replace(pooled, summary=own.summary) == own


def test_it_refuses_segmentation():
    for name in ("fixmatch", "central-fixmatch"):
        assert "segmentation" in make_method(name).unmet(toy_spec().federation)


def test_no_guess_leaves_a_site(tmp_path):
    run_toy(spec_of("fixmatch", settings=LOOSE), tmp_path / "run")
    up = ledger_fields(tmp_path / "run", "up", "train")
    assert up == {("Up", "weights"), ("Up", "images"), ("Up", "loss")}
