"""FedAP against a second, plain implementation, and its limit cases."""

import numpy as np
import torch

from consilia.methods import make_method
from consilia.testing import run_toy, toy_spec
from tests.methods.plain_personal import Plain, at_server, close, kept, spec_of, uneven
from tests.methods.support import assert_same_state, final_state, ledger_fields


def statistics(net, images):
    """Return mean and variance of what enters each batch norm, layer by layer."""
    net.eval()
    found, x = [], images
    with torch.no_grad():
        for layer in net.body:
            if isinstance(layer, torch.nn.BatchNorm2d):
                flat = x.double().permute(1, 0, 2, 3).flatten(1).numpy()
                found.append((flat.mean(1), flat.std(1)))
            x = layer(x)
    return found


def plain_run(spec, sites, warmup, m=0.5):
    """FedBN for the warm-up, then a mixture for each site by the distance of its statistics."""
    plain = Plain(spec, sites)
    norm = plain.norm_names()
    rest = [k for k in plain.start if k not in norm]
    models = {name: {k: plain.start[k] for k in rest} for name in plain.cases}
    own = {name: {k: plain.start[k] for k in norm} for name in plain.cases}
    known = {}
    for number in range(1, spec.rounds + 1):
        sent = {}
        for name, cases in plain.cases.items():
            plain.net.load_state_dict({**models[name], **own[name]})
            plain.train(name, number)
            sent[name] = plain.state()
            own[name] = {k: sent[name][k] for k in norm}
            if number > warmup and name not in known:
                known[name] = statistics(plain.net, cases.image.float() / 255)
        if number <= warmup:
            world = plain.average(sent, rest)
            models = dict.fromkeys(plain.cases, world)
            continue
        for i in plain.cases:
            nearness = {}
            for j in plain.cases:
                if j != i:
                    pairs = zip(known[i], known[j], strict=True)
                    gaps = [
                        np.sqrt(((a - c) ** 2).sum() + ((b - d) ** 2).sum())
                        for (a, b), (c, d) in pairs
                    ]
                    nearness[j] = 1 / sum(gaps)
            total = sum(nearness.values())
            a = {i: m, **{j: (1 - m) * r / total for j, r in nearness.items()}}
            models[i] = {k: sum(a[j] * sent[j][k].double() for j in a).float() for k in rest}
    return models, own


def test_fedap_is_its_algorithm(tmp_path):
    spec = spec_of("fedap", "multi-label", {"warmup": 1}, rounds=4)
    run_toy(spec, tmp_path / "run", uneven(spec))
    models, own = plain_run(spec, uneven(spec), warmup=1)
    for site in own:
        close(at_server(tmp_path / "run", f"models/{site}"), models[site])
        close(kept(tmp_path / "run", site, "own"), own[site])


def test_the_warm_up_is_fedbn_to_the_bit(tmp_path):
    run_toy(spec_of("fedap", "multi-label"), tmp_path / "fedap")
    run_toy(spec_of("fedbn", "multi-label"), tmp_path / "fedbn")
    assert_same_state(at_server(tmp_path / "fedap"), at_server(tmp_path / "fedbn"))
    for site in ("anna", "bo"):
        assert_same_state(
            kept(tmp_path / "fedap", site, "own"), kept(tmp_path / "fedbn", site, "own")
        )


def test_a_site_that_trusts_only_itself_is_local_training_to_the_bit(tmp_path):
    alone = {"name": "fedap", "settings": {"momentum": 1.0, "warmup": 0}}
    fedap = run_toy(toy_spec(method=alone), tmp_path / "fedap")
    local = run_toy(toy_spec(method={"name": "local"}), tmp_path / "local")
    assert fedap["sites"] == local["sites"]


def test_statistics_leave_once_and_normalisation_layers_never(tmp_path):
    spec = spec_of("fedap", "multi-label", {"warmup": 1}, rounds=4)
    run_toy(spec, tmp_path / "run")
    up = ledger_fields(tmp_path / "run", "up", "train")
    both = {"weights", "images", "loss"}
    assert up == {("Up", f) for f in both} | {
        ("Measured", f) for f in (*both, "means", "deviations")
    }
    lines = (tmp_path / "run/ledger.jsonl").read_text().splitlines()
    assert sum('"means"' in line for line in lines) == 3
    assert not any(
        name.startswith("body.1.") for name in at_server(tmp_path / "run", "models/anna")
    )


def test_an_absent_site_counts_with_what_it_sent_last_and_is_asked_when_it_is_back(tmp_path):
    spec = spec_of(
        "fedap", "multi-label", {"warmup": 0}, participation={"absent": {"anna": [1], "bo": [3]}}
    )
    run_toy(spec, tmp_path / "run")
    state = final_state(tmp_path / "run")
    assert any("means/anna" in name for name in state)  # measured in round 2
    latest = at_server(tmp_path / "run", "latest/bo")
    mixed = at_server(tmp_path / "run", "models/bo")
    assert latest.keys() == mixed.keys()
    assert any(not torch.equal(latest[name], mixed[name]) for name in latest)


def test_a_site_without_statistics_gets_the_average():
    from consilia.methods.personal.fedap import Measured, Server, Up

    w, groups = {"w": torch.zeros(1)}, {"body": ("w",), "head": (), "norm": ()}
    server = Server(w, groups, {"a": 1, "b": 1}, {}, {}, {}, {}, 0, {})
    stats = {"l": torch.zeros(1)}
    ups = {
        "a": Measured({"w": torch.ones(1)}, 1, 0.0, stats, stats),
        "b": Up({"w": torch.full((1,), 3.0)}, 3, 0.0),
    }
    after = make_method("fedap").aggregate(server, ups)
    assert after.models["a"]["w"].item() == 1  # the only one measured: it has only itself
    assert after.models["b"]["w"].item() == 2.5
    assert make_method("fedap").broadcast(after, "b").measure
    assert not make_method("fedap").broadcast(after, "a").measure
