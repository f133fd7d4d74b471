"""FedPSL against a second, plain implementation, its limit cases and METHODS 5.9."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilia.errors import UsageError
from consilia.evaluate.classification import auroc
from consilia.methods import make_method, why_not
from consilia.methods.averaging import Intro, Server
from consilia.methods.labelsets.fedpsl import Up, halves
from consilia.ops.losses import masked_bce, negatives_over_positives
from consilia.ops.reduce import normalise
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from consilia.weaken.drop_labels import FEDPSL_A
from tests.methods.support import (
    assert_same_state,
    final_state,
    ledger_fields,
    server_weights,
    without_times,
)
from tests.methods.test_every_method import garbled

CPU = torch.device("cpu")
LABELS = ["round", "square", "bright"]
PARTIAL = [
    {"name": "anna", "supervision": "image", "annotates": ["round", "square"]},
    {"name": "bo", "supervision": "image", "annotates": ["square"]},
    {"name": "cleo", "supervision": "image", "annotates": ["round"]},
]


def spec_of(sites=PARTIAL, task="multi-label", method="fedpsl", settings=None, **changes):
    return toy_spec(
        task,
        labels=LABELS,
        sites=sites,
        method={"name": method, "settings": settings or {}},
        training={"augment": "none", "weight_decay": 0.01, **changes.pop("training", {})},
        evaluate={"every": 100, "pictures": 0, "per_case": False},
        **{"rounds": 2, **changes},
    )


def sites_of(spec, **sizes):
    """Return toy sites, of different sizes so that shares matter."""
    found = toy_sites(spec)
    for name, count in {"anna": 9, "bo": 6, **sizes}.items():
        found[name] = toy_sites(spec, train=count)[name]
    return found


@pytest.fixture
def exact(monkeypatch):
    """Compute in double precision: Adam magnifies what rounding makes of a gradient near 0."""
    build = PlainLearner.build
    monkeypatch.setattr(PlainLearner, "build", lambda self: build(self).double())
    monkeypatch.setattr(
        PlainLearner, "logits", lambda self, net, image: net(self.prepared(image.double()))
    )


class Adam:
    """Adam as in its paper, with the decay inside the gradient, one tensor at a time."""

    def __init__(self, lr, decay):
        self.lr, self.decay, self.state = lr, decay, {}

    def moments(self, name, value, gradient):
        m, v, t = self.state.get(name, (torch.zeros_like(value), torch.zeros_like(value), 0))
        gradient = gradient + self.decay * value
        return 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, t + 1

    def step(self, name, value, gradient):
        self.state[name] = m, v, t = self.moments(name, value, gradient)
        return value - self.lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)

    def thought(self, name, value, gradient, alpha):
        """Return what a step of size alpha would come to, and forget it."""
        m, v, t = self.moments(name, value, gradient)
        v = torch.where(v > 0, v, 1e-16)  # a root has no slope at 0
        return value - alpha * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)


class Plain:
    """The small network by hand, in double precision, with its statistics kept apart."""

    def __init__(self, weights):
        self.weights = {k: v.double() if v.is_floating_point() else v for k, v in weights.items()}

    def logits(self, w, image, update):
        x = image.double()
        for layer in (0, 4, 8, 12):
            x = torch.nn.functional.conv2d(x, w[f"body.{layer}.weight"], padding=1)
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            if update:
                n, at = x.numel() / x.shape[1], f"body.{layer + 1}"
                for key, now in (("mean", mean), ("var", var * n / (n - 1))):
                    old = self.weights[f"{at}.running_{key}"]
                    self.weights[f"{at}.running_{key}"] = 0.9 * old + 0.1 * now.detach()
                self.weights[f"{at}.num_batches_tracked"] += 1
            x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
            x = x * w[f"body.{layer + 1}.weight"][:, None, None]
            x = (x + w[f"body.{layer + 1}.bias"][:, None, None]).relu()
            x = torch.nn.functional.max_pool2d(x, 2)
        return x.mean((2, 3)) @ w["head.weight"].T + w["head.bias"]


def plain_loss(logits, target, known, weight, weighted, exclusive):
    total, count = 0.0, 0
    for i in range(len(logits)):
        if exclusive:
            shown = [c for c in range(logits.shape[1]) if known[i, c] and target[i, c]]
            for c in shown:
                total, count = total - (logits[i, c] - logits[i].logsumexp(0)), count + 1
            continue
        for c in range(logits.shape[1]):
            if known[i, c]:
                p = logits[i, c].sigmoid()
                heavy = weighted == "entry" or (weighted == "positive" and target[i, c])
                said = p if target[i, c] else 1 - p
                total = total - (weight[c] if heavy else 1) * said.log()
                count += 1
    return total / max(1, count)


def plain_run(
    spec,
    sites,
    alpha=1e-3,
    second_order=True,
    rows="labelled",
    virtual="plain",
    weighted="positive",
):
    """Algorithms 1 and 2 of FedPSL in plain loops; returns the global weights."""
    learner, exclusive = PlainLearner.of(spec.learner, spec.federation), spec.federation.exclusive
    with seeded(spec.seed, "network", "main"):
        world = learner.build().state_dict()
    world = {k: v.double() if v.is_floating_point() else v for k, v in world.items()}
    lr, decay = spec.training.learning_rate, spec.training.weight_decay
    moments = {name: Adam(lr, decay) for name in sites}
    for number in range(1, spec.rounds + 1):
        sent, counts, taught = {}, {}, {}
        for name in sorted(sites):
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU)
            known = torch.from_numpy(sites[name].view.known_labels)
            target = torch.from_numpy(sites[name].view.target)
            used = torch.arange(len(target))
            if exclusive:  # an image without a label is not used
                used = used[((target > 0) & known).any(1)]
            counts[name] = len(used)
            marks = [label in spec.federation.annotated_by(name) for label in LABELS]
            taught[name] = [int(known[used, c].sum()) * marks[c] for c in range(3)]
            weight = []
            for c in range(3):
                pos = sum(int(target[i, c]) for i in range(len(target)) if known[i, c])
                neg = sum(1 - int(target[i, c]) for i in range(len(target)) if known[i, c])
                weight.append(float(np.float32(neg) / np.float32(pos)) if pos and neg else 1.0)
            net = Plain({k: v.clone() for k, v in world.items()})
            w, adam = net.weights, moments[name]
            body = [k for k in w if k.startswith("body") and ("weight" in k or "bias" in k)]
            head = ["head.weight", "head.bias"]
            randoms = generator(spec.seed, name, number, "batches main")
            for positions in orders(len(used), spec.training.batch, 1, None, randoms):
                torch.rand(3, len(positions), generator=randoms)
                index = used[positions]
                cut = (len(index) + 1) // 2
                fit, check = (index[:cut], index[cut:]) if len(index) > 1 else (index, index)
                live = {k: w[k].clone().requires_grad_() for k in [*body, *head]}
                logits = net.logits(live, cases.cut(fit).image, update=True)
                loss = plain_loss(logits, target[fit], known[fit], weight, weighted, exclusive)
                steps = torch.autograd.grad(loss, list(live.values()), create_graph=second_order)
                steps = dict(zip(live, steps, strict=True))
                move = dict.fromkeys(body, alpha)
                if virtual == "adam":
                    kept = {k: adam.state[k] for k in body if k in adam.state}
                    move |= {
                        k: alpha / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
                        for k, (_, v, t) in kept.items()
                    }
                if virtual == "higher":
                    thought = {k: adam.thought(k, live[k], steps[k], alpha) for k in live}
                    if not second_order:  # a shift that has no slope
                        thought = {k: live[k] + (thought[k] - live[k]).detach() for k in live}
                else:
                    thought = {k: live[k] - move[k] * steps[k] for k in body}
                for k in head:
                    w[k] = adam.step(k, w[k], steps[k].detach())
                    through = virtual == "higher" and second_order
                    thought[k] = w[k] + (thought[k] - thought[k].detach() if through else 0)
                logits = net.logits(thought, cases.cut(check).image, update=False)
                loss = plain_loss(logits, target[check], known[check], weight, weighted, exclusive)
                if not isinstance(loss, float):  # something was known
                    meta = torch.autograd.grad(loss, [live[k] for k in body])
                else:
                    meta = [torch.zeros_like(live[k]) for k in body]
                for k, step in zip(body, meta, strict=True):
                    w[k] = adam.step(k, w[k], step)
            for c in range(3):
                # Weight decay does not touch a row without labels.
                if not exclusive and not known[:, c].any():
                    w["head.weight"][c], w["head.bias"][c] = (world[k][c] for k in head)
            sent[name] = w
        total = sum(counts.values())
        new = {}
        for k in world:
            if not world[k].is_floating_point():
                new[k] = max(sent[n][k] for n in sent)
            elif k.startswith("head") and rows == "labelled":
                new[k] = world[k].clone()
                for c in range(3):
                    images = {n: taught[n][c] for n in sent}
                    if sum(images.values()):
                        row = sum(images[n] * sent[n][k][c] for n in sent)
                        new[k][c] = row / sum(images.values())
            else:
                new[k] = sum(counts[n] / total * sent[n][k] for n in sent)
        world = new
    return world


def plain_alternation(spec, sites):
    """Head step, then body step on the same image, and plain averages: METHODS 6.4's limit."""
    learner = PlainLearner.of(spec.learner, spec.federation)
    with seeded(spec.seed, "network", "main"):
        net = learner.build()
    world = {k: v.clone() for k, v in net.state_dict().items()}
    lr = spec.training.learning_rate
    for number in range(1, spec.rounds + 1):
        sent = {}
        for name in sorted(sites):
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU)
            y = torch.from_numpy(sites[name].view.target).float()
            shown = y.sum(0)
            weight = torch.where(shown < len(y), (len(y) - shown) / shown, 1.0)
            net.load_state_dict(world)
            net.train()
            randoms = generator(spec.seed, name, number, "batches main")
            for index in orders(len(cases), 1, 1, None, randoms):
                torch.rand(3, 1, generator=randoms)  # the augmentation's draw
                for part in (net.head, net.body):
                    seen = {k: v.clone() for k, v in net.named_buffers()}
                    p = net(cases.cut(index).image).sigmoid()
                    loss = -(weight * y[index] * p.log() + (1 - y[index]) * (1 - p).log()).mean()
                    steps = torch.autograd.grad(loss, list(part.parameters()))
                    with torch.no_grad():
                        for value, step in zip(part.parameters(), steps, strict=True):
                            value -= lr * step
                    if part is net.body:  # statistics are counted once
                        net.load_state_dict(seen, strict=False)
            sent[name] = {k: v.clone() for k, v in net.state_dict().items()}
        total = sum(len(data.train) for data in sites.values())
        for k, old in world.items():
            parts = [len(sites[n].train) / total * sent[n][k].double() for n in sent]
            counted = not old.is_floating_point()
            world[k] = max(sent[n][k] for n in sent) if counted else sum(parts).float()
    return world


def test_without_a_virtual_step_on_one_image_it_is_head_then_body_and_fedavg(tmp_path):
    every = [{"name": site["name"], "supervision": "image"} for site in PARTIAL]
    training = {"batch": 1, "optimizer": "sgd", "learning_rate": 0.02, "weight_decay": 0.0}
    spec = spec_of(every, settings={"alpha": 0.0}, training=training)
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    found, expected = server_weights(tmp_path / "run"), plain_alternation(spec, sites)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 0.5},
        {"alpha": 0.5, "second_order": False},
        {"rows": "all", "alpha": 0.1},
        {"alpha": 0.5, "weighted": "entry"},
        {"alpha": 0.5, "weighted": "none"},
        {"virtual": "higher", "weighted": "none"},
        {"virtual": "higher", "weighted": "none", "second_order": False},
    ],
)
@pytest.mark.usefixtures("exact")
def test_fedpsl_is_its_algorithm(task, settings, tmp_path):
    spec = spec_of(task=task, settings=settings, rounds=2)
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    found, expected = server_weights(tmp_path / "run"), plain_run(spec, sites, **settings)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)


def test_a_virtual_step_may_be_divided_as_adams(tmp_path):
    # Where gradients are next to nothing Adam divides noise by noise: compare whole networks.
    spec = spec_of(settings={"virtual": "adam"}, rounds=1)
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    found = server_weights(tmp_path / "run")
    wanted, other = plain_run(spec, sites, virtual="adam"), plain_run(spec, sites)

    def distance(a, b):
        return sum((a[k].double() - b[k].double()).square().sum() for k in a).sqrt()

    assert distance(found, wanted) < distance(other, wanted) / 10


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_virtual_step_of_adam_needs_adam(optimizer, tmp_path):
    training = {"optimizer": optimizer}
    spec = spec_of(settings={"virtual": "higher"}, training=training)
    sentence = (
        rf"'fedpsl' thinks of a step of Adam .* but training.optimizer is '{optimizer}'; set it"
    )
    with pytest.raises(UsageError, match=sentence):
        run_toy(spec, tmp_path / "run")
    for settings in ({"virtual": "higher", "decoupled": False}, {"virtual": "adam"}):
        fits = spec_of(settings=settings, training=training, rounds=1)
        run_toy(fits, tmp_path / settings["virtual"])


def test_the_second_order_matters_in_that_test():
    spec = spec_of(rounds=2)
    sites = sites_of(spec)
    exact = plain_run(spec, sites, alpha=0.5)
    short = plain_run(spec, sites, alpha=0.5, second_order=False)
    assert (exact["body.0.weight"] - short["body.0.weight"]).abs().max() > 1e-3


def test_with_all_labels_everywhere_aggregation_is_fedavg_to_the_bit(tmp_path):
    everyone = [{"name": s["name"], "supervision": "image"} for s in PARTIAL]
    off = spec_of(everyone, settings={"decoupled": False})
    weighted = {"class_weight": "positive", "network": "cnn-small"}
    fedavg = spec_of(everyone, method="fedavg", learner=weighted)
    sites = sites_of(off)
    run_toy(off, tmp_path / "fedpsl", sites)
    run_toy(fedavg, tmp_path / "fedavg", sites)
    assert_same_state(server_weights(tmp_path / "fedpsl"), server_weights(tmp_path / "fedavg"))


def test_rows_by_labels_or_images_are_the_same_with_all_labels_everywhere(tmp_path):
    everyone = [{"name": s["name"], "supervision": "image"} for s in PARTIAL]
    sites = sites_of(spec_of(everyone))
    for rows in ("all", "labelled"):
        run_toy(spec_of(everyone, settings={"rows": rows}), tmp_path / rows, sites)
    assert_same_state(server_weights(tmp_path / "all"), server_weights(tmp_path / "labelled"))


@pytest.mark.parametrize("weighted", ["none", "positive", "entry"])
def test_without_decoupling_it_is_masked_fedavg_to_the_bit(weighted, tmp_path):  # METHODS 6.4
    off = spec_of(settings={"decoupled": False, "weighted": weighted})
    weights = {"class_weight": weighted, "network": "cnn-small"}
    masked = spec_of(method="fedavg-masked", learner=weights)
    sites = sites_of(off)
    run_toy(off, tmp_path / "fedpsl", sites)
    run_toy(masked, tmp_path / "masked", sites)
    assert_same_state(server_weights(tmp_path / "fedpsl"), server_weights(tmp_path / "masked"))


def test_statistics_are_updated_once_a_batch(tmp_path):
    spec = spec_of(rounds=1, training={"steps": 5})
    run_toy(spec, tmp_path / "run", sites_of(spec))
    assert server_weights(tmp_path / "run")["body.1.num_batches_tracked"].item() == 5


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_unknown_labels_are_never_read(task, tmp_path):
    spec = spec_of(task=task)
    clean = sites_of(spec)
    one = run_toy(spec, tmp_path / "one", clean)
    two = run_toy(spec, tmp_path / "two", {k: garbled(v) for k, v in clean.items()})
    assert without_times(one) == without_times(two)
    assert_same_state(final_state(tmp_path / "one"), final_state(tmp_path / "two"))


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_label_known_nowhere_keeps_its_row(decoupled, tmp_path):  # METHODS 5.9 fact 8
    spec = spec_of(settings={"decoupled": decoupled})
    run_toy(spec, tmp_path / "run", sites_of(spec))
    learner = PlainLearner.of(spec.learner, spec.federation)
    with seeded(spec.seed, "network", "main"):
        start = learner.build().state_dict()
    end = server_weights(tmp_path / "run")
    for name in ("head.weight", "head.bias"):
        assert torch.equal(end[name][2], start[name][2])
        assert not torch.equal(end[name][0], start[name][0])


def test_rows_that_a_site_cannot_teach_leave_it_as_they_came(tmp_path):
    spec = spec_of(settings={"rows": "all"}, rounds=1)  # all sites count for all rows
    run_toy(spec, tmp_path / "run", sites_of(spec))
    learner = PlainLearner.of(spec.learner, spec.federation)
    with seeded(spec.seed, "network", "main"):
        start = learner.build().state_dict()
    end = server_weights(tmp_path / "run")
    torch.testing.assert_close(end["head.weight"][2], start["head.weight"][2], rtol=0, atol=1e-7)


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_sites_with_little_train(task, tmp_path):
    spec = spec_of(task=task)
    sites = sites_of(spec, bo=3, anna=1)  # three images, and one
    empty = sites["cleo"].view.target.copy()
    if task == "multi-label":
        empty[:] = 0  # no positive at all
        sites["cleo"] = replace(sites["cleo"], view=replace(sites["cleo"].view, target=empty))
    run_toy(spec, tmp_path / "run", sites)
    for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines():
        told = json.loads(line)
        assert told["events"] == []
        assert told["took_part"] == ["anna", "bo", "cleo"]
    assert all(v.isfinite().all() for v in server_weights(tmp_path / "run").values())


def test_exactly_what_the_paper_says_leaves_a_site(tmp_path):  # METHODS 5.1
    run_toy(spec_of(), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "down", "train") == {("Down", "weights")}
    assert ledger_fields(tmp_path / "run", "up", "train") == {("Up", "weights")}
    assert ledger_fields(tmp_path / "run", "up", "introduce") == {
        ("Intro", "images"),
        ("Intro", "labelled"),
    }
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    once = [x["site"] for x in lines if x["message"] == "Intro" and x["field"] == "labelled"]
    assert sorted(once) == ["anna", "bo", "cleo"]


def test_row_weights_of_setup_a():  # METHODS 5.9 fact 1
    names = ["infiltration", "effusion", "atelectasis", "nodule", "consolidation", "pneumothorax"]
    counts = {
        f"site-{k}": torch.tensor([1000 if name in marked else 0 for name in names])
        for k, marked in enumerate(FEDPSL_A, 1)
    }
    head = {"head.weight": torch.zeros(6, 1), "body.weight": torch.zeros(1)}
    groups = {"body": ("body.weight",), "head": ("head.weight",)}
    intros = {site: Intro(1000, row) for site, row in counts.items()}
    server = Server(head, groups, tuple(range(6)), intros, {})
    third = 1 / 3
    expected = np.array(
        [
            [1, 0, 0, 0],
            [0.5, 0.5, 0, 0],
            [third, third, third, 0],
            [0, third, third, third],
            [0, 0, 0.5, 0.5],
            [0, 0, 0, 1],
        ]
    )
    for k, site in enumerate(counts):
        ups = {
            s: Up(
                {
                    "head.weight": torch.full((6, 1), float(s == site)),
                    "body.weight": torch.full((1,), float(s == site)),
                }
            )
            for s in counts
        }
        after = make_method("fedpsl").aggregate(server, ups)
        np.testing.assert_allclose(after.weights["head.weight"][:, 0], expected[:, k], atol=1e-7)
        assert after.weights["body.weight"].item() == pytest.approx(0.25)
        plain = make_method("fedpsl", {"rows": "all"}).aggregate(server, ups)
        np.testing.assert_allclose(plain.weights["head.weight"][:, 0], 0.25)
    by_class = normalise({site: row.numpy() for site, row in counts.items()})
    np.testing.assert_allclose([by_class[s] for s in counts], expected.T)


def test_an_absent_sites_row_falls_to_the_others():
    intros = {"a": Intro(10, torch.tensor([10, 0])), "b": Intro(30, torch.tensor([30, 30]))}
    head = {"w": torch.tensor([[7.0], [7.0]])}
    server = Server(head, {"head": ("w",)}, (0, 1), intros, {})
    after = make_method("fedpsl").aggregate(server, {"a": Up({"w": torch.ones(2, 1)})})
    assert after.weights["w"].flatten().tolist() == [1, 7]  # nobody present teaches the second


def test_positive_weight_standardisation_and_auroc():  # METHODS 5.9 facts 5, 6, 7
    weight = negatives_over_positives(torch.tensor([141.0]), torch.tensor([859.0]))
    assert weight.item() == pytest.approx(6.092199, abs=1e-6)
    spec = spec_of(learner={"network": "cnn-small", "normalise": "instance"})
    learner = PlainLearner.of(spec.learner, spec.federation)
    found = learner.prepared(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]))[0, 0]
    expected = torch.tensor([[-1.069045, -0.534522], [0.0, 1.603567]])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert auroc(np.array([0.9, 0.4, 0.5, 0.1]), np.array([True, True, False, False])) == 0.75


def test_missing_is_not_negative():  # METHODS 5.9 fact 4
    logits = torch.logit(torch.tensor([[0.9, 0.2, 0.6]]))
    target, known = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[True, False, True]])
    assert masked_bce(logits, target, known).item() == pytest.approx(0.510826, abs=1e-6)
    every = torch.ones_like(known)
    assert masked_bce(logits, target, every).item() == pytest.approx(0.414932, abs=1e-6)


def test_halves():
    spec = spec_of()
    cases = ResidentCases.of(*(lambda d: (d.train, d.view))(toy_sites(spec)["anna"]), CPU)
    sizes = {n: tuple(map(len, halves(cases.cut(torch.arange(n))))) for n in (1, 2, 3, 8)}
    assert sizes == {1: (1, 1), 2: (1, 1), 3: (2, 1), 8: (4, 4)}


def test_it_classifies_only():
    assert "classifies images" in why_not("fedpsl", toy_spec().federation)
    silent = [{"name": "a", "supervision": "none"}]
    assert "marks a label" in why_not("fedpsl", toy_spec("multi-label", sites=silent).federation)
