"""FedNoRo against a second, plain implementation, its limit cases and its messages."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture

from consilia.methods import make_method, why_not
from consilia.methods.averaging import Up
from consilia.methods.incomplete.fednoro import FedNoRo, Judged, Robust, Server, Warm
from consilia.ops.mixture import high_among
from consilia.testing import run_toy, toy_spec
from tests.methods.plain import (
    Plain,
    assert_close,
    half_trained,
    lesion_sites,
    lesion_spec,
    run_twice_with_a_stop,
)
from tests.methods.support import assert_same_state, ledger_fields, server_weights
from tests.training.test_capture import RATE, Replayed, assert_replies_equal, replies


def noisy_by_votes(table):
    """The authors' selection: columns from 0 to 1, nine mixtures, the most frequent set."""
    table = np.array(table)
    low, high = table.min(0), table.max(0)
    table = (table - low) / (high - low)
    votes = []
    for seed in range(9):
        mixture = GaussianMixture(2, random_state=seed).fit(table)
        votes.append(
            tuple(np.where(mixture.predict(table) == mixture.means_.sum(1).argmax())[0].tolist())
        )
    return max(votes, key=votes.count)


def plain_run(spec, sites, warmup, ramp, trust, temperature):
    run, names = Plain(spec, sites), sorted(sites)
    teacher = run.learner.build()
    noisy, parts = (), []
    for t in range(1, spec.rounds + 1):
        sent, table = {}, []
        for site in names:
            run.load()
            teacher.load_state_dict(run.world["main"])
            teacher.eval()
            y = run.labels[site] > 0
            if t == warmup + 1:
                p = run.foreground(site).double()
                table.append([float(-torch.log(1 - p[~y]).mean()), float(-torch.log(p[y]).mean())])
            prior = torch.tensor([float((~y).sum()), float(y.sum())]) / y.numel()
            done = min(1.0, (t - warmup - 2) / ramp)
            w = trust * math.exp(-5 * (1 - done) ** 2) if site in noisy else 0.0

            def loss(image, target, index, prior=prior, w=w):
                log_p = (run.scores(image) + prior.log()[:, None, None]).log_softmax(1)
                marked = (target > 0).long()
                entropy = F.nll_loss(log_p, marked)
                if not w:
                    return entropy
                with torch.no_grad():
                    soft = (run.scores(image, teacher) / temperature).softmax(1)
                kl = (soft * (soft.log() - log_p)).sum(1).mean()
                return w * kl + (1 - w) * entropy

            run.train(site, t, loss)
            sent[site] = run.sent()
        weights = {}
        for site in names:
            far = 0.0
            if site in noisy:
                far = min(
                    sum(float((sent[site][k] - sent[o][k]).norm()) for k in sent[site])
                    for o in names
                    if o not in noisy
                )
            weights[site] = far
        most = max(weights.values())
        shares = {s: run.counts[s] * math.exp(-weights[s] / most if most else 0.0) for s in names}
        run.average(sent, shares)
        parts.append({s: shares[s] / sum(shares.values()) for s in names})
        if table:
            noisy = tuple(names[i] for i in noisy_by_votes(table))
    return run, noisy, parts


@pytest.mark.parametrize(
    ("objective", "trust", "temperature"), [("dice-foreground", 0.8, 0.8), ("dice", 0.5, 2.0)]
)
def test_fednoro_is_its_algorithm(tmp_path, objective, trust, temperature):
    init = half_trained(tmp_path / "init.safetensors", objective)
    learner, training = {"objective": objective, "init": init}, {"learning_rate": 0.1}
    settings = {"warmup": 2, "ramp": 2, "trust": trust, "temperature": temperature}
    spec = lesion_spec("fednoro", 5, settings, learner=learner, training=training)
    sites = lesion_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    run, noisy, parts = plain_run(spec, sites, **settings)
    assert {"bo"} <= set(noisy) <= {"anna", "bo"}  # bo overlooks most, cleo nothing
    assert_close(tmp_path / "run", run.world["main"])
    lines = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    for line, expected in zip(lines, parts, strict=True):
        assert line["shares"] == pytest.approx(expected, abs=1e-5)
    assert parts[0] != pytest.approx(parts[-1])


def test_a_warm_up_of_all_rounds_without_adjustment_is_fedavg_to_the_bit(tmp_path):
    learner, training = (
        {"objective": "partial-ce"},
        {"augment": "flips", "optimizer": "adam", "learning_rate": 0.01},
    )
    noro = lesion_spec("fednoro", 3, {"adjust": 0.0}, learner=learner, training=training)
    fedavg = lesion_spec("fedavg", 3, learner=learner, training=training)
    run_toy(noro, tmp_path / "fednoro", lesion_sites(noro))
    run_toy(fedavg, tmp_path / "fedavg", lesion_sites(fedavg))
    assert_same_state(server_weights(tmp_path / "fednoro"), server_weights(tmp_path / "fedavg"))


def test_a_stopped_run_goes_on_in_its_stage(tmp_path):
    spec = lesion_spec("fednoro", 5, {"warmup": 2, "ramp": 2})
    assert_same_state(*run_twice_with_a_stop(spec, lesion_sites(spec), tmp_path, 4))


def test_exactly_what_is_declared_leaves_a_site(tmp_path):
    spec = lesion_spec("fednoro", 4, {"warmup": 2})
    run_toy(spec, tmp_path / "run", lesion_sites(spec))
    common = {"weights", "images", "loss"}
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        *(("Up", name) for name in common),
        *(("Judged", name) for name in {*common, "background", "label"}),
    }
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    told = [x["site"] for x in lines if x["message"] == "Judged" and x["field"] == "label"]
    assert sorted(told) == ["anna", "bo", "cleo"]  # once each


def server(**changes):
    start = Server({"w": torch.zeros(1)}, {"body": ("w",)}, 0, 0, {}, (), {})
    return replace(start, **changes)


def up(value, images=10):
    return Up({"w": torch.tensor([value])}, images, 0.5)


def judged(value, background, label):
    return Judged({"w": torch.tensor([value])}, 10, 0.5, background, label)


def test_sites_with_high_losses_are_noisy_and_a_missing_class_is_no_loss():
    method = make_method("fednoro")
    ups = {
        "a": judged(0.0, 0.1, 0.2),
        "b": judged(1.0, 0.11, None),
        "c": judged(2.0, 0.5, 3.0),
        "d": judged(3.0, 0.45, 2.9),
    }
    after = method.aggregate(server(), ups)
    assert after.noisy == ("c", "d")
    assert after.weights["w"].item() == pytest.approx(1.5)  # by images, for nobody was noisy yet
    later = method.aggregate(after, {"a": up(0.0), "b": up(1.0), "c": up(2.0), "d": up(4.0)})
    shares = [1, 1, math.exp(-1 / 3), math.exp(-1)]  # c is 1 away from b, d is 3
    assert later.last == pytest.approx(
        {s: w / sum(shares) for s, w in zip("abcd", shares, strict=True)}
    )


def test_alike_sites_are_all_clean_and_averaged_by_images():
    method = make_method("fednoro")
    after = method.aggregate(server(), {s: judged(1.0, 0.1, 0.2) for s in "abc"})
    assert after.noisy == ()
    later = method.aggregate(after, {"a": up(0.0, 30), "b": up(1.0, 10)})
    assert later.weights["w"].item() == pytest.approx(0.25)
    assert method.broadcast(later, "a").trust == 0


def test_where_all_present_sites_are_noisy_images_decide():
    method = make_method("fednoro")
    after = method.aggregate(server(noisy=("a", "b")), {"a": up(0.0, 30), "b": up(1.0, 10)})
    assert after.weights["w"].item() == pytest.approx(0.25)


def test_the_most_frequent_of_nine_splits_decides():
    rows = [(0.33, 0.68), (0.59, 0.66), (0.45, 0.11), (0.30, 0.51)]
    rows += [(0.50, 0.24), (0.83, 0.43), (0.85, 0.27), (0.94, 0.11)]
    told = dict(zip("abcdefgh", rows, strict=True))
    after = make_method("fednoro").aggregate(
        server(), {s: judged(0.0, *losses) for s, losses in told.items()}
    )
    assert after.noisy == tuple("abcdefgh"[i] for i in noisy_by_votes(rows))
    assert after.noisy != high_among(told, 1)  # the first start alone splits otherwise
    assert FedNoRo.VOTES == 9


def test_trust_grows_after_the_warm_up():
    method = make_method("fednoro")
    told = {"a": (0.1, 0.2), "b": (0.5, 3.0)}
    at = [method.broadcast(server(losses=told, noisy=("b",), robust=n), "b").trust for n in (0, 39)]
    assert at == pytest.approx([0.8 * math.exp(-5), 0.8])
    assert isinstance(method.broadcast(server(warmup=1), "a"), Warm)
    assert not method.broadcast(server(warmup=1), "a").judge
    late = method.broadcast(server(losses=told), "c")  # a site that was away is asked later
    assert isinstance(late, Warm)
    assert late.judge
    assert isinstance(method.broadcast(server(losses=told), "a"), Robust)


def test_only_masks_of_one_label():
    assert "segments one label" in why_not("fednoro", toy_spec().federation)


def test_the_teacher_only_looks(monkeypatch):
    """Were it to train, batch norm would follow the batch; and each mode has recordings of its own."""
    spec = lesion_spec("fednoro", 1)
    data = {"anna": lesion_sites(spec)["anna"]}

    def down(start, name, round_):
        return Robust(start, 0.5)

    training, taught = [], FedNoRo.taught

    def watched(self, bench, batch, held):
        training.append(bench.network("teacher").training)
        return taught(self, bench, batch, held)

    monkeypatch.setattr(FedNoRo, "taught", watched)
    replies(make_method("fednoro"), spec, data, down)
    assert training
    assert not any(training)


@pytest.mark.parametrize("taught", [False, True])
def test_one_recording_serves_all_sites_and_rounds(taught):
    """Offsets differ by site, trust by site and round: both are held, and reach the recorded step."""
    spec = lesion_spec("fednoro", 3, training={"epochs": 4, "learning_rate": RATE})
    data = {name: lesion_sites(spec)[name] for name in ("anna", "bo")}
    trust = {("anna", 1): 0.3, ("bo", 1): 0.7, ("anna", 2): 0.45, ("bo", 2): 0.8}

    def down(start, name, round_):
        return Robust(start, trust[name, round_] if taught else 0.0)

    recorder, method = Replayed(), make_method("fednoro")
    runs = [replies(method, spec, data, down, each) for each in (None, recorder)]
    assert recorder.recorded == 2  # batches of four, and the last one of two
    assert_replies_equal(*runs)
