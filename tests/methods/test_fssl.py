"""FSSL against a second, plain implementation, and its limit cases."""

import pytest
import torch

from consilia.methods import make_method
from consilia.testing import run_toy, toy_spec
from tests.methods.plain_labels import (
    SITES,
    close,
    federate,
    new_network,
    parts_of,
    spec_of,
    supervised,
)
from tests.methods.support import assert_same_state, ledger_fields, server_weights
from tests.methods.test_fixmatch import LOOSE, competes, guess_loss


def plain_fssl(spec, weight, warmup, switches):
    exclusive, counted = competes(spec), []
    masked = switches["unknown"] == "masked"
    teacher = new_network(spec)

    def begin(name, number, part, world, own):
        teacher.load_state_dict(world)
        teacher.eval()
        with torch.no_grad():
            scores = teacher(part.x)
        guess = scores.softmax(1) if exclusive else scores.sigmoid()
        warm = number <= warmup

        def loss(net, index, part):
            x, y, known = part.x[index], part.y[index], part.known[index]
            scores = net(x)
            seen = known if masked else torch.ones_like(known)
            total = supervised(scores, y, seen, exclusive)
            if warm:
                return total
            guessed, sure = guess_loss(scores, guess[index], y, known, exclusive, LOOSE)
            counted.append(sure)
            return total + weight * guessed

        labeled = part.labeled if spec.federation.exclusive else list(range(len(part.x)))
        return loss, labeled if warm else list(range(len(part.x)))

    world, _ = federate(spec, parts_of(spec), begin, rows=switches["rows"])
    assert sum(counted) > 5  # the test would be empty without guesses
    return world


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize(
    "switches",
    [{"unknown": "masked", "rows": "labelled"}, {"unknown": "negative", "rows": "all"}],
)
def test_it_is_its_algorithm(task, switches, tmp_path):
    settings = {"weight": 0.4, "warmup": 0.34, **LOOSE, **switches}
    spec = spec_of("fssl", task, settings, rounds=3)
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fssl(spec, 0.4, 1, switches))


def test_the_objective_says_whether_labels_compete_and_not_the_federation(tmp_path):
    binary = {"objective": "bce", "network": "cnn-small"}
    switches = {"unknown": "masked", "rows": "labelled"}
    settings = {"weight": 0.4, "warmup": 0.34, **LOOSE, **switches}
    spec = spec_of("fssl", "single-label", settings, rounds=3, learner=binary)
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fssl(spec, 0.4, 1, switches))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("never", [{"warmup": 1.0}, {"weight": 0.0}])
def test_without_guesses_it_is_fedavg_star_to_the_bit(task, never, tmp_path):
    run_toy(spec_of("fedavg-masked", task), tmp_path / "fedavg")
    run_toy(spec_of("fssl", task, never), tmp_path / "fssl")
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / "fssl"))


def test_the_phase_travels_in_the_message(tmp_path):
    run_toy(spec_of("fssl", rounds=4, settings={"warmup": 0.5}), tmp_path / "run")
    down = ledger_fields(tmp_path / "run", "down", "train")
    assert down == {("Down", "weights"), ("Teach", "weights")}
    up = ledger_fields(tmp_path / "run", "up", "train")
    assert up == {("Up", "weights"), ("Up", "images"), ("Up", "loss")}


def test_a_site_without_labels_joins_after_the_warm_up(tmp_path):
    import json

    sites = [*SITES, {"name": "dora", "supervision": "none"}]
    spec = spec_of("fssl", rounds=4, sites=sites, settings={"warmup": 0.5, **LOOSE})
    run_toy(spec, tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert ["dora" in line["took_part"] for line in lines] == [False, False, True, True]


def test_a_guess_of_a_label_the_site_marks_is_dropped(tmp_path):
    """METHODS 2.9, fact 10: an unlabeled image shows none of the labels its site marks."""
    from consilia.ops.confident import sure_class

    p = torch.tensor([[0.0, 0.99, 0.01, 0.0]])
    unknown = torch.tensor([[False, False, False, True]])
    assert not sure_class(p, unknown, 0.9)[1].any()
    assert sure_class(p, ~unknown, 0.9)[1].any()


def test_it_refuses_segmentation():
    assert "segmentation" in make_method("fssl").unmet(toy_spec().federation)
