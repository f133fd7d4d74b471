"""FedMix against a second, plain implementation, its limit cases and the edge cases of METHODS 1.4."""

import json

import numpy as np
import pytest
import torch

from consilia.declare import Supervision
from consilia.methods import make_method, why_not
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.augment import POLICIES, apply, draw
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from tests.methods.support import (
    assert_same_state,
    final_state,
    ledger_fields,
    server_weights,
    without_times,
)
from tests.methods.test_every_method import garbled

CPU = torch.device("cpu")
MIXED = [
    {"name": "anna", "supervision": "mask"},
    {"name": "bo", "supervision": "box"},
    {"name": "cleo", "supervision": "none"},
    {"name": "dora", "supervision": "image"},
]


def spec_of(sites=MIXED, epsilon=0.3, **changes):
    settings = {"epsilon": epsilon, **changes.pop("settings", {})}
    return toy_spec(sites=sites, method={"name": "fedmix", "settings": settings}, **changes)


def dice(a, b):
    return (2 * (a & b).sum() + 1e-4) / (a.sum() + b.sum() + 1e-4)


def plain_run(spec, sites, lam=10, beta=1.5):
    """Algorithm 1 of FedMix in plain loops over images; returns both global networks."""
    learner = PlainLearner.of(spec.learner, spec.federation)
    nets, world = {}, {}
    for key in ("main", "second"):
        with seeded(spec.seed, "network", key):
            nets[key] = learner.build()
        world[key] = {k: v.clone() for k, v in nets[key].state_dict().items()}
    settings, moments = spec.method.settings, {}
    for number in range(1, spec.rounds + 1):
        sent, counts, losses = {}, {}, {}
        for name in sorted(sites):
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU)
            form = spec.federation[name].supervision
            for key in nets:
                nets[key].load_state_dict(world[key])
            everything = cases.cut(torch.arange(len(cases)))
            randoms = generator(spec.seed, name, number, "views")
            view = apply(draw(POLICIES[spec.training.augment], len(cases), randoms), everything)
            labels, chosen = {}, list(range(len(cases)))
            if form is not Supervision.MASK:
                guess = {}
                for key in nets:
                    nets[key].eval()
                    with torch.no_grad():
                        guess[key] = torch.stack(
                            [nets[key](x[None])[0].sigmoid() > 0.5 for x in view.image]
                        )
                    if view.constraint is not None:
                        guess[key] = guess[key] & view.constraint
                labels = {"main": guess["second"], "second": guess["main"]}
                chosen = []
                for i in range(len(cases)):
                    one, two = guess["main"][i], guess["second"][i]
                    ok = dice(one, two) >= settings["epsilon"]
                    if form in {Supervision.BOX, Supervision.ROTATED_BOX}:
                        ok = ok and dice(one, view.constraint[i]) >= 0.5
                    if form is Supervision.IMAGE:
                        ok = ok and bool(view.constraint[i].any()) and bool(one.any() or two.any())
                    if ok:
                        chosen.append(i)
            counts[name] = len(chosen)
            told = (name, number, cases, view, labels, chosen, moments)
            each = [train(spec, nets[key], key, *told) for key in nets]
            losses[name] = float(np.mean(each)) if chosen else 0.0
            sent[name] = {
                key: {k: v.clone() for k, v in nets[key].state_dict().items()} for key in nets
            }
        used = [s for s in sorted(sent) if counts[s]]
        c = {s: counts[s] / sum(counts[u] for u in used) for s in used}
        d = {s: losses[s] ** beta / sum(losses[u] ** beta for u in used) for s in used}
        w = {s: (c[s] + lam * d[s]) / (1 + lam) for s in used}
        for key in nets:
            world[key] = {
                k: sum(w[s] * sent[s][key][k].double() for s in used).float() for k in world[key]
            }
    return world


def train(spec, net, key, name, number, cases, view, labels, chosen, moments):
    if not chosen:
        return 0.0
    adam = torch.optim.Adam(
        net.parameters(), spec.training.learning_rate, weight_decay=spec.training.weight_decay
    )
    if (name, key) in moments:
        adam.load_state_dict(moments[name, key])
    randoms, total = generator(spec.seed, name, number, f"batches {key}"), []
    net.train()
    for index in orders(len(chosen), spec.training.batch, 1, None, randoms):
        where = torch.tensor(chosen)[index]
        if labels:
            x, y = view.image[where], labels[key][where].float()
        else:
            batch = apply(
                draw(POLICIES[spec.training.augment], len(where), randoms), cases.cut(where)
            )
            x, y = batch.image, batch.planes()
        adam.zero_grad()
        p = net(x).sigmoid().flatten(1)
        y = y.flatten(1)
        loss = (1 - (2 * (p * y).sum(1) + 1e-4) / (p.sum(1) + y.sum(1) + 1e-4)).mean()
        loss.backward()
        adam.step()
        total.append(loss.item())
    moments[name, key] = adam.state_dict()
    return float(np.mean(total))


def networks_of(path):
    state = final_state(path)
    return {
        key: {
            k.removeprefix(f"server.safetensors:{field}/"): v
            for k, v in state.items()
            if k.startswith(f"server.safetensors:{field}/")
        }
        for key, field in (("main", "first"), ("second", "second"))
    }


def boxed(form):
    """Return sites of all forms, boxes being of one of two forms."""
    return [{**site, "supervision": form} if site["name"] == "bo" else site for site in MIXED]


@pytest.mark.parametrize(
    ("form", "settings"),
    [("box", {}), ("rotated-box", {}), ("box", {"lam": 2.0, "beta": 3.0})],
    ids=["box", "rotated-box", "other weights of the loss"],
)
def test_fedmix_is_its_algorithm(form, settings, tmp_path):
    spec = spec_of(boxed(form), rounds=4, settings=settings)
    sites = toy_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    selected = [
        json.loads(x)["sites"] for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    ]
    assert {s["selected"] for line in selected for s in line.values()} - {
        0,
        10,
    }  # a real choice was made
    expected = plain_run(spec, sites, **settings)
    for key, found in networks_of(tmp_path / "run").items():
        for name in found:
            torch.testing.assert_close(found[name], expected[key][name], rtol=2e-4, atol=2e-6)


def test_with_masks_one_network_and_no_lambda_it_is_fedavg_to_the_bit(tmp_path):
    fedavg = run_toy(toy_spec(), tmp_path / "fedavg")
    settings = {"networks": 1, "lam": 0.0}
    mixed = toy_spec(method={"name": "fedmix", "settings": settings})
    fedmix = run_toy(mixed, tmp_path / "fedmix")
    assert_same_state(networks_of(tmp_path / "fedmix")["main"], server_weights(tmp_path / "fedavg"))
    assert fedmix["sites"] == fedavg["sites"]  # the second network, never trained, judges nothing


def test_the_first_network_alone_is_judged():  # METHODS 1.2
    from consilia.methods.mixed.fedmix import Down

    first, second = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    assert make_method("fedmix").model_for(Down(first, second), None, None) is first


def test_with_masks_and_one_network_it_is_fedadaptagg_to_the_bit(tmp_path):
    run_toy(toy_spec(method={"name": "fedadaptagg"}), tmp_path / "adapt")
    run_toy(toy_spec(method={"name": "fedmix", "settings": {"networks": 1}}), tmp_path / "fedmix")
    assert_same_state(networks_of(tmp_path / "fedmix")["main"], server_weights(tmp_path / "adapt"))


#: What lets sites without masks train within three rounds of a toy run.
EAGER = {
    "fedmix": {"epsilon": 0.1},
    "fedst": {"warmup": 0.34, "low": 0.5, "high": 0.5},
    "fedrgd": {"warmup": 0.34, "low": 0.5, "high": 0.5},
    "local": {},
}


@pytest.mark.parametrize("name", EAGER)
def test_no_hidden_truth_is_ever_read(name, tmp_path):
    spec = toy_spec(sites=MIXED, method={"name": name, "settings": EAGER[name]})
    clean = toy_sites(spec)
    hidden = {site: garbled(data) if site != "anna" else data for site, data in clean.items()}
    for data in hidden.values():
        if data.view.known_pixels is not None and name != "local":
            data.view.target[:] = 1  # converted box pixels are for other methods
    one = run_toy(spec, tmp_path / "one", clean)
    two = run_toy(spec, tmp_path / "two", hidden)
    assert without_times(one) == without_times(two)
    assert_same_state(final_state(tmp_path / "one"), final_state(tmp_path / "two"))
    lines = [json.loads(x) for x in (tmp_path / "one/rounds.jsonl").read_text().splitlines()]
    told = {site: [x["sites"][site] for x in lines if site in x["sites"]] for site in hidden}
    if name == "fedmix":
        assert all(any(up["selected"] for up in told[site]) for site in hidden)
    else:  # alone, a site without a mask or a box has nothing to train on
        pupils = {"anna", "bo"} if name == "local" else set(hidden)
        assert {s for s, ups in told.items() if any(up["loss"] for up in ups)} == pupils


def test_a_site_that_selects_nothing_sends_zero_and_does_not_count(tmp_path):
    spec = spec_of(sites=MIXED[:3], epsilon=1.01)
    run_toy(spec, tmp_path / "run")
    for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines():
        told = json.loads(line)
        assert told["sites"]["bo"]["selected"] == 0
        assert told["shares"] == {"anna": 1.0, "bo": 0.0, "cleo": 0.0}


def test_selecting_nothing_anywhere_keeps_the_model():
    from consilia.methods.mixed.fedmix import Server, Up

    tensors = {"w": torch.ones(2)}
    server = Server(tensors, tensors, {"body": ("w",)}, {})
    up = Up({"w": torch.zeros(2)}, {"w": torch.zeros(2)}, 0, 0.0)
    after = make_method("fedmix").aggregate(server, {"a": up, "b": up})
    assert torch.equal(after.first["w"], tensors["w"])


@pytest.mark.parametrize("form", ["box", "rotated-box"])
def test_a_prediction_has_to_fill_its_box(form):
    sites = boxed(form)
    data = toy_sites(spec_of(sites))["bo"]
    assert selected("bo", data, 5.0, sites) == set(range(10))  # everything in the box
    assert selected("bo", data, -5.0, sites) == set()  # two empty masks agree, and fill nothing


def test_exactly_what_the_paper_says_leaves_a_site(tmp_path):  # METHODS 1.1
    run_toy(spec_of(rounds=2), tmp_path / "run")
    fields = {("Up", name) for name in ("first", "second", "selected", "loss")}
    assert ledger_fields(tmp_path / "run", "up", "introduce") == set()
    assert ledger_fields(tmp_path / "run", "up", "train") == fields
    assert ledger_fields(tmp_path / "run", "down", "train") == {
        ("Down", "first"),
        ("Down", "second"),
    }


def selected(name, data, bias, sites=MIXED, **settings):
    """Return which images a site selects whose networks score every pixel about `bias`."""
    from consilia.engines.inprocess import make_bench
    from consilia.training.site import Site

    spec = spec_of(sites, settings=settings)
    method = make_method("fedmix", {"epsilon": 0.3, **settings})
    bench = make_bench(spec, method, spec.federation)
    train = ResidentCases.of(data.train, data.view, CPU)
    site = Site(name, spec.federation, bench, train, spec.training, 0, 1, 3)
    for key in ("main", "second"):
        bench.network(key).head.bias.data.fill_(bias)
    return set(method.label(site).selected.tolist())


def test_an_image_tag_without_labels_drops_its_image():
    data = toy_sites(spec_of())["dora"]
    data.view.constraint[3] = False
    everywhere = selected("dora", data, 5.0, epsilon=0.0)
    assert everywhere == set(range(10)) - {3}


def test_two_empty_predictions_are_accepted_only_where_nothing_says_otherwise():  # METHODS 1.4
    sites = toy_sites(spec_of())
    assert sites["bo"].view.constraint.any((1, 2, 3)).all()
    assert sites["dora"].view.constraint.any((1, 2, 3)).all()
    assert selected("cleo", sites["cleo"], -5.0) == set(range(10))
    assert selected("cleo", sites["cleo"], -5.0, require_foreground=True) == set()
    assert selected("cleo", sites["cleo"], 5.0, require_foreground=True) == set(range(10))
    assert selected("bo", sites["bo"], -5.0) == set()
    assert selected("dora", sites["dora"], -5.0) == set()


@pytest.mark.parametrize(
    ("sites", "why"),
    [
        ([{"name": "a", "supervision": "box"}], "needs at least one site with mask supervision"),
        (
            [{"name": "a", "supervision": "mask"}, {"name": "b", "supervision": "scribble"}],
            "uses masks, boxes, image tags or nothing, but 'b' marked single pixels",
        ),
    ],
)
def test_federations_it_has_no_rule_for_are_refused(sites, why):
    assert why in why_not("fedmix", toy_spec(sites=sites).federation)
    assert "classification" in why_not("fedmix", toy_spec("multi-label").federation)
