"""FedSSP against a second, plain implementation."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from consilia.methods import make_method
from consilia.ops.siamese import siamese_loss
from consilia.testing import run_toy
from consilia.training.batch import orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from consilia.training.site import laid_out
from consilia.training.strong import strong_view
from tests.methods.plain_labels import average, close, new_network, parts_of, spec_of, supervised
from tests.methods.support import final_state, ledger_fields, server_weights

WIDTH = 16
EXTRA = ("project.", "predict.")


def with_siamese(spec):
    """Return the first network of a run with SimSiam's layers, drawn after the classifier."""
    with seeded(spec.seed, "network", "main"):
        net = laid_out(PlainLearner.of(spec.learner, spec.federation).build())
        d = net.head.in_features
        net.project = nn.Sequential(
            nn.Linear(d, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH, affine=False),
        )
        net.predict = nn.Sequential(
            nn.Linear(WIDTH, WIDTH // 4, bias=False),
            nn.BatchNorm1d(WIDTH // 4),
            nn.ReLU(),
            nn.Linear(WIDTH // 4, WIDTH),
        )
    return net


def alike(net, x, randoms):
    """Return SimSiam's loss, image by image."""
    views = [strong_view(x, randoms), strong_view(x, randoms)]
    z = [net.project(net.features(view)) for view in views]
    p = [net.predict(each) for each in z]

    def term(a, b):  # the same primitive: batch normalization of few images magnifies rounding
        return -F.cosine_similarity(a, b.detach()).mean()

    return 0.5 * term(p[0], z[1]) + 0.5 * term(p[1], z[0])


def plain_fedssp(spec, without, exclusive):
    net, parts, moments = with_siamese(spec), parts_of(spec), {}
    world = {k: v.clone() for k, v in net.state_dict().items()}
    t = spec.training
    for number in range(1, spec.rounds + 1):
        early = number <= without
        if number == without + 1:
            moments.clear()
        sent, counts = {}, {}
        for name in sorted(parts):
            part = parts[name]
            used = list(range(len(part.x))) if early else told(part, exclusive)
            if not used:
                continue
            net.load_state_dict(world)
            net.train()
            train = {
                k: p
                for k, p in net.named_parameters()
                if not (k.startswith("head.") if early else False)
            }
            sgd = torch.optim.SGD(
                train.values(), t.learning_rate, t.momentum, weight_decay=t.weight_decay
            )
            for k, p in train.items():
                if (name, k) in moments:
                    sgd.state[p] = {"momentum_buffer": moments[name, k].clone()}
            purpose = "without labels main" if early else "batches main"
            randoms = generator(spec.seed, name, number, purpose)
            views = generator(spec.seed, name, number, "siamese views")
            for positions in orders(len(used), t.batch, t.epochs, t.steps, randoms):
                torch.rand(3, len(positions), generator=randoms)
                index = torch.tensor(used)[positions]
                sgd.zero_grad()
                if early:
                    loss = alike(net, part.x[index], views)
                else:
                    scores = net(part.x[index])
                    loss = supervised(scores, part.y[index], part.known[index], exclusive)
                loss.backward()
                sgd.step()
            for k, p in train.items():
                if "momentum_buffer" in sgd.state.get(p, {}):
                    moments[name, k] = sgd.state[p]["momentum_buffer"].clone()
            sent[name] = {k: v.clone() for k, v in net.state_dict().items()}
            counts[name] = len(used)
        new = average(world, sent, counts, parts, "all", exclusive)
        kept = ("head.",) if early else EXTRA
        world = {k: world[k] if k.startswith(kept) else new[k] for k in world}
    return world


def told(part, exclusive):
    return part.labeled if exclusive else [i for i in range(len(part.x)) if part.known[i].any()]


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_it_is_its_algorithm(task, tmp_path):
    spec = spec_of("fedssp", task, {"pretraining": 0.5, "width": WIDTH}, rounds=4)
    run_toy(spec, tmp_path / "run")
    expected = plain_fedssp(spec, 2, task == "single-label")
    close(server_weights(tmp_path / "run"), expected)


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_without_such_rounds_it_is_fedavg_on_known_labels_to_the_bit(task, tmp_path):
    run_toy(spec_of("fedavg", task, {"unknown": "masked"}), tmp_path / "fedavg")
    run_toy(spec_of("fedssp", task, {"pretraining": 0.0}), tmp_path / "fedssp")
    ours, theirs = (server_weights(tmp_path / name) for name in ("fedssp", "fedavg"))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_no_label_leaves_its_mark_before_the_second_stage(tmp_path):
    spec = spec_of("fedssp", settings={"pretraining": 1.0, "width": WIDTH}, rounds=3)
    run_toy(spec, tmp_path / "run")
    first = new_network(spec).state_dict()
    state = server_weights(tmp_path / "run")
    assert not torch.equal(state["head.weight"], first["head.weight"])  # the last round has labels
    lines = ledger_fields(tmp_path / "run", "up", "train")
    assert lines == {
        (message, field)
        for message in ("Pretrained", "Tuned")
        for field in ("weights", "images", "loss")
    }


def test_a_fixed_body_can_be_asked_for(tmp_path):
    settings = {"pretraining": 0.0, "tuned": "head"}
    spec = spec_of("fedssp", settings=settings)
    run_toy(spec, tmp_path / "run")
    first, last = new_network(spec).state_dict(), server_weights(tmp_path / "run")
    same = {
        n: torch.equal(first[n], last[n]) for n in first if "running" not in n and "num_" not in n
    }
    assert not same.pop("head.weight")
    assert not same.pop("head.bias")
    assert all(same.values())


def test_the_loss_is_minus_one_for_views_that_agree_and_stops_gradients():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    p = torch.tensor([[3.0, 0.0], [0.0, 1.0]], requires_grad=True)
    loss = siamese_loss((p, p), (z, z))
    assert float(loss.detach()) == pytest.approx(-1)
    loss.backward()
    assert z.grad is None
    assert p.grad is not None
    turned = siamese_loss((p.detach(), p.detach()), (z.detach().flip(1), z.detach()))
    assert float(turned) == pytest.approx(-0.5)


def test_a_segmentation_task_is_refused():
    from consilia.testing import toy_spec

    reason = make_method("fedssp").unmet(toy_spec().federation)
    assert reason == "learns feature vectors of whole images, and this is a segmentation task"


def test_sites_without_labels_take_part_only_before_labels_are_needed(tmp_path):
    sites = [
        {"name": "anna", "supervision": "image"},
        {"name": "bo", "supervision": "none"},
    ]
    spec = spec_of("fedssp", settings={"pretraining": 0.5, "width": WIDTH}, sites=sites)
    run_toy(spec, tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert [line["took_part"] for line in rounds] == [["anna", "bo"], ["anna"]]
    assert final_state(tmp_path / "run")
