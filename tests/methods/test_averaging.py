"""FedAvg and its kin against a second, plain implementation, and their limit cases."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilia.methods import make_method, why_not
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from consilia.training.site import Workbench
from tests.methods.support import (
    assert_same_state,
    final_state,
    ledger_fields,
    server_weights,
    without_times,
)

CPU = torch.device("cpu")


def plain_run(spec, sites, *, mu=0.0, shares=None, keep=True, tuning=0):
    """Algorithm 1 of FedAvg, in a loop: whole models, flat averages, Adam written by torch."""
    learner = PlainLearner.of(spec.learner, spec.federation)
    with seeded(spec.seed, "network", "main"):
        network = learner.build()
    world = {k: v.clone() for k, v in network.state_dict().items()}
    moments, own = {}, {}
    for number in range(1, spec.rounds + 1):
        alone = number > spec.rounds - tuning
        sent, counts, losses = {}, {}, {}
        for name in sorted(sites):
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU)
            network.load_state_dict(own.get(name, world))
            start = [p.detach().clone() for p in network.parameters()]
            settings = spec.training
            adam = torch.optim.Adam(
                network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
            )
            if keep and name in moments:
                adam.load_state_dict(moments[name])
            randoms, total = generator(spec.seed, name, number, "batches main"), []
            for index in orders(len(cases), settings.batch, settings.epochs, None, randoms):
                torch.rand(3, len(index), generator=randoms)  # the augmentation's draw
                batch = cases.cut(index)
                adam.zero_grad()
                loss = learner.loss(network, batch)
                near = sum(
                    ((p - q) ** 2).sum() for p, q in zip(network.parameters(), start, strict=True)
                )
                (loss + mu / 2 * near).backward()
                adam.step()
                total.append(float((loss + mu / 2 * near).detach()))
            moments[name] = copy.deepcopy(adam.state_dict())
            sent[name] = {k: v.clone() for k, v in network.state_dict().items()}
            counts[name], losses[name] = len(cases), float(np.mean(total))
        if alone:
            own = sent
            continue
        w = shares(counts, losses) if shares else counts
        norm = sum(w.values())
        world = {
            k: (sum(w[s] * sent[s][k].double() for s in sorted(sent)) / norm).float() for k in world
        }
    return own or world


def spec_of(name, **changes):
    training = {"augment": "none", **changes.pop("training", {})}
    return toy_spec(
        method={"name": name, **changes.pop("method", {})}, training=training, **changes
    )


def uneven(spec):
    """Give the sites different numbers of images."""
    big, small = toy_sites(spec), toy_sites(spec, train=5)
    return {**big, "bo": small["bo"]}


def close(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("keep", [True, False])
def test_fedavg_is_its_algorithm(tmp_path, keep):
    spec = spec_of("fedavg", training={"keep_optimizer": keep})
    run_toy(spec, tmp_path / "run", uneven(spec))
    close(server_weights(tmp_path / "run"), plain_run(spec, uneven(spec), keep=keep))


def test_fedprox_is_its_algorithm(tmp_path):
    spec = spec_of("fedprox", method={"settings": {"mu": 0.5}})
    run_toy(spec, tmp_path / "run", uneven(spec))
    close(server_weights(tmp_path / "run"), plain_run(spec, uneven(spec), mu=0.5))


def test_fedadaptagg_is_its_algorithm(tmp_path):
    def shares(counts, losses):
        c = {s: n / sum(counts.values()) for s, n in counts.items()}
        d = {s: x**1.5 / sum(y**1.5 for y in losses.values()) for s, x in losses.items()}
        return {s: c[s] + 10 * d[s] for s in counts}

    spec = spec_of("fedadaptagg")
    run_toy(spec, tmp_path / "run", uneven(spec))
    close(server_weights(tmp_path / "run"), plain_run(spec, uneven(spec), shares=shares))


def test_finetune_is_its_algorithm(tmp_path):
    spec = spec_of("finetune", rounds=4, method={"settings": {"tuning": 2}})
    run_toy(spec, tmp_path / "run", uneven(spec))
    state = final_state(tmp_path / "run")
    for name, expected in plain_run(spec, uneven(spec), tuning=2).items():
        prefix = f"memories/{name}/memory.safetensors:own/"
        own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        close(own, expected)


@pytest.mark.parametrize(
    ("name", "settings"), [("fedprox", {"mu": 0.0}), ("fedadaptagg", {"lam": 0.0})]
)
def test_the_limit_case_is_fedavg_to_the_bit(name, settings, tmp_path):
    run_toy(toy_spec(method={"name": "fedavg"}), tmp_path / "fedavg")
    run_toy(toy_spec(method={"name": name, "settings": settings}), tmp_path / name)
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / name))


@pytest.mark.parametrize("task", ["segmentation", "multi-label"])
def test_where_all_sites_mark_all_labels_the_masked_preset_is_fedavg_to_the_bit(task, tmp_path):
    run_toy(toy_spec(task, method={"name": "fedavg"}), tmp_path / "plain")
    masked = {"name": "fedavg", "settings": {"unknown": "masked", "rows": "labelled"}}
    run_toy(toy_spec(task, method=masked), tmp_path / "masked")
    assert_same_state(server_weights(tmp_path / "plain"), server_weights(tmp_path / "masked"))


def test_one_site_is_local_training_to_the_bit(tmp_path):
    sites = [{"name": "anna", "supervision": "mask"}]
    fedavg = run_toy(toy_spec(sites=sites, method={"name": "fedavg"}), tmp_path / "fedavg")
    local = run_toy(toy_spec(sites=sites, method={"name": "local"}), tmp_path / "local")
    assert fedavg["sites"] == local["sites"]


def test_labelled_rows_come_only_from_sites_that_mark_the_label(tmp_path):
    sites = [
        {"name": "anna", "supervision": "image", "annotates": ["round"]},
        {"name": "bo", "supervision": "image", "annotates": ["square"]},
    ]
    spec = toy_spec("multi-label", sites=sites, rounds=1, method={"name": "fedavg-masked"})
    run_toy(spec, tmp_path / "both")
    head = server_weights(tmp_path / "both")["head.weight"]
    masked = {"name": "fedavg-masked"}
    for row, site in enumerate(("anna", "bo")):
        single = toy_spec("multi-label", sites=[sites[row]], rounds=1, method=masked)
        run_toy(single, tmp_path / f"{site}-masked")
        own = server_weights(tmp_path / f"{site}-masked")["head.weight"]
        assert torch.equal(head[row], own[row])


def test_a_label_nobody_marks_keeps_its_first_row(tmp_path):
    sites = [
        {"name": name, "supervision": "image", "annotates": ["round"]} for name in ("anna", "bo")
    ]
    spec = toy_spec("multi-label", sites=sites, method={"name": "fedavg-masked"})
    run_toy(spec, tmp_path / "run")
    bench = Workbench(
        PlainLearner.of(spec.learner, spec.federation), spec.federation, CPU, spec.seed
    )
    first = bench.start()["head.weight"]
    last = server_weights(tmp_path / "run")["head.weight"]
    assert torch.equal(first[1], last[1])
    assert not torch.equal(first[0], last[0])


def test_unknown_as_negative_differs_from_masked(tmp_path):
    sites = [
        {"name": "anna", "supervision": "image", "annotates": ["round"]},
        {"name": "bo", "supervision": "image", "annotates": ["square"]},
    ]
    one = run_toy(toy_spec("multi-label", sites=sites), tmp_path / "negative")
    masked = toy_spec(
        "multi-label", sites=sites, method={"name": "fedavg", "settings": {"unknown": "masked"}}
    )
    two = run_toy(masked, tmp_path / "masked")
    assert without_times(one) != without_times(two)


def test_local_scores_a_site_without_labels_with_the_mean_of_the_others(tmp_path):
    masks = [{"name": name, "supervision": "mask"} for name in ("anna", "cleo")]
    spec = toy_spec(sites=[*masks, {"name": "bo", "supervision": "none"}], method={"name": "local"})
    sites = toy_sites(spec)
    found = run_toy(spec, tmp_path / "run", sites)["sites"]["bo"]["dice"]
    alone = []
    for site in masks:
        single = toy_spec(sites=[site], method={"name": "local"})
        data = {site["name"]: replace(sites[site["name"]], test=sites["bo"].test)}
        alone.append(run_toy(single, tmp_path / site["name"], data)["sites"][site["name"]]["dice"])
    assert found == pytest.approx(np.mean(alone))


def test_nothing_but_a_loss_leaves_a_site_that_trains_alone(tmp_path):
    run_toy(toy_spec(method={"name": "local"}), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "up", "train") == {("Kept", "images"), ("Kept", "loss")}


def test_a_federation_without_labels_is_refused():
    spec = toy_spec(
        sites=[{"name": "anna", "supervision": "none"}, {"name": "bo", "supervision": "image"}]
    )
    for name in ("fedavg", "local", "finetune", "central"):
        assert "none does" in make_method(name).unmet(spec.federation)
    assert why_not("central", spec.federation)
    assert why_not("oracle", spec.federation) is None


def test_with_exclusive_labels_a_row_is_taught_by_who_marks_its_label(tmp_path):
    sites = [
        {"name": "anna", "supervision": "image", "annotates": ["round"]},
        {"name": "bo", "supervision": "image", "annotates": ["square"]},
    ]
    spec = toy_spec("single-label", sites=sites, rounds=1, method={"name": "fedavg-masked"})
    run_toy(spec, tmp_path / "both")
    head = server_weights(tmp_path / "both")["head.weight"]
    for row, site in enumerate(sites):
        run_toy(toy_spec("single-label", sites=[site], rounds=1), tmp_path / site["name"])
        assert torch.equal(head[row], server_weights(tmp_path / site["name"])["head.weight"][row])


#: anna labels few of her images, bo all; both hold as many.
UNEQUAL = [
    {"name": "anna", "supervision": "image", "annotates": ["round"]},
    {"name": "bo", "supervision": "image"},
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg-masked", {}),
        ("fedprox", {"unknown": "masked"}),
        ("moon", {"unknown": "masked", "width": 8}),
        ("fedpsl", {}),
        ("fedssp", {"pretraining": 0.0}),
        ("fssl", {"weight": 0.0}),
        ("finetune", {"tuning": 1}),
    ],
)
def test_a_site_counts_by_the_images_it_trains_on_or_by_all_it_has(name, settings, tmp_path):
    """Decision 0022; one rule for all that average."""
    shares = {}
    for counted in ("trained", "all"):
        method = {"name": name, "settings": {**settings, "counted": counted}}
        spec = toy_spec("single-label", sites=UNEQUAL, rounds=3, method=method)
        run_toy(spec, tmp_path / counted)
        line = json.loads((tmp_path / counted / "rounds.jsonl").read_text().splitlines()[0])
        shares[counted] = line["shares"]
    data = {site: each.view.target for site, each in toy_sites(spec).items()}
    labeled = {site: int(target.any(1).sum()) for site, target in data.items()}
    assert 0 < labeled["anna"] < labeled["bo"]
    total = sum(labeled.values())
    assert shares["trained"] == pytest.approx({s: n / total for s, n in labeled.items()})
    assert shares["all"] == pytest.approx({"anna": 0.5, "bo": 0.5})


@pytest.mark.parametrize("counted", ["trained", "all"])
def test_methods_that_train_on_all_images_count_all_by_either_rule(counted, tmp_path):
    loose = {"threshold": 0.4, "counted": counted}
    for name, settings in (("fixmatch", loose), ("fedpu", {"counted": counted}), ("fedlsm", {})):
        method = {"name": name, "settings": settings}
        spec = toy_spec("single-label", sites=UNEQUAL, rounds=1, method=method)
        run_toy(spec, tmp_path / name)
        line = json.loads((tmp_path / name / "rounds.jsonl").read_text().splitlines()[0])
        assert line["shares"] == pytest.approx({"anna": 0.5, "bo": 0.5}), name


def test_pooled_training_takes_as_many_steps_as_all_sites_together(tmp_path):
    spec = toy_spec(method={"name": "central"}, training={"steps": 2}, rounds=1)
    run_toy(spec, tmp_path / "run")
    steps = [v for k, v in final_state(tmp_path / "run").items() if k.endswith("/step")]
    assert {float(step) for step in steps} == {6.0}
