"""FedLSM against a second, plain implementation, its limit cases and the edge cases of METHODS 2.4."""

import json
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilia.engines.plan import make_plan
from consilia.errors import UsageError
from consilia.methods import make_method, why_not
from consilia.methods.labelsets.fedlsm import Begin, Down, Intro, Server, Up
from consilia.methods.labelsets.lesson import part_by_uncertainty
from consilia.ops.confident import entry_loss
from consilia.ops.losses import ClassWeights
from consilia.ops.mixup import draw_share
from consilia.report.page import write_report
from consilia.report.record import Record
from consilia.report.tables import count_table
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from consilia.training.site import Site, Workbench, laid_out
from consilia.training.strong import strong_view, weak_view
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
    {"name": "bo", "supervision": "image", "annotates": ["bright"]},
    {"name": "cleo", "supervision": "image", "annotates": ["round"]},
]
# Loose thresholds, so that an untrained network gives labels of all kinds, and small parts.
LOOSE = {
    "tau": 0.345,
    "tau_positive": 0.51,
    "tau_negative": 0.47,
    "mix_positive": 0.4,
    "mix_negative": 0.3,
    "uncertain": 3,
    "confident": 4,
    "mixed": 2,
    "decay": 0.5,
    "lam": 0.7,
}
TASKS = ["multi-label", "single-label"]
PARTS_OFF = {"uncertainty": False, "enhance": False, "adaptive": False}  # METHODS 6.4


def spec_of(task="multi-label", sites=PARTIAL, settings=None, method="fedlsm", **changes):
    return toy_spec(
        task,
        labels=LABELS,
        sites=sites,
        method={"name": method, "settings": {**LOOSE, **(settings or {})}},
        training={"batch": 4, "steps": 3, "learning_rate": 0.01, **changes.pop("training", {})},
        evaluate={"every": 100, "pictures": 0, "per_case": False},
        **{"rounds": 2, **changes},
    )


def sites_of(spec, **sizes):
    found = toy_sites(spec)
    for name, count in {"anna": 12, "bo": 9, **sizes}.items():
        found[name] = toy_sites(spec, train=count)[name]
    return found


def first_weights(spec):
    with seeded(spec.seed, "network", "main"):
        return laid_out(PlainLearner.of(spec.learner, spec.federation).build())


def log_p(logits, exclusive):
    """Return log p and log (1 - p) per entry."""
    if exclusive:
        return logits.log_softmax(1), None
    return torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)


def pseudo(p, known, labelled, exclusive, single, high, low):
    """Return one image's pseudo labels: 1, 0 or None per label."""
    labels = [None] * len(p)
    if exclusive:
        best = int(p.argmax())
        if not labelled and not known[best] and p[best] >= single:
            labels = [int(c == best) for c in range(len(p))]
    else:
        for c in range(len(p)):
            if not known[c] and p[c] >= high:
                labels[c] = 1
            elif not known[c] and p[c] <= low:
                labels[c] = 0
    return labels


def chance(p, weight, use):
    """Return a probability as it is, or with the odds divided by the weight of positives."""
    if not use["unweighted"]:
        return p
    odds = p / (1 - p) / weight
    return odds / (1 + odds)


def plain_run(spec, sites):
    """Section 2.3 and 2.4 of the paper in plain loops; returns the weights and what was counted."""
    exclusive, use = spec.federation.exclusive, {**vars(make_method("fedlsm")), **LOOSE}
    use |= spec.method.settings
    network, teacher = first_weights(spec), first_weights(spec)
    world = {k: v.clone() for k, v in network.state_dict().items()}
    pos, neg = np.zeros(3), np.zeros(3)
    for data in sites.values():
        for target, known in zip(data.view.target, data.view.known_labels, strict=True):
            pos += known & (target == 1)
            neg += known & (target == 0)
    weight = [neg[c] / pos[c] if pos[c] and neg[c] else 1.0 for c in range(3)]
    moments, history, used = {}, [], {"mixed": 0, "guessed": 0}
    for number in range(1, spec.rounds + 1):
        sent, counts = {}, {}
        for name in sorted(sites):
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU)
            known, target = sites[name].view.known_labels, sites[name].view.target
            has_label = [bool((target[i] * known[i]).any()) for i in range(len(cases))]
            network.load_state_dict(world)
            teacher.load_state_dict(world)
            teacher.eval()
            every = list(range(len(cases)))
            high, low, stream = every, every, every
            if use["uncertainty"]:
                network.eval()
                score = []
                for i in every:
                    with torch.no_grad():
                        logits = network(cases.cut(torch.tensor([i])).image)[0]
                    if exclusive:
                        score.append(-sum(q * math.log(q) for q in logits.softmax(0).tolist()))
                        continue
                    open_ = [c for c in range(3) if not known[i, c]]
                    q = [chance(v, weight[c], use) for c, v in enumerate(logits.sigmoid().tolist())]
                    bits = [
                        -(q[c] * math.log2(q[c]) + (1 - q[c]) * math.log2(1 - q[c])) for c in open_
                    ]
                    score.append(sum(bits) / max(1, len(bits)))
                order = sorted(every, key=lambda i: score[i])
                edge = len(every) - use["uncertain"]
                high, low = sorted(order[edge:]), sorted(order[: use["confident"]])
                stream = sorted(order[:edge])
            network.train()
            adam = torch.optim.Adam(
                network.parameters(), spec.training.learning_rate, weight_decay=1e-4, fused=True
            )
            if name in moments:
                adam.load_state_dict(moments[name])
            r = {
                part: generator(spec.seed, name, number, part)
                for part in ("batches main", "weak and strong views", "blend")
            }
            pairs = [
                orders(len(part), use["mixed"], 0, 10**9, generator(spec.seed, name, number, key))
                for key, part in (("confident", low), ("uncertain", high))
            ]
            shown = {}
            size = spec.training.batch
            if use["included"] and use["enhance"]:
                size -= use["mixed"]
            batches = orders(len(stream), size, 1, spec.training.steps, r["batches main"])
            for positions in batches:
                torch.rand(3, len(positions), generator=r["batches main"])
                index = [stream[j] for j in positions]
                image = cases.cut(torch.tensor(index)).image
                weak = weak_view(image, r["weak and strong views"])
                strong = strong_view(image, r["weak and strong views"])
                asked, fed = [weak], [strong]
                if use["enhance"]:
                    one = [low[j] for j in next(pairs[0])]
                    two = [high[j] for j in next(pairs[1])]
                    plain = [cases.cut(torch.tensor(part)).image for part in (one, two)]
                    lam = draw_share(use["alpha"], r["blend"])
                    asked += plain
                    fed.append(lam * plain[0] + (1 - lam) * plain[1])
                with torch.no_grad():
                    out = teacher(torch.cat(asked))
                    p = out.softmax(1) if exclusive else out.sigmoid()
                    if not exclusive:
                        p = [[chance(float(v), weight[c], use) for c, v in enumerate(q)] for q in p]
                        p = torch.tensor(p)
                adam.zero_grad()
                yes, no = log_p(network(torch.cat(fed)), exclusive)
                loss, n = 0.0, len(index)
                unlabelled = sum(not has_label[i] for i in index)
                for j, i in enumerate(index):
                    guess = pseudo(
                        p[j],
                        known[i],
                        has_label[i],
                        exclusive,
                        use["tau"],
                        use["tau_positive"],
                        use["tau_negative"],
                    )
                    truth = [int(target[i, c]) if known[i, c] else None for c in range(3)]
                    shown[i] = [c for c in range(3) if truth[c] == 1 or guess[c] == 1]
                    used["guessed"] += any(g is not None for g in guess)
                    labelled, guessed = max(1, n - unlabelled), unlabelled
                    if use["together"]:
                        labelled = guessed = n
                    for c in range(3):
                        if exclusive:
                            if has_label[i] and truth[c] == 1:
                                loss = loss - yes[j, c] / labelled
                            if guess[c] == 1:
                                loss = loss - yes[j, c] / guessed
                            continue
                        whole = weight[c] if use["weighted"] == "entry" else 1.0
                        present = weight[c] if use["weighted"] == "positive" else 1.0
                        if truth[c] is not None:
                            loss = (
                                loss - whole * (present * yes[j, c] if truth[c] else no[j, c]) / n
                            )
                        elif guess[c] is not None:
                            loss = loss - whole * (yes[j, c] if guess[c] else no[j, c]) / n
                        elif use["soft"]:
                            q = float(p[j][c])
                            loss = loss - whole * (q * yes[j, c] + (1 - q) * no[j, c]) / n
                for j in range(use["mixed"] if use["enhance"] else 0):
                    parents = []
                    for i, q, single, top, bottom in (
                        (one[j], p[n + j], use["tau"], use["tau_positive"], use["tau_negative"]),
                        (
                            two[j],
                            p[n + use["mixed"] + j],
                            use["mix_positive"],
                            use["mix_positive"],
                            use["mix_negative"],
                        ),
                    ):
                        labels = pseudo(q, known[i], has_label[i], exclusive, single, top, bottom)
                        for c in range(3):
                            if known[i, c] and (not exclusive or has_label[i]):
                                labels[c] = int(target[i, c])
                        parents.append(labels)
                    for c in range(3):
                        a, b = parents[0][c], parents[1][c]
                        if a is None or b is None:
                            continue
                        soft = lam * a + (1 - lam) * b
                        term = soft * yes[n + j, c]
                        if not exclusive:
                            term = term + (1 - soft) * no[n + j, c]
                        loss = loss - use["lam"] * term / use["mixed"]
                        used["mixed"] += 1
                loss = loss if torch.is_tensor(loss) else 0 * yes.sum()
                loss.backward()
                adam.step()
                with torch.no_grad():
                    for g, f in zip(teacher.parameters(), network.parameters(), strict=True):
                        g.copy_(use["decay"] * g + (1 - use["decay"]) * f)
                    for g, f in zip(teacher.buffers(), network.buffers(), strict=True):
                        slow = use["statistics"] == "followed" and g.is_floating_point()
                        g.copy_(use["decay"] * g + (1 - use["decay"]) * f if slow else f)
            moments[name] = adam.state_dict()
            if use["counted"] == "all":
                for i in set(every) - set(shown):
                    shown[i] = [c for c in range(3) if known[i, c] and target[i, c]]
            counts[name] = [sum(c in shown[i] for i in shown) for c in range(3)]
            sent[name] = {k: v.clone() for k, v in network.state_dict().items()}
        sizes = {n: len(sites[n].train) for n in sites}
        total = sum(sizes.values())
        new = {}
        for k in world:
            if not world[k].is_floating_point():
                new[k] = max(sent[n][k] for n in sent)
            elif not k.startswith("head"):
                new[k] = (sum(sizes[n] * sent[n][k].double() for n in sent) / total).float()
            else:
                new[k] = world[k].clone()
                for c in range(3):
                    marks = {n: LABELS[c] in spec.federation.annotated_by(n) for n in sent}
                    q = {n: counts[n][c] for n in sent}
                    if not use["adaptive"] or not sum(q.values()):
                        q = {n: sizes[n] * marks[n] for n in sent}
                    if sum(q.values()):
                        row = sum(q[n] * sent[n][k][c].double() for n in sent)
                        new[k][c] = row / sum(q.values())
        world = new
        history.append(counts)
    return world, history, used


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"uncertainty": False},
        {"enhance": False},
        {"adaptive": False},
        PARTS_OFF,
        {"unweighted": True, "weighted": "positive", "tau_positive": 0.4, "mix_positive": 0.35},
        {"weighted": "positive", "together": True},
        {"weighted": "none", "soft": True},
        {"statistics": "followed", "decay": 0.9},
        {"counted": "all"},
        {"included": True, "mixed": 1},
    ],
    ids=[
        "whole",
        "no-UE",
        "no-UDE",
        "no-AWPA",
        "fixmatch-with-teacher",
        "unweighted",
        "positive-together",
        "soft",
        "followed",
        "all-counted",
        "included",
    ],
)
def test_fedlsm_is_its_algorithm(task, settings, tmp_path):
    spec = spec_of(task, settings=settings)
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    expected, history, used = plain_run(spec, sites)
    found = server_weights(tmp_path / "run")
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=5e-4)
    assert used["guessed"] > 0
    assert (used["mixed"] > 0) is settings.get("enhance", True)
    assert any(np.sum(list(counts.values())) > 0 for counts in history)


@pytest.mark.parametrize("counted", ["drawn", "all"])
@pytest.mark.parametrize("task", TASKS)
def test_what_is_counted_is_what_the_plain_run_counts(task, counted, tmp_path):
    spec = spec_of(task, rounds=1, settings={"counted": counted})
    sites = sites_of(spec)
    _, history, _ = plain_run(spec, sites)
    method = make_method("fedlsm", spec.method.settings)
    learner = PlainLearner.of(spec.learner, spec.federation)
    bench = Workbench(learner, spec.federation, CPU, spec.seed)
    weights = {k: v.clone() for k, v in first_weights(spec).state_dict().items()}
    intros = {}
    for name in sorted(sites):
        site = site_of(spec, bench, name, sites[name])
        intros[name] = method.introduce(site)
    told = [i.counts for i in intros.values() if i.counts is not None]
    left_out = False
    for name in sorted(sites):
        down = Down(weights)
        if told:
            pos, neg = torch.stack(told).sum(0).float()
            down = Begin(weights, torch.where((pos > 0) & (neg > 0), neg / pos.clamp(min=1), 1.0))
        up, _ = method.local_update(down, None, site_of(spec, bench, name, sites[name]))
        assert up.positives.tolist() == history[0][name]
        assert up.images == len(sites[name].train)
        assert up.positives.max() <= up.images
        own = sites[name].view
        present = (own.target * own.known_labels).sum(0)
        assert (up.positives.numpy() >= present).all() or counted == "drawn"
        left_out |= bool((up.positives.numpy() < present).any())
    assert left_out is (counted == "drawn")  # uncertain images, and those that no step drew


def site_of(spec, bench, name, data):
    cases = ResidentCases.of(data.train, data.view, CPU, spec.federation.exclusive)
    return Site(name, spec.federation, bench, cases, spec.training, spec.seed, 1, spec.rounds)


@pytest.mark.parametrize("task", TASKS)
def test_without_its_parts_it_is_masked_fedavg_on_strong_views(task, tmp_path):  # METHODS 6.4
    """With thresholds nothing meets, FixMatch is silent and FedAvg* on strong views remains."""
    never = {"tau": 1.0, "tau_positive": 1.0, "tau_negative": 0.0}
    spec = spec_of(task, settings={**never, **PARTS_OFF})
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    expected, _, used = plain_run(spec, sites)
    assert used == {"mixed": 0, "guessed": 0}
    for name, value in server_weights(tmp_path / "run").items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=5e-4)


def test_parting_leaves_statistics_alone_and_takes_no_gradient():
    spec = spec_of()
    learner = PlainLearner.of(spec.learner, spec.federation)
    bench = Workbench(learner, spec.federation, CPU, 0)
    site = site_of(spec, bench, "anna", sites_of(spec)["anna"])
    before = site.weights()
    parts = part_by_uncertainty(site, 3, 4)
    assert_same_state(before, site.weights())
    assert [len(p) for p in (parts.uncertain, parts.confident, parts.stream)] == [3, 4, 9]
    assert not set(parts.uncertain.tolist()) & set(parts.stream.tolist())
    assert set(parts.confident.tolist()) <= set(parts.stream.tolist())


@pytest.mark.parametrize("task", TASKS)
def test_unknown_labels_are_never_read(task, tmp_path):
    spec = spec_of(task)
    clean = sites_of(spec)
    one = run_toy(spec, tmp_path / "one", clean)
    two = run_toy(spec, tmp_path / "two", {k: garbled(v) for k, v in clean.items()})
    assert without_times(one) == without_times(two)
    assert_same_state(final_state(tmp_path / "one"), final_state(tmp_path / "two"))


def test_the_training_augmentation_does_not_enter(tmp_path):
    sites = sites_of(spec_of())
    for augment in ("none", "flips"):
        run_toy(spec_of(training={"augment": augment}), tmp_path / augment, sites)
    assert_same_state(server_weights(tmp_path / "none"), server_weights(tmp_path / "flips"))


@pytest.mark.parametrize("task", TASKS)
def test_sites_with_little_train(task, tmp_path):
    sites = [*PARTIAL, {"name": "dora", "supervision": "none"}]  # marks nothing at all
    spec = spec_of(task, sites=sites)
    data = sites_of(spec, bo=3, anna=1)  # three images, and one
    if task == "multi-label":
        view = data["cleo"].view
        empty = replace(view, target=np.zeros_like(view.target))  # no positive at all
        data["cleo"] = replace(data["cleo"], view=empty)
    run_toy(spec, tmp_path / "run", data)
    for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines():
        told = json.loads(line)
        assert told["events"] == []
        assert told["took_part"] == ["anna", "bo", "cleo", "dora"]
    assert all(v.isfinite().all() for v in server_weights(tmp_path / "run").values())


def test_exactly_what_the_paper_says_leaves_a_site(tmp_path):  # METHODS 2.1
    run_toy(spec_of(), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "up", "introduce") == {("Intro", "counts")}
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        ("Up", "weights"),
        ("Up", "images"),
        ("Up", "positives"),
    }
    assert ledger_fields(tmp_path / "run", "down", "train") == {
        ("Begin", "weights"),
        ("Begin", "positive_weight"),
        ("Down", "weights"),
    }
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    told = [x for x in lines if x["field"] == "positive_weight"]
    assert sorted(x["site"] for x in told) == ["anna", "bo", "cleo"]  # once each
    assert {x["round"] for x in told} == {1}


def test_with_exclusive_labels_no_counts_and_no_class_weights_travel(tmp_path):
    run_toy(spec_of("single-label"), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "down", "train") == {("Down", "weights")}
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    assert {x["numbers"] for x in lines if x["field"] == "counts"} == {0}


def test_counts_are_of_marked_labels_and_only_known_zeros_are_negatives():
    spec = spec_of()
    learner = PlainLearner.of(spec.learner, spec.federation)
    bench = Workbench(learner, spec.federation, CPU, 0)
    data = sites_of(spec)["bo"]
    counts = make_method("fedlsm").introduce(site_of(spec, bench, "bo", data)).counts
    shown = int(data.view.target[:, 2].sum())
    assert counts.tolist() == [[0, 0, shown], [0, 0, len(data.train) - shown]]


def server(positives=None, **changes):
    tensors = {"body": torch.zeros(1), "head": torch.full((2, 1), 7.0)}
    groups = {"body": ("body",), "head": ("head",)}
    marked = {"a": (0,), "b": (1,), "c": (0, 1)}
    counts = torch.tensor([[10, 0], [30, 40]])
    intros = {name: Intro(counts) for name in marked}
    return replace(Server(tensors, groups, marked, intros, ("a", "b", "c"), {}), **changes)


def up(value, images, positives):
    tensors = {"body": torch.full((1,), value), "head": torch.full((2, 1), value)}
    return Up(tensors, images, torch.tensor(positives))


def test_rows_and_features_are_averaged_apart():
    method = make_method("fedlsm")
    ups = {"a": up(1.0, 900, [10, 0]), "b": up(2.0, 300, [30, 0]), "c": up(3.0, 800, [0, 0])}
    after = method.aggregate(server(), ups)
    assert after.weights["body"].item() == pytest.approx(0.45 * 1 + 0.15 * 2 + 0.4 * 3)
    # The first row by positives; the second was shown nowhere: images of b and c, who mark it.
    second = (300 * 2 + 800 * 3) / 1100
    assert after.weights["head"].flatten().tolist() == pytest.approx([1.75, second])
    assert after.waiting == ()
    off = make_method("fedlsm", {"adaptive": False}).aggregate(server(), ups)
    first = (900 * 1 + 800 * 3) / 1700
    assert off.weights["head"].flatten().tolist() == pytest.approx([first, second])


def test_a_row_that_nobody_present_teaches_stays():
    after = make_method("fedlsm").aggregate(server(), {"a": up(1.0, 10, [4, 0])})
    assert after.weights["head"].flatten().tolist() == [1, 7]
    assert after.waiting == ("b", "c")


def test_class_weights_are_global_and_told_again_when_a_site_joins():
    method = make_method("fedlsm")
    begin = method.broadcast(server(), "a")
    assert begin.positive_weight.tolist() == [3, 1]  # 90 over 30; no positive: 1
    told = server(waiting=())
    assert isinstance(method.broadcast(told, "a"), Down)
    joined = method.admit(told, "d", Intro(torch.tensor([[0, 5], [0, 5]])))
    assert set(joined.waiting) == {"a", "b", "c", "d"}
    assert method.broadcast(joined, "a").positive_weight.tolist() == [3, 25]
    assert isinstance(method.broadcast(joined, "common"), Down)


def test_blends_that_a_batch_includes_must_fit_into_it(tmp_path):
    spec = spec_of(settings={"included": True, "mixed": 4})
    sentence = "'fedlsm' takes 4 blended images out of a batch .* but training.batch is 4; raise it"
    for begin in (lambda: run_toy(spec, tmp_path / "run", sites_of(spec)), lambda: make_plan(spec)):
        with pytest.raises(UsageError, match=sentence):
            begin()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("weighs", ["positive", "entry"])
def test_class_weights_mean_here_what_they_mean_elsewhere(weighs):
    """Where all sites know the same, the federation's weights are a site's; terms differ by a mean."""
    every = [{"name": name, "supervision": "image"} for name in ("anna", "bo")]
    spec = spec_of(sites=every)
    learner = PlainLearner.of(spec.learner, spec.federation)
    bench = Workbench(learner, spec.federation, CPU, 0)
    data = sites_of(spec)["anna"]
    anna, bo = (site_of(spec, bench, name, data) for name in ("anna", "bo"))
    method = make_method("fedlsm", {"weighted": weighs})
    intros = {"anna": method.introduce(anna), "bo": method.introduce(bo)}
    begin = method.broadcast(replace(server(waiting=("anna",)), intros=intros), "anna")
    told, own = ClassWeights.read(weighs, begin.positive_weight), anna.weighed(weighs)
    assert len(begin.positive_weight.unique()) > 1
    batch = anna.train.cut(torch.arange(len(anna.train)))
    logits = learner.logits(bench.network(), batch.image)
    known = torch.ones_like(batch.target, dtype=torch.bool)
    torch.testing.assert_close(
        entry_loss(logits, batch.target, known, told),
        len(LABELS) * learner.loss_of(logits, batch, own),
    )


def test_it_classifies_and_every_label_is_marked_somewhere():
    assert "classifies images" in why_not("fedlsm", toy_spec().federation)
    one = [{"name": "a", "supervision": "image", "annotates": ["round"]}]
    reason = why_not("fedlsm", toy_spec("multi-label", sites=one).federation)
    assert reason == "needs every label marked somewhere; nobody marks 'square'"


def test_what_each_site_took_for_each_label_is_logged_round_by_round(tmp_path):
    spec = spec_of()
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    _, history, _ = plain_run(spec, sites)
    lines = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    for line, counted in zip(lines, history, strict=True):
        assert line["counts"] == {
            site: dict(zip(LABELS, counted[site], strict=True)) for site in sites
        }
    shown = count_table(Record.read(tmp_path / "run"))
    assert [row.site for row in shown] == ["anna", "bo", "cleo"]
    assert [marked for _, marked in shown[0].values] == [True, True, False]
    assert [count for count, _ in shown[0].values] == history[-1]["anna"]
    page = write_report(tmp_path / "run").read_text()
    assert f"<i>{history[-1]['anna'][2]}</i>" in page  # a label that anna does not mark


def lost(task):
    """Return the update of a site that gets weights alone, and that of one told its own class weights."""
    spec = spec_of(task)
    data = sites_of(spec)["anna"]
    method = make_method("fedlsm", spec.method.settings)
    learner = PlainLearner.of(spec.learner, spec.federation)
    found = []
    for told in (False, True):
        bench = Workbench(learner, spec.federation, CPU, spec.seed)
        site = site_of(spec, bench, "anna", data)
        start = site.weights()
        own = site.imbalance()
        down = Begin(start, own) if told and task == "multi-label" else Down(start)
        found.append(method.local_update(down, None, site))
    return found


def test_a_site_that_lost_its_class_weights_says_so_and_uses_its_own(caplog):
    with caplog.at_level(logging.WARNING, "consilia"):
        (up, memory), (told, kept) = lost("multi-label")
    assert_same_state(up.weights, told.weights)
    assert [r.message for r in caplog.records] == [
        "site 'anna' has lost the class weights of the federation; it weighs its labels by its own "
        "counts until it is told again"
    ]
    assert memory.positive_weight is None  # it will say so again
    assert kept.positive_weight is not None


def test_with_exclusive_labels_there_is_nothing_to_lose(caplog):
    with caplog.at_level(logging.WARNING, "consilia"):
        lost("single-label")
    assert not caplog.records
