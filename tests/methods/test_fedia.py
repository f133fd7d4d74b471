"""FedIA against a second, plain implementation, its limit case and its stages."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from consilia.engines.inprocess import make_bench
from consilia.errors import UsageError
from consilia.methods import make_method, why_not
from consilia.methods.incomplete.fedia import Estimated, Memory, Server, Up, Watch
from consilia.runs.spec import Participation
from consilia.runs.store import RunFolder
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from consilia.training.site import Site
from tests.methods.plain import half_trained, lesion_sites, lesion_spec
from tests.methods.support import assert_same_state, final_state, ledger_fields, server_weights

CPU = torch.device("cpu")
SITES = [
    {"name": name, "supervision": "mask", "complete": False} for name in ("anna", "bo", "cleo")
]


def spec_of(rounds=6, **settings):
    return toy_spec(
        labels=["round"],
        sites=SITES,
        rounds=rounds,
        method={"name": "fedia", "settings": settings},
        learner={"network": "unet-tiny", "objective": "dice-foreground"},
        training={"augment": "none", "learning_rate": 0.02, "keep_optimizer": False},
    )


def foreground(learner, network, cases):
    network.eval()
    with torch.no_grad():
        return learner.probabilities(network, cases.image.float() / 255)[:, 0]


def plain_run(spec, sites, warmup, gap, tau, told_loss="after", ratio=None, longest=0):
    """Section 2 of the paper in plain loops; returns the weights and what happened."""
    from scipy.ndimage import label

    learner = PlainLearner.of(spec.learner, spec.federation)
    with seeded(spec.seed, "network", "main"):
        network = learner.build()
    if spec.learner.init:
        network.load_state_dict(load_file(spec.learner.init))
    world = {k: v.clone() for k, v in network.state_dict().items()}
    labels = {n: torch.from_numpy(sites[n].view.target.copy()) for n in sites}
    history, estimate, pending, corrected, stages = {n: [] for n in sites}, {}, set(), {}, []
    stage = 1
    for t in range(1, spec.rounds + 1):
        sent, losses = {}, {}
        for name in sorted(sites):
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU).corrected(
                labels[name]
            )
            network.load_state_dict(world)
            p = foreground(learner, network, cases)
            if stage == 2 and name not in estimate:
                objects = lambda m: sum(label(x, np.ones((3, 3)))[1] for x in m.numpy())  # noqa: E731
                estimate[name] = min(1, max(1e-3, objects(labels[name] > 0) / objects(p > 0.5)))
            if stage == 2 and name in pending and name not in corrected:
                labels[name] = torch.where((labels[name] == 0) & (p > tau), 1, labels[name]).to(
                    torch.uint8
                )
                corrected[name] = t
                cases = cases.corrected(labels[name])
            network.train()
            rate, parameters = spec.training.learning_rate, network.parameters()
            if spec.training.optimizer == "sgd":
                descent = torch.optim.SGD(parameters, rate, weight_decay=1e-4)
            else:
                descent = torch.optim.Adam(parameters, rate, weight_decay=1e-4, fused=True)
            randoms, running = generator(spec.seed, name, t, "batches main"), []
            for index in orders(len(cases), spec.training.batch, 1, None, randoms):
                torch.rand(3, len(index), generator=randoms)
                batch = cases.cut(index)
                descent.zero_grad()
                q = network(batch.image).softmax(1)[:, 1].flatten(1)
                y = (batch.target > 0).float().flatten(1)
                loss = (1 - 2 * (q * y).sum(1) / (q.sum(1) + y.sum(1) + 1e-4)).mean()
                loss.backward()
                descent.step()
                running.append(loss.item())
            q, y = foreground(learner, network, cases), labels[name] > 0
            full = [i for i in range(len(y)) if y[i].any()]
            dice = [2 * (q[i] * y[i]).sum() / (q[i].sum() + y[i].sum() + 1e-4) for i in full]
            iou = [((q[i] > 0.5) & y[i]).sum() / ((q[i] > 0.5) | y[i]).sum() for i in full]
            after, now = 1 - float(np.mean(dice)), float(np.mean(iou))
            losses[name] = after if told_loss == "after" else float(np.mean(running))
            if stage == 1:
                history[name].append((t, now))
            elif stage == 2 and name not in corrected:
                slope, start = np.polyfit(*zip(*history[name], strict=True), 1)
                if slope * t + start - now > gap:
                    pending.add(name)
            sent[name] = {k: v.clone() for k, v in network.state_dict().items()}
        counts = {n: len(sites[n].train) for n in sites}
        if stage == 2:
            powers = {n: np.exp(estimate[n] / losses[n]) for n in sites}
            if ratio:
                powers = {n: max(powers[n], max(powers.values()) / ratio) for n in sites}
            w = {n: powers[n] / sum(powers.values()) for n in sites}
        else:
            w = counts
        mean = {k: sum(w[n] * sent[n][k].double() for n in sorted(sites)) for k in world}
        world = {k: (mean[k] / sum(w.values())).to(world[k].dtype) for k in world}
        stages.append(stage)
        if stage == 1 and t >= warmup:
            stage = 2
        elif stage == 2 and (corrected.keys() == sites.keys() or stages.count(2) == longest):
            stage = 3
    return world, stages, labels, estimate, corrected, history


def overlooking(spec):
    """Return toy sites of which two overlook whole objects."""
    sites = toy_sites(spec)
    for name, missed in (("anna", 4), ("bo", 7)):
        sites[name].view.target[:missed] = 0
    return sites


def assert_weights_close(path, expected, rtol=5e-3, atol=1e-3):
    found = server_weights(path)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol)


def overlays_of(path):
    return {k.split("/")[1]: v for k, v in final_state(path).items() if "overlay-labels" in k}


def state_of(path: Path, file):
    """Return what a file of the last checkpoint holds besides tensors."""
    _, folder = RunFolder.open(path).latest_checkpoint()
    with safe_open(folder / f"{file}.safetensors", "pt") as opened:
        return json.loads(opened.metadata()["tree"])


def test_fedia_is_its_algorithm(tmp_path):
    spec = spec_of(6, warmup=3, gap=-0.2, threshold=0.4)
    sites = overlooking(spec)
    run_toy(spec, tmp_path / "run", sites)
    expected, stages, labels, estimate, *_ = plain_run(spec, sites, 3, -0.2, 0.4)
    assert stages == [1, 1, 1, 2, 2, 3]  # all three stages were passed
    assert_weights_close(tmp_path / "run", expected)
    for name, overlay in overlays_of(tmp_path / "run").items():
        assert torch.equal(overlay, labels[name])
        assert (overlay.numpy() >= sites[name].view.target).all()  # marked pixels never change
    assert len(set(estimate.values())) > 1


def test_each_site_corrects_once_when_its_own_iou_falls(tmp_path):
    learner = {"init": half_trained(tmp_path / "init.safetensors", steps=25)}
    settings = {"warmup": 3, "gap": 0.032, "threshold": 0.5}
    spec = lesion_spec("fedia", 8, settings, learner=learner, training={"learning_rate": 0.1})
    sites = lesion_sites(spec)
    expected, stages, labels, _, corrected, history = plain_run(spec, sites, 3, 0.032, 0.5)
    assert stages == [1, 1, 1, 2, 2, 2, 2, 3]
    assert corrected == {"anna": 5, "bo": 6, "cleo": 7}
    run_toy(spec, tmp_path / "run", sites)
    run_toy(spec.model_copy(update={"rounds": 6}), tmp_path / "first", sites)
    assert_weights_close(tmp_path / "run", expected, rtol=1e-4, atol=1e-5)
    kept, first = overlays_of(tmp_path / "run"), overlays_of(tmp_path / "first")
    assert (kept.keys(), first.keys()) == (sites.keys(), {"anna", "bo"})
    for name in sites:
        assert torch.equal(kept[name], labels[name])
        assert torch.equal(kept[name], first.get(name, kept[name]))  # no second correction
        assert kept[name].float().mean() < 0.3  # which could have added more
        remembered = state_of(tmp_path / "run", f"memories/{name}/memory")["history"]
        for found, point in zip(remembered, history[name], strict=True):
            assert found == pytest.approx(point, abs=1e-4)


@pytest.mark.parametrize("settings", [{"told_loss": "running"}, {"ratio": 1.3}])
def test_its_switches_are_those_of_the_algorithm(tmp_path, settings):
    spec = spec_of(5, warmup=3, **settings)
    sites = overlooking(spec)
    run_toy(spec, tmp_path / "run", sites)
    expected, stages, *_ = plain_run(spec, sites, 3, 0.03, 0.8, **settings)
    assert stages == [1, 1, 1, 2, 2]
    assert_weights_close(tmp_path / "run", expected)
    usual, *_ = plain_run(spec, sites, 3, 0.03, 0.8)
    assert any(not torch.allclose(usual[n], expected[n], 1e-2, 2e-3) for n in usual)


def test_stage_two_ends_after_its_longest_where_nobody_corrects(tmp_path):  # METHODS 4.4
    spec = spec_of(6, warmup=3, longest=2, correct=False)
    sites = overlooking(spec)
    run_toy(spec, tmp_path / "run", sites)
    never = float("inf")
    expected, stages, *_ = plain_run(spec, sites, 3, never, 0.8, longest=2)
    assert stages == [1, 1, 1, 2, 2, 3]
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    trained = [x for x in lines if x["verb"] == "train"]
    assert {x["round"] for x in trained if x["message"] == "Watch"} == {4, 5}
    assert state_of(tmp_path / "run", "server")["stage"] == "corrected"
    assert_weights_close(tmp_path / "run", expected)


def test_a_warm_up_of_all_rounds_is_fedavg_to_the_bit(tmp_path):
    run_toy(spec_of(4, warmup=4), tmp_path / "fedia")
    plain = spec_of(4).model_copy(update={"method": toy_spec().method})
    run_toy(plain, tmp_path / "fedavg")
    assert_same_state(server_weights(tmp_path / "fedia"), server_weights(tmp_path / "fedavg"))


def test_without_correction_no_overlay_is_made(tmp_path):
    eager = {"warmup": 3, "gap": -0.2, "threshold": 0.4}
    run_toy(spec_of(5, **eager), tmp_path / "on")
    run_toy(spec_of(5, **eager, correct=False), tmp_path / "off")
    assert len(overlays_of(tmp_path / "on")) == 3
    assert overlays_of(tmp_path / "off") == {}


def test_a_correction_that_would_fill_too_much_is_refused(tmp_path):
    eager = {"warmup": 3, "gap": -0.2, "threshold": 0.4}
    spec = spec_of(5, **eager, most=0.0)
    sites = toy_sites(spec)
    run_toy(spec, tmp_path / "none", sites)
    run_toy(spec_of(5, **eager), tmp_path / "every", sites)
    kept, changed = overlays_of(tmp_path / "none"), overlays_of(tmp_path / "every")
    for name, data in sites.items():
        assert torch.equal(kept[name], torch.from_numpy(data.view.target))
        assert not torch.equal(kept[name], changed[name])


LINE = tuple(enumerate((0.30, 0.34, 0.38, 0.42, 0.46), start=1))


@pytest.mark.parametrize(("iou", "falls"), [(0.50, True), (0.52, False), (0.58, False)])
def test_an_iou_far_below_its_line_triggers(iou, falls):  # METHODS 4.9, fact 6
    memory = Memory(LINE, triggered=False, corrected=False)
    assert make_method("fedia").falls(memory, 7, iou) is falls
    assert not make_method("fedia", {"correct": False}).falls(memory, 7, iou)
    assert not make_method("fedia").falls(replace(memory, history=LINE[:1]), 7, iou)


def site_of(bias, marked=True):
    """Return a method, and a site in round 3 whose model scores the label about `bias`."""
    spec, method = spec_of(), make_method("fedia")
    data, bench = toy_sites(spec)["anna"], make_bench(spec, method, spec.federation)
    bench.network().head.bias.data = torch.tensor([0.0, bias])
    if not marked:
        data.view.target[:] = 0
    training = spec.training.model_copy(update={"learning_rate": 1e-9})
    cases = ResidentCases.of(data.train, data.view, CPU)
    return method, Site("anna", spec.federation, bench, cases, training, 0, 3, 6)


def updated(bias, history, marked=True, **watch):
    """Return what such a site sends and keeps."""
    method, site = site_of(bias, marked)
    memory = Memory(history, triggered=False, corrected=False)
    return method.local_update(Watch(site.weights(), **watch), memory, site)


def test_a_round_in_which_nothing_is_predicted_is_one_more_of_the_warm_up():
    history = ((1, 0.5), (2, 0.6))
    up, memory = updated(-20.0, history, estimate=True)
    assert up.completeness is None
    assert memory == Memory((*history, (3, 0.0)), triggered=False, corrected=False)
    up, memory = updated(20.0, history, estimate=True)  # everything is predicted
    assert up.completeness == 1
    assert memory == Memory(history, triggered=True, corrected=False)
    up, memory = updated(-20.0, history, estimate=False)  # it has told its estimate long ago
    assert isinstance(up, Up)
    assert memory == Memory(history, triggered=True, corrected=False)


@pytest.mark.parametrize("corrected", [False, True])
def test_labels_are_corrected_once(corrected):
    method, site = site_of(20.0)
    memory = Memory(LINE, triggered=True, corrected=corrected)
    up, after = method.local_update(Watch(site.weights(), estimate=False), memory, site)
    assert ("labels" in site.overlays) != corrected
    assert up.corrected
    assert after == replace(memory, corrected=True)


def test_a_site_without_marks_is_not_complete_whatever_the_model_predicts():
    for bias in (-20.0, 20.0):
        up, memory = updated(bias, ((1, 0.0), (2, 0.0)), marked=False, estimate=True)
        assert up.completeness == 0
        assert not memory.triggered


def test_a_site_that_has_no_line_is_not_waited_for(tmp_path):
    """It joined after the warm-up, so it never corrects; the others have all corrected in round 5."""
    eager = {"warmup": 3, "gap": -0.2, "threshold": 0.4}
    spec = spec_of(6, **eager).model_copy(
        update={"participation": Participation(joins={"cleo": 5})}
    )
    run_toy(spec, tmp_path / "run", overlooking(spec))
    assert overlays_of(tmp_path / "run").keys() == {"anna", "bo"}
    found = state_of(tmp_path / "run", "server")
    assert found["stage"] == "corrected"
    assert found["points"]["$map"] == {"anna": 3, "bo": 3}


def test_a_warm_up_has_three_rounds():  # METHODS 4.4
    with pytest.raises(UsageError, match=r"method.warmup of 'fedia' is 2; expected .* at least 3"):
        make_method("fedia", {"warmup": 2})


def test_exactly_what_the_paper_says_leaves_a_site(tmp_path):  # METHODS 4.1
    run_toy(spec_of(5, warmup=3), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "up", "introduce") == {("Intro", "images")}
    assert ledger_fields(tmp_path / "run", "down", "train") == {
        ("Train", "weights"),
        ("Train", "warmup"),
        ("Watch", "weights"),
        ("Watch", "estimate"),
    }
    common = {"weights", "images", "loss", "corrected"}
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        *(("Up", name) for name in common),
        *(("Estimated", name) for name in {*common, "completeness"}),
    }
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    once = [
        x["site"] for x in lines if x["message"] == "Estimated" and x["field"] == "completeness"
    ]
    assert sorted(once) == ["anna", "bo", "cleo"]


def server(**changes):
    tensors = {"w": torch.zeros(1)}
    told = {"a": 0.5, "b": 1.0}
    start = Server(tensors, {"body": ("w",)}, {"a": 3, "b": 3}, "aware", 0, told, (), {})
    return replace(start, **changes)


def up(value, loss=0.5, corrected=False, images=10):
    return Up({"w": torch.tensor([value])}, images, loss, corrected)


def estimated(value, completeness):
    return Estimated({"w": torch.tensor([value])}, 10, 0.5, False, completeness)


def test_stage_two_weighs_by_completeness_over_loss():
    after = make_method("fedia").aggregate(server(), {"a": up(0.0), "b": up(1.0)})
    expected = np.exp(2) / (np.exp(1) + np.exp(2))
    assert after.weights["w"].item() == pytest.approx(expected)
    off = make_method("fedia", {"aware": False}).aggregate(server(), {"a": up(0.0), "b": up(1.0)})
    assert off.weights["w"].item() == pytest.approx(0.5)
    bound = make_method("fedia", {"ratio": 2.0}).aggregate(server(), {"a": up(0.0), "b": up(1.0)})
    assert bound.last == pytest.approx({"a": 1 / 3, "b": 2 / 3})


def test_complete_sites_of_equal_loss_count_alike_however_many_images():  # METHODS 6.4
    method, told = make_method("fedia"), {"a": up(0.0, images=10), "b": up(1.0, images=90)}
    after = method.aggregate(server(estimates={"a": 1.0, "b": 1.0}), told)
    assert after.last == pytest.approx({"a": 0.5, "b": 0.5})
    assert after.weights["w"].item() == pytest.approx(0.5)
    first = method.aggregate(server(stage="warm-up", rounds_left=3), told)
    assert first.last == pytest.approx({"a": 0.1, "b": 0.9})


def test_stage_three_begins_when_all_have_corrected_or_after_the_bound():
    method = make_method("fedia")
    one = method.aggregate(server(), {"a": up(0.0, corrected=True), "b": up(1.0)})
    assert (one.stage, one.corrected) == ("aware", ("a",))
    two = method.aggregate(one, {"b": up(1.0, corrected=True)})  # a is absent
    assert two.stage == "corrected"
    late = server(points={"a": 3, "b": 3, "c": 1}, estimates={"a": 0.5, "b": 1.0, "c": 0.7})
    told = {"a": up(0.0, corrected=True), "b": up(1.0, corrected=True), "c": up(1.0)}
    assert method.aggregate(late, told).stage == "corrected"  # one point makes no line
    late = replace(late, points={"a": 3, "b": 3, "c": 2})
    assert method.aggregate(late, told).stage == "aware"
    bounded = make_method("fedia", {"longest": 1})
    assert (
        bounded.aggregate(server(rounds_left=1), {"a": up(0.0), "b": up(1.0)}).stage == "corrected"
    )


def test_a_model_that_predicts_nothing_is_warmed_up_further_and_the_log_says_so(caplog):
    method = make_method("fedia")
    fresh = server(estimates={})
    with caplog.at_level(logging.WARNING, "consilia"):
        after = method.aggregate(fresh, {"a": estimated(0.0, None), "b": estimated(1.0, None)})
        method.aggregate(after, {"a": up(0.0), "b": up(1.0)})
        method.aggregate(fresh, {"a": estimated(0.0, 0.4), "b": estimated(1.0, 0.4)})
    assert (after.stage, after.rounds_left, after.estimates) == ("warm-up", 1, {})
    assert after.points == {"a": 4, "b": 4}
    (told,) = [r.getMessage() for r in caplog.records]
    assert told.startswith("the warm-up was too short: the model predicts nothing at 'a' and 'b'")
    part = method.aggregate(fresh, {"a": estimated(0.0, None), "b": estimated(1.0, 0.4)})
    assert "nothing at 'a', so" in caplog.text
    assert part.stage == "aware"
    assert part.estimates == {"a": 1.0, "b": 0.4}
    assert part.points == {"a": 4, "b": 3}
    assert part.weights["w"].item() == pytest.approx(0.5)  # FedAvg for this round


def test_whether_anything_is_predicted_is_asked_of_sites_with_marks():
    method, fresh = make_method("fedia"), server(estimates={})
    silent, bare, telling = (estimated(0.0, told) for told in (None, 0.0, 0.4))
    assert method.aggregate(fresh, {"a": silent, "b": bare}).stage == "warm-up"
    assert method.aggregate(fresh, {"a": bare, "b": bare}).stage == "aware"
    assert method.aggregate(fresh, {"a": silent, "b": telling}).stage == "aware"
    earlier = server(estimates={"b": 0.4})  # b is absent now, and had predictions
    assert method.aggregate(earlier, {"a": silent}).stage == "aware"
    earlier = server(estimates={"b": 0.0})
    assert method.aggregate(earlier, {"a": silent}).stage == "warm-up"
    after = method.aggregate(fresh, {"a": bare, "b": telling})
    assert after.last["a"] == pytest.approx(1 / (1 + np.exp(0.4 / 0.5)))


def test_an_absent_site_is_asked_for_its_estimate_when_it_is_back():
    method = make_method("fedia")
    assert method.broadcast(server(estimates={"a": 1.0}), "b").estimate
    assert not method.broadcast(server(estimates={"a": 1.0}), "a").estimate


def test_only_masks_of_one_label():
    assert "segments one label" in why_not("fedia", toy_spec().federation)
    mixed = [{"name": "a", "supervision": "mask"}, {"name": "b", "supervision": "box"}]
    assert "needs masks at every site; 'b'" in why_not(
        "fedia", toy_spec(labels=["x"], sites=mixed).federation
    )
