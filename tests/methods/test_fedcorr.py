"""FedCorr against a second, plain implementation, its stages and its limit case."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.mixture import GaussianMixture

from consilia.methods import make_method, why_not
from consilia.methods.averaging import Up
from consilia.methods.incomplete.fedcorr import Probe, Probed, Server, Train
from consilia.testing import run_toy, toy_spec
from consilia.training.seeds import generator
from tests.methods.plain import (
    Plain,
    assert_close,
    dice_loss,
    half_trained,
    lesion_sites,
    lesion_spec,
    run_twice_with_a_stop,
)
from tests.methods.support import assert_same_state, final_state, ledger_fields, server_weights


def dimension(p, k):
    """The mean local intrinsic dimension, as the authors compute it."""
    flat = p.flatten(1).double().numpy()
    found = []
    for i, row in enumerate(cdist(flat, flat)):
        near = np.sort(np.delete(row, i))[:k]
        found.append(-len(near) / np.log(near / (near[-1] + 1e-6)).sum())
    return float(np.mean(found))


def high(values):
    """Which values belong to the upper of two Gaussians."""
    column = np.array(values).reshape(-1, 1)
    mixture = GaussianMixture(2, random_state=0).fit(column)
    return mixture.predict(column) == mixture.means_[:, 0].argmax()


def plain_run(spec, sites, first, second, beta, k, ratio, tau, kappa, alpha=1.0):
    run, names = Plain(spec, sites), sorted(sites)
    dims, losses, noisy = {s: [] for s in sites}, {}, []
    level = dict.fromkeys(sites, 0.0)
    invited, finished, early = [], set(), set()
    for t in range(1, spec.rounds + 1):
        stage = 1 if t <= first else 2 if t <= first + second else 3
        sent = {}
        went = [s for s in names if stage != 2 or s not in noisy or level[s] <= kappa]
        for site in went:
            run.load()
            before = {n: p.detach().clone() for n, p in run.net.named_parameters()}
            y, mu = run.labels[site], level[site] if stage == 1 and site in noisy else 0.0
            flips = (y == 0) & (run.foreground(site) > tau)
            if stage == 1 and mu:
                worst = np.argsort(-np.array(losses[site]), kind="stable")
                for i in worst[: int(len(y) * mu * ratio)]:
                    y[i][flips[i]] = 1
                    early |= {site} if flips[i].any() else set()
            if stage == 3 and site in noisy and site not in finished:
                y[flips] = 1
                finished.add(site)
            randoms = generator(spec.seed, site, t, "mixup")

            def loss(image, target, index, stage=stage, mu=mu, randoms=randoms, before=before):
                if stage > 1:
                    return dice_loss(run.scores(image), target)
                seed = int(torch.randint(0, 2**62, (1,), generator=randoms))
                lam = np.random.default_rng(seed).beta(alpha, alpha)
                order = torch.randperm(len(image), generator=randoms)
                scores = run.scores(lam * image + (1 - lam) * image[order])
                value = lam * dice_loss(scores, target)
                value = value + (1 - lam) * dice_loss(scores, target[order])
                for name, p in run.net.named_parameters():
                    value = value + beta * mu * ((p - before[name]) ** 2).sum()
                return value

            run.train(site, t, loss)
            sent[site] = run.sent()
            if stage == 1:
                p, y = run.foreground(site), run.labels[site] > 0
                each = -torch.where(y, p, 1 - p).double().log()
                losses[site] = each.mean((1, 2)).tolist()
                dims[site].append(dimension(p, k))
                level[site] = float(high(losses[site]).mean())
        if stage == 1:
            split = high([np.mean(dims[s]) for s in names])
            noisy = [s for s, one in zip(names, split, strict=True) if one]
        run.average(sent, {s: run.counts[s] for s in sent})
        invited.append(went)
    return run, invited, noisy, early


SETTINGS = {"preprocessing": 3, "finetuning": 2, "neighbors": 4}
SLOW = {"learning_rate": 0.1}


@pytest.mark.parametrize(
    ("relabel", "mixup", "beta", "threshold", "clean"),
    [(1.0, 1.0, 5.0, 0.5, 0.1), (0.5, 0.4, 5.0, 0.5, 0.1), (0.5, 0.4, 20.0, 0.3, 0.41)],
)
def test_fedcorr_is_its_algorithm(relabel, mixup, beta, threshold, clean, tmp_path):
    learner = {"init": half_trained(tmp_path / "init.safetensors")}
    limits = {"threshold": threshold, "clean": clean}
    settings = {**SETTINGS, "relabel": relabel, "mixup": mixup, "beta": beta, **limits}
    spec = lesion_spec("fedcorr", 8, settings, learner=learner, training=SLOW)
    sites = lesion_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    told = plain_run(spec, sites, 3, 2, beta, 4, relabel, threshold, clean, mixup)
    run, invited, noisy, early = told
    lines = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert [line["took_part"] for line in lines] == invited
    assert len(invited[3]) < 3  # somebody sat out the fine-tuning
    assert_close(tmp_path / "run", run.world["main"])
    state = final_state(tmp_path / "run")
    changed = [s for s in sites if (run.labels[s].numpy() != sites[s].view.target).any()]
    assert early  # somebody corrected in the first stage
    assert set(noisy) <= set(changed)
    assert (set(noisy) < set(changed)) == (mixup == 1)  # and was clean later, in one of the runs
    for site in changed:
        kept = state[f"memories/{site}/overlay-labels.safetensors:target"]
        assert torch.equal(kept, run.labels[site])
        assert (kept.numpy() >= sites[site].view.target).all()  # only 0 becomes 1
        assert kept.float().mean() < 0.3  # and by far not everywhere


def test_without_preprocessing_it_is_fedavg_to_the_bit(tmp_path):
    training = {"augment": "flips", "optimizer": "adam", "learning_rate": 0.01}
    corr = lesion_spec("fedcorr", 4, {"preprocessing": 0}, training=training)
    fedavg = lesion_spec("fedavg", 4, training=training)
    run_toy(corr, tmp_path / "fedcorr", lesion_sites(corr))
    run_toy(fedavg, tmp_path / "fedavg", lesion_sites(fedavg))
    assert_same_state(server_weights(tmp_path / "fedcorr"), server_weights(tmp_path / "fedavg"))


def test_a_stopped_run_goes_on_in_its_stage(tmp_path):
    spec = lesion_spec("fedcorr", 6, {**SETTINGS, "preprocessing": 2})
    assert_same_state(*run_twice_with_a_stop(spec, lesion_sites(spec), tmp_path, 3))


def test_exactly_what_is_declared_leaves_a_site(tmp_path):
    spec = lesion_spec("fedcorr", 4, {**SETTINGS, "preprocessing": 2})
    run_toy(spec, tmp_path / "run", lesion_sites(spec))
    common = {"weights", "images", "loss"}
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        *(("Up", name) for name in common),
        *(("Probed", name) for name in {*common, "dimension", "noise"}),
    }


def server(**changes):
    start = Server({"w": torch.zeros(1)}, {"body": ("w",)}, "preprocessing", 2, 3, {}, {}, (), {})
    return replace(start, **changes)


def probed(value, dimension, noise):
    return Probed({"w": torch.tensor([value])}, 10, 0.5, dimension, noise)


def up(value):
    return Up({"w": torch.tensor([value])}, 10, 0.5)


def test_sites_are_split_by_their_mean_dimension_so_far():
    method = make_method("fedcorr")
    ups = {"a": probed(0.0, 2.0, 0.4), "b": probed(1.0, 9.0, 0.3), "c": probed(2.0, 2.2, 0.2)}
    one = method.aggregate(server(), ups)
    assert one.noisy == ("b",)
    assert (method.broadcast(one, "a").noise, method.broadcast(one, "b").noise) == (0.0, 0.3)
    calm = {"a": probed(0.0, 2.2, 0.4), "b": probed(1.0, 2.0, 0.3), "c": probed(2.0, 2.1, 0.2)}
    assert method.aggregate(one, calm).noisy == ("b",)  # what it was before still counts
    two = method.aggregate(one, {"a": probed(0.0, 2.1, 0.4)})  # the others are away
    assert two.dimensions["a"] == (2.0, 2.1)
    assert (two.stage, two.left, two.noisy) == ("finetuning", 3, ("b",))


def test_stages_follow_each_other():
    method = make_method("fedcorr")
    state, stages = server(left=1, tuning=2), []
    for _ in range(4):
        stages.append(state.stage)
        state = method.aggregate(state, {"a": up(1.0)})
    assert stages == ["preprocessing", "finetuning", "finetuning", "usual"]
    assert isinstance(method.broadcast(server(), "a"), Probe)
    assert isinstance(method.broadcast(server(stage="usual"), "a"), Train)


def test_fine_tuning_is_for_relatively_clean_sites():
    method = make_method("fedcorr")
    state = server(stage="finetuning", levels={"a": 0.9, "b": 0.5, "c": 0.05}, noisy=("b", "c"))
    assert method.invite(state, ("a", "b", "c")) == ("a", "c")  # a is clean whatever its losses say
    assert method.invite(state, ("b",)) == ("b",)  # nobody else is there
    assert method.invite(replace(state, stage="usual"), ("a", "b")) == ("a", "b")
    assert not method.broadcast(state, "b").correct
    assert method.broadcast(replace(state, stage="usual"), "b").correct
    assert not method.broadcast(replace(state, stage="usual"), "a").correct


@pytest.mark.parametrize(("rounds", "tuning"), [(300, 140), (60, 25), (10, 0), (3, 0)])
def test_short_runs_have_a_short_second_stage(rounds, tuning):
    class Start:
        weights, groups = {}, {}

    Start.rounds = rounds
    assert make_method("fedcorr").start(Start, {}).tuning == tuning


def test_only_masks_of_one_label():
    assert "segments one label" in why_not("fedcorr", toy_spec().federation)
