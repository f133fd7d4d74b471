"""FedIA against a second, plain implementation, its limit case and its stages."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilia.errors import UsageError
from consilia.methods import make_method, why_not
from consilia.methods.incomplete.fedia import Estimated, Server, Up
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
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


def plain_run(spec, sites, warmup, gap, tau):
    """Section 2 of the paper in plain loops; returns the weights and what happened."""
    from scipy.ndimage import label

    learner = PlainLearner.of(spec.learner, spec.federation)
    with seeded(spec.seed, "network", "main"):
        network = learner.build()
    world = {k: v.clone() for k, v in network.state_dict().items()}
    labels = {n: torch.from_numpy(sites[n].view.target.copy()) for n in sites}
    history, estimate, pending, corrected, stages = {n: [] for n in sites}, {}, set(), set(), []
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
                corrected.add(name)
                cases = cases.corrected(labels[name])
            network.train()
            adam = torch.optim.Adam(
                network.parameters(), spec.training.learning_rate, weight_decay=1e-4, fused=True
            )
            randoms = generator(spec.seed, name, t, "batches main")
            for index in orders(len(cases), spec.training.batch, 1, None, randoms):
                torch.rand(3, len(index), generator=randoms)
                batch = cases.cut(index)
                adam.zero_grad()
                q = network(batch.image).softmax(1)[:, 1].flatten(1)
                y = (batch.target > 0).float().flatten(1)
                (1 - 2 * (q * y).sum(1) / (q.sum(1) + y.sum(1) + 1e-4)).mean().backward()
                adam.step()
            q, y = foreground(learner, network, cases), labels[name] > 0
            full = [i for i in range(len(y)) if y[i].any()]
            dice = [2 * (q[i] * y[i]).sum() / (q[i].sum() + y[i].sum() + 1e-4) for i in full]
            iou = [((q[i] > 0.5) & y[i]).sum() / ((q[i] > 0.5) | y[i]).sum() for i in full]
            losses[name], now = 1 - float(np.mean(dice)), float(np.mean(iou))
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
            w = {n: powers[n] / sum(powers.values()) for n in sites}
        else:
            w = {n: counts[n] / sum(counts.values()) for n in sites}
        world = {
            k: sum(w[n] * sent[n][k].double() for n in sorted(sites)).to(world[k].dtype)
            for k in world
        }
        stages.append(stage)
        if stage == 1 and t >= warmup:
            stage = 2
        elif stage == 2 and corrected == set(sites):
            stage = 3
    return world, stages, labels, estimate


def test_fedia_is_its_algorithm(tmp_path):
    spec = spec_of(6, warmup=3, gap=-0.2, threshold=0.4)
    sites = toy_sites(spec)
    for name, missed in (("anna", 4), ("bo", 7)):
        sites[name].view.target[:missed] = 0  # these sites overlook whole objects
    run_toy(spec, tmp_path / "run", sites)
    expected, stages, labels, estimate = plain_run(spec, sites, 3, -0.2, 0.4)
    assert stages == [1, 1, 1, 2, 2, 3]  # all three stages were passed
    found = server_weights(tmp_path / "run")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=5e-3, atol=1e-3)
    state = final_state(tmp_path / "run")
    for name in sites:
        overlay = state[f"memories/{name}/overlay-labels.safetensors:target"]
        assert torch.equal(overlay, labels[name])
        assert (overlay.numpy() >= sites[name].view.target).all()  # marked pixels never change
    assert len(set(estimate.values())) > 1


def test_a_warm_up_of_all_rounds_is_fedavg_to_the_bit(tmp_path):
    run_toy(spec_of(4, warmup=4), tmp_path / "fedia")
    plain = spec_of(4).model_copy(update={"method": toy_spec().method})
    run_toy(plain, tmp_path / "fedavg")
    assert_same_state(server_weights(tmp_path / "fedia"), server_weights(tmp_path / "fedavg"))


def overlays_of(path):
    return {k: v for k, v in final_state(path).items() if "overlay-labels" in k}


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
        key = f"memories/{name}/overlay-labels.safetensors:target"
        assert torch.equal(kept[key], torch.from_numpy(data.view.target))
        assert not torch.equal(kept[key], changed[key])


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
    start = Server(tensors, {"body": ("w",)}, ("a", "b"), "aware", 0, {"a": 0.5, "b": 1.0}, (), {})
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
    (told,) = [r.getMessage() for r in caplog.records]
    assert told.startswith("the warm-up was too short: the model predicts nothing at 'a' and 'b'")
    part = method.aggregate(fresh, {"a": estimated(0.0, None), "b": estimated(1.0, 0.4)})
    assert "nothing at 'a', so" in caplog.text
    assert part.stage == "aware"
    assert part.estimates == {"a": 1.0, "b": 0.4}
    assert part.weights["w"].item() == pytest.approx(0.5)  # FedAvg for this round


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
