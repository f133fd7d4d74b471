"""FedMatch and FedMatch+ against a second, plain implementation."""

import json

import pytest
import torch
import torch.nn.functional as F

from consilia.methods import make_method
from consilia.ops.agreement import agreed_class, agreed_entries, consistency
from consilia.ops.nearest import nearest
from consilia.testing import run_toy, toy_spec
from consilia.training.batch import orders
from consilia.training.seeds import generator
from consilia.training.strong import strong_view
from tests.methods.plain_labels import (
    augmented,
    average,
    new_network,
    parts_of,
    spec_of,
    supervised,
)
from tests.methods.support import final_state, ledger_fields
from tests.methods.test_fedssp import WIDTH, plain_fedssp, with_siamese
from tests.methods.test_fixmatch import competes

#: Small weights, for an untrained network and few steps: with the code's own nothing would be sure.
LOOSE = {"confidence": 0.5, "lambda_s": 1.0, "lambda_i": 0.5, "lambda_a": 0.7, "lambda_l2": 0.01}


class Added(torch.nn.Module):
    """Two networks of one shape; their weights are added, statistics are the first one's."""

    def __init__(self, sigma, psi):
        super().__init__()
        self.sigma, self.psi = sigma, psi

    def run(self, x, psi=None, sigma_learns=False, psi_learns=False, keep=False):
        state = {}
        other = dict((psi or self.psi).named_parameters())
        for name, value in self.sigma.named_parameters():
            one = value if sigma_learns else value.detach()
            two = other[name] if psi_learns else other[name].detach()
            state[name] = one + two
        if not keep:
            state |= {n: b.clone() for n, b in self.sigma.named_buffers()}
        return torch.func.functional_call(self.sigma, state, (x,))


def plain_open(net, x, strong, helpers, y, known, exclusive, s):
    """Return the loss of what is not known, image by image and label by label."""
    scores = net.run(x, psi_learns=True)
    p = scores.softmax(1) if exclusive else scores.sigmoid()
    with torch.no_grad():
        outputs = [net.run(x, psi=h) for h in helpers]
        others = [o.softmax(1) if exclusive else o.sigmoid() for o in outputs]
    again = net.run(strong, psi_learns=True)
    guess, far, images = scores.sum() * 0, scores.sum() * 0, 0
    for i in range(len(x)):
        sure = False
        if exclusive:
            votes = [0] * p.shape[1]
            for each in (p, *others):
                votes[int(each[i].argmax())] += 1
            c = votes.index(max(votes))
            if p[i].max() >= s["confidence"] and not known[i, c]:
                sure = True
                guess = guess + torch.logsumexp(again[i], 0) - again[i, c]
                for q in others:
                    far = far + sum(q[i, k] * (q[i, k] / p[i, k]).log() for k in range(p.shape[1]))
        else:
            for c in range(p.shape[1]):
                if known[i, c] or 1 - s["confidence"] < p[i, c] < s["confidence"]:
                    continue
                sure = True
                ayes = sum(float(each[i, c] > 0.5) for each in (p, *others))
                half = (1 + len(others)) / 2
                present = ayes > half if ayes != half else bool(p[i, c] > 0.5)
                guess = guess + F.softplus(-again[i, c] if present else again[i, c])
                for q in others:
                    a, b = q[i, c], p[i, c]
                    far = far + a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()
        images += sure
    total = s["lambda_a"] * guess / max(1, images)
    if others:
        total = total + s["lambda_i"] * far / max(1, images) / len(others)
    return total, images


def plain_fedmatch(spec, s, refresh, count, without=0):
    """Return both parts and the sites' outputs; the first rounds `without` labels are FedSSP's."""
    exclusive, t, parts = competes(spec), spec.training, parts_of(spec)
    new = with_siamese if without else new_network
    net = Added(new(spec), new(spec))
    sigma = {k: v.clone() for k, v in net.sigma.state_dict().items()}
    if without:
        early = spec.model_copy(update={"rounds": without})
        sigma = plain_fedssp(early, without, exclusive)
    psi = {k: v * 0.2 if v.is_floating_point() else v.clone() for k, v in sigma.items()}
    moments, psis, outputs, helpers, told = {}, {}, {}, {}, []
    held = {name: [] for name in parts}
    for number in range(without + 1, spec.rounds + 1):
        sent, matched = {"sigma": {}, "psi": {}}, number - without
        for name in sorted(parts):
            part, moved = parts[name], generator(spec.seed, name, number, "strong views")
            if name in helpers and (matched - 1) in (1, *range(refresh, 99, refresh)):
                held[name] = [psis[h] for h in helpers[name]]
            net.sigma.load_state_dict(sigma)
            net.psi.load_state_dict(psi)
            models = []
            for state in held[name]:
                models.append(new(spec))
                models[-1].load_state_dict(state)
            net.train()
            both = [*net.sigma.parameters(), *net.psi.parameters()]
            sgd = torch.optim.SGD(both, t.learning_rate, t.momentum, weight_decay=t.weight_decay)
            if name in moments:
                sgd.load_state_dict(moments[name])
            randoms = generator(spec.seed, name, number, "batches main psi")
            for index in orders(len(part.x), t.batch, t.epochs, t.steps, randoms):
                x, y, known = part.x[index], part.y[index], part.known[index]
                weak = augmented(spec, x, randoms)
                sgd.zero_grad()
                scores = net.run(weak, sigma_learns=True, keep=True)
                loss = s["lambda_s"] * supervised(scores, y, known, exclusive)
                loss.backward()
                pulled = sum(
                    ((a.detach() - b) ** 2).sum() * s["lambda_l2"] + b.abs().sum() * 1e-4
                    for a, b in zip(net.sigma.parameters(), net.psi.parameters(), strict=True)
                )
                if not known.all():
                    strong = strong_view(x, moved)
                    more, sure = plain_open(net, weak, strong, models, y, known, exclusive, s)
                    pulled, _ = pulled + more, told.append(sure)
                pulled.backward()
                sgd.step()
            moments[name] = sgd.state_dict()
            sent["sigma"][name] = {k: v.clone() for k, v in net.sigma.state_dict().items()}
            sent["psi"][name] = {k: v.clone() for k, v in net.psi.state_dict().items()}
            noise = torch.randn(1, *part.x.shape[1:], generator=generator(spec.seed, "noise"))
            net.eval()
            with torch.no_grad():
                out = net.run(noise)[0]
            outputs[name] = out.softmax(0) if exclusive else out.sigmoid()
        counts = {name: len(parts[name].x) for name in parts}
        sigma = average(sigma, sent["sigma"], counts, parts, "all", exclusive)
        psi = average(psi, sent["psi"], counts, parts, "all", exclusive)
        psis = sent["psi"]
        if matched == 1 or matched % refresh == 0:
            for name in parts:
                far = {o: float((outputs[name] - outputs[o]).norm()) for o in parts if o != name}
                helpers[name] = sorted(far, key=lambda o: (far[o], o))[:count]
    assert sum(told) > 3  # the test would be empty without guesses
    return sigma, psi, outputs


def assert_follows_the_plain_one(spec, settings, path, without=0):
    run_toy(spec, path)
    refresh, helpers = settings["refresh"], settings["helpers"]
    found, wanted = final_state(path), plain_fedmatch(spec, settings, refresh, helpers, without)
    for part, want in zip(("sigma", "psi", "outputs"), wanted, strict=True):
        for name, value in want.items():
            got = found[f"server.safetensors:{part}/{name}"]
            torch.testing.assert_close(got, value, atol=2e-5, rtol=1e-4, msg=f"{part} {name}")


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_it_is_its_algorithm(task, tmp_path):
    settings = {**LOOSE, "refresh": 2, "helpers": 2}
    if task == "single-label":
        settings["confidence"] = 0.34
    spec = spec_of("fedmatch", task, settings, rounds=4)
    assert_follows_the_plain_one(spec, settings, tmp_path / "run")


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_fedmatch_plus_is_its_algorithm(task, tmp_path):
    settings = {**LOOSE, "refresh": 2, "helpers": 2, "pretraining": 0.4, "width": WIDTH}
    if task == "single-label":
        settings["confidence"] = 0.34
    spec = spec_of("fedmatch-plus", task, settings, rounds=5)
    assert_follows_the_plain_one(spec, settings, tmp_path / "run", without=2)


def test_the_objective_says_whether_labels_compete_and_not_the_federation(tmp_path):
    settings = {**LOOSE, "refresh": 2, "helpers": 2}
    binary = {"objective": "bce", "network": "cnn-small"}
    spec = spec_of("fedmatch", "single-label", settings, rounds=3, learner=binary)
    assert_follows_the_plain_one(spec, settings, tmp_path / "run")


def test_where_one_site_helps_it_is_the_one_with_the_nearest_output(tmp_path):
    settings = {**LOOSE, "refresh": 2, "helpers": 1}
    spec = spec_of("fedmatch", settings=settings, rounds=4)
    assert_follows_the_plain_one(spec, settings, tmp_path / "run")


def test_weak_views_are_augmented_and_strong_ones_are_of_the_plain_images(tmp_path):
    settings = {**LOOSE, "refresh": 2, "helpers": 2}
    spec = spec_of("fedmatch", settings=settings, rounds=3, training={"augment": "flips"})
    assert_follows_the_plain_one(spec, settings, tmp_path / "run")


def test_labels_reach_only_sigma_and_images_alone_only_psi(tmp_path):
    frozen = {"lambda_s": 0.0, "lambda_l2": 0.0, "lambda_l1": 0.0, "confidence": 0.5}
    training = {"learning_rate": 0.05, "weight_decay": 0.0}
    spec = spec_of("fedmatch", settings=frozen, training=training)
    run_toy(spec, tmp_path / "run")
    state, first = final_state(tmp_path / "run"), new_network(spec)
    for name, value in first.named_parameters():
        assert torch.equal(state[f"server.safetensors:sigma/{name}"], value), name
    moved = [
        not torch.equal(state[f"server.safetensors:psi/{name}"], value * 0.2)
        for name, value in first.named_parameters()
    ]
    assert any(moved)


def test_helpers_travel_once_and_are_kept(tmp_path):
    spec = spec_of("fedmatch", settings={"refresh": 3, "helpers": 1}, rounds=6)
    run_toy(spec, tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    rounds = {}
    for line in lines:
        sent = (line["direction"], line["verb"], line["site"], line["field"])
        if sent == ("down", "train", "anna", "helpers"):
            rounds[line["round"]] = line["bytes"]
    heavy = sorted(number for number, size in rounds.items() if size > 1000)
    assert heavy == [2, 4]  # chosen after round 1 and after round 3; after round 6 the run ends


def test_what_leaves_a_site(tmp_path):
    run_toy(spec_of("fedmatch-plus", rounds=4, settings={"width": 16}), tmp_path / "run")
    up = ledger_fields(tmp_path / "run", "up", "train")
    assert up == {
        *(("Matched", field) for field in ("sigma", "psi", "output", "images", "loss")),
        *(("Pretrained", field) for field in ("sigma", "images", "loss")),
    }
    rounds = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert [len(line["took_part"]) for line in rounds] == [3, 3, 3, 3]


def test_neighbours_are_sorted_by_distance_then_name():
    vectors = {"a": [0.0, 0], "b": [1.0, 0], "c": [0.0, 1], "d": [5.0, 5]}
    found = nearest({name: torch.tensor(v) for name, v in vectors.items()}, 2)
    assert found == {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b"), "d": ("b", "c")}
    assert nearest({"a": torch.zeros(1)}, 2) == {"a": ()}


def test_agreement_counts_votes():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    others = [torch.tensor([[0.1, 0.8, 0.1]]), torch.tensor([[0.2, 0.7, 0.1]])]
    assert agreed_class(p, others).tolist() == [[0, 1, 0]]
    assert agreed_class(p, []).tolist() == [[1, 0, 0]]
    assert agreed_entries(p, others).tolist() == [[0, 1, 0]]
    assert agreed_entries(p, others[:1]).tolist() == [[1, 0, 0]]  # a tie follows the own model


def test_consistency_is_zero_for_equal_outputs_and_counts_told_entries():
    p = torch.tensor([[0.6, 0.4], [0.2, 0.8]])
    told = torch.tensor([[True, True], [False, False]])
    assert float(consistency(p, [p], told, exclusive=True)) == pytest.approx(0, abs=1e-6)
    q = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    kl = 0.5 * torch.log(torch.tensor(0.5 / 0.6)) + 0.5 * torch.log(torch.tensor(0.5 / 0.4))
    assert float(consistency(p, [q], told, exclusive=True)) == pytest.approx(float(kl), abs=1e-6)


def test_a_segmentation_task_is_refused():
    reason = make_method("fedmatch").unmet(toy_spec().federation)
    assert reason == "compares outputs of whole images, and this is a segmentation task"
