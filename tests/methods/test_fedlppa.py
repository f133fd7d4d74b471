"""FedLPPA against a second, plain implementation, its limit cases, its edge cases and its ledger."""

import json
import math
import types

import numpy as np
import pytest
import torch
from torch.func import functional_call

from consilia.engines.inprocess import make_bench, make_start
from consilia.engines.plan import make_plan
from consilia.errors import UsageError
from consilia.methods import METHODS, make_method, why_not
from consilia.methods.personal import fedlppa
from consilia.methods.personal.fedlppa import Down, Memory, Up, Whole
from consilia.methods.personal.fedlppa_server import Server
from consilia.networks.fedlppa import Parts
from consilia.runs.spec import RunSpec
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.augment import POLICIES, apply, draw
from consilia.training.batch import ResidentCases, orders
from consilia.training.learners import make_learner
from consilia.training.seeds import generator, seeded
from consilia.training.site import laid_out
from tests.methods.support import (
    assert_same_state,
    final_state,
    ledger_fields,
    server_weights,
)
from tests.methods.test_every_method import garbled

CPU = torch.device("cpu")
FORMS = [
    {"name": "anna", "supervision": "scribble"},
    {"name": "bo", "supervision": "point"},
    {"name": "cleo", "supervision": "block"},
]
TRAINING = {
    "batch": 4,
    "steps": 3,
    "optimizer": "sgd",  # Adam would blow rounding up to the size of its steps
    "learning_rate": 0.2,
    "weight_decay": 0.01,
    "keep_optimizer": False,
    "schedule": "poly",
    "augment": "rotate",
}
DDP, UKP = "fusion.prompts.distribution", "fusion.prompts.universal"


def spec_of(sites=FORMS, settings=None, method="fedlppa", **changes):
    if method == "fedlppa":
        settings = {"la_passes": 2, **(settings or {})}
    rare = {"every": 9, "pictures": 0}
    told = {"sites": sites, "training": TRAINING, "evaluate": rare, **changes}
    return toy_spec(method={"name": method, "settings": settings or {}}, **told)


def sites_of(spec, counts=(4, 3, 6)):
    """Return toy sites of different sizes, so that shares differ."""
    sized = [toy_sites(spec, train=count) for count in counts]
    return {name: sized[i][name] for i, name in enumerate(spec.federation.sites)}


# --- the plain second implementation --------------------------------------------------------------


def plain_dice_loss(p, y):
    total = 0.0
    for c in range(p.shape[1]):
        q, t = p[:, c], (y == c).float()
        total = total + 1 - (2 * (q * t).sum() + 1e-5) / ((q * q).sum() + (t * t).sum() + 1e-5)
    return total / p.shape[1]


def plain_pce(logits, batch):
    known = torch.ones_like(batch.target, dtype=torch.bool)
    known = known if batch.known_pixels is None else batch.known_pixels
    if not known.any():
        return logits.sum() * 0
    p = logits.softmax(1).permute(0, 2, 3, 1)[known]
    return -p[torch.arange(len(p)), batch.target[known]].log().mean()


def plain_loss(net, batch, crf=0.0):
    main, aux = net.both(batch.image)
    p, q = main.softmax(1), aux.softmax(1)
    lam = 0.7 + 0.3 * torch.rand(()).item()
    y = (lam * p + (1 - lam) * q).detach().argmax(1)
    supervised = 0.5 * plain_pce(main, batch) + 0.5 * plain_pce(aux, batch)
    led = 0.5 * plain_dice_loss(p, y) + 0.5 * plain_dice_loss(q, y)
    return supervised + 0.5 * led + (crf * plain_crf(p, batch.image) if crf else 0)


def plain_crf(p, image):
    """Return the gated CRF, pair of rows by pair of rows: kernel 6 and 0.1, a square of radius 5."""
    b, _, h, w = p.shape
    x, total = torch.arange(w), 0
    for one in range(h):
        for two in range(max(0, one - 5), min(h, one + 6)):
            across = x[:, None] - x
            near = (across.abs() <= 5) & ((across != 0) | (one != two))
            apart = across**2 + (one - two) ** 2
            unlike = ((image[:, :, one, :, None] - image[:, :, two, None, :]) ** 2).sum(1)
            kernel = torch.exp(-apart / 72 - unlike / 0.02) * near
            alike = (p[:, :, one, :, None] * p[:, :, two, None, :]).sum(1)
            total = total + (kernel * (1 - alike)).sum()
    return total / (b * h * w)


class Losing(torch.nn.Module):
    """Lets the loss of a network be a function of its tensors."""

    def __init__(self, net, crf):
        super().__init__()
        self.net, self.crf = net, crf

    def forward(self, batch):
        return plain_loss(self.net, batch, self.crf)


def plain_la(spec, net, name, number, cases, own, server, w, visits):
    """Learn W by differentiating the loss with respect to W itself, through Eqs. 10-11."""
    randoms = generator(spec.seed, name, number, "shares")
    policy = POLICIES[spec.training.augment]
    losing, losses, done = Losing(net, spec.method.settings.get("crf", 0.0)), [], 0
    net.train()
    with seeded(spec.seed, name, number, "shares"):
        while True:
            each = []
            for positions in orders(len(cases), spec.training.batch, 1, None, randoms):
                if visits > 2 and done == 2:
                    break
                batch = cases.cut(positions)
                batch = apply(draw(policy, len(batch), randoms), batch)
                leaf = {k: v.clone().requires_grad_() for k, v in w.items()}
                mixed = {f"net.{k}": own[k] + (server[k] - own[k]) * leaf[k] for k in leaf}
                value = functional_call(losing, mixed, (batch,))
                value.backward()
                w = {k: (v - 1.0 * v.grad).detach().clamp(0, 1) for k, v in leaf.items()}
                each.append(value.item())
                done += 1
            losses.append(np.mean(each))
            if visits > 2 and done == 2:
                return w
            if visits == 2 and (
                len(losses) == spec.method.settings["la_passes"]
                or (len(losses) > 10 and np.std(losses[-10:]) < 0.1)
            ):
                return w


def plain_cos(u, v):
    dot = sum(a * b for a, b in zip(u, v, strict=True))
    return dot / math.sqrt(sum(a * a for a in u) * sum(b * b for b in v))


def plain_run(spec, sites, absent=(), joins=None):
    """Algorithm 1 in plain loops; returns the global tensors, and what sites keep."""
    method = make_method("fedlppa", spec.method.settings)
    learner = method.learner(make_learner(spec.learner, spec.federation))
    with seeded(spec.seed, "network", "main"):
        net = laid_out(learner.build())
    world = {k: v.clone() for k, v in net.state_dict().items()}
    names = sorted(sites)
    parameters = {k for k, _ in net.named_parameters()}
    above = [k for k in world if k in parameters and not k.startswith(("encoder", "fusion"))]
    second = [k for k in world if k.startswith("aux.")]
    own_kind = spec.method.settings.get("auxiliary") == "own"
    decoders, rows, kept = {}, {}, {}
    for number in range(1, spec.rounds + 1):
        present = [
            n for n in names if (n, number) not in absent and number >= (joins or {}).get(n, 1)
        ]
        sent = {}
        for name in present:
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU)
            learner.place(net, spec.federation, name)
            down = dict(world)
            if decoders:
                i = names.index(name)
                mine = rows.get(name, world[DDP][i])
                v_i = torch.cat((world[UKP].flatten(), mine.flatten())).double().tolist()
                a = {}
                for other in decoders:
                    v_j = torch.cat((world[UKP].flatten(), rows[other].flatten()))
                    a[other] = max(0.0, plain_cos(v_i, v_j.double().tolist()))
                total = sum(a.values())
                for k in second:
                    mixed = sum(a[j] / total * decoders[j][k].double() for j in decoders)
                    down[k] = mixed.float()
            net.load_state_dict(down)
            w = {k: torch.ones_like(world[k]) for k in above}
            visits = 1
            if name in kept:
                own, w, visits = kept[name]
                visits += 1
                w = plain_la(spec, net, name, number, cases, own, down, w, visits)
                net.load_state_dict(down)
                with torch.no_grad():
                    for k, p in net.named_parameters():
                        if k in w:
                            p.copy_(own[k] + (down[k] - own[k]) * w[k])
            plain_training(spec, net, name, number, cases)
            state = {k: v.clone() for k, v in net.state_dict().items()}
            kept[name] = ({k: state[k] for k in above}, w, visits)
            sent[name] = state
        n, rows_before = {name: len(sites[name].train) for name in sent}, world[DDP].clone()
        for k in world:
            if own_kind or not k.startswith("aux."):
                total = sum(n[s] * sent[s][k].double() for s in sent)
                world[k] = (total / sum(n.values())).float()
        for name, state in sent.items():
            decoders[name] = {k: state[k if own_kind else k.removeprefix("aux.")] for k in second}
            rows[name] = state[DDP][names.index(name)]
        for i, name in enumerate(names):  # the row of who is away stays
            world[DDP][i] = rows.get(name, rows_before[i])
    return world, kept


def plain_training(spec, net, name, number, cases):
    settings = spec.training
    optimizer = torch.optim.SGD(net.parameters(), settings.learning_rate, weight_decay=0.01)
    randoms = generator(spec.seed, name, number, "batches main")
    total = spec.rounds * settings.steps
    net.train()
    with seeded(spec.seed, name, number, "layers", "main"):
        stream = orders(len(cases), settings.batch, 1, settings.steps, randoms)
        for step, positions in enumerate(stream):
            batch = cases.cut(positions)
            batch = apply(draw(POLICIES[settings.augment], len(batch), randoms), batch)
            rate = (
                settings.learning_rate * (1 - ((number - 1) * settings.steps + step) / total) ** 0.9
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            plain_loss(net, batch, spec.method.settings.get("crf", 0.0)).backward()
            optimizer.step()


def assert_like_plain(path, world, kept, atol=1e-6):
    got = server_weights(path)
    for name, tensor in world.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=atol, msg=name)
    state = final_state(path)
    for site, (own, w, _) in kept.items():
        for name in own:
            part = "aux" if name.startswith("aux.") else "main"
            prefix = f"memories/{site}/memory.safetensors:"
            told = state[f"{prefix}{part}/{name}"], state[f"{prefix}follow/{name}"]
            torch.testing.assert_close(told[0], own[name], rtol=1e-5, atol=atol, msg=name)
            torch.testing.assert_close(told[1], w[name], rtol=1e-5, atol=atol, msg=name)
    return state


def test_it_is_algorithm_one(tmp_path):
    spec = spec_of(rounds=3, settings={"la_passes": 13})
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    world, kept = plain_run(spec, sites)
    assert_like_plain(tmp_path / "run", world, kept)
    moved = [float((w < 1).float().mean()) for _, w, _ in kept.values() for w in w.values()]
    assert max(moved) > 0.1  # W has learned something


def test_absent_and_late_sites_are_those_of_the_plain_run(tmp_path):
    rules = {"absent": {"anna": [2]}, "joins": {"cleo": 3}}
    spec = spec_of(rounds=4, participation=rules)
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    world, kept = plain_run(spec, sites, absent={("anna", 2)}, joins={"cleo": 3})
    assert_like_plain(tmp_path / "run", world, kept)
    assert {name: visits for name, (_, _, visits) in kept.items()} == {
        "anna": 3,
        "bo": 4,
        "cleo": 2,
    }


def test_with_auxiliary_decoders_from_auxiliary_ones_it_is_the_plain_run_too(tmp_path):
    rules = {"absent": {"anna": [2]}, "joins": {"cleo": 3}}
    spec = spec_of(rounds=4, participation=rules, settings={"auxiliary": "own"}, seed=1)
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    world, kept = plain_run(spec, sites, absent={("anna", 2)}, joins={"cleo": 3})
    state = assert_like_plain(tmp_path / "run", world, kept)
    for name, (own, _, _) in kept.items():
        sent = state[f"server.safetensors:decoders/{name}/aux.head.weight"]
        torch.testing.assert_close(sent, own["aux.head.weight"], rtol=1e-5, atol=1e-6)
        assert not torch.equal(sent, own["head.weight"])


def test_with_a_gated_crf_it_is_the_plain_run_too(tmp_path):
    spec = spec_of(rounds=2, settings={"la_passes": 1, "crf": 0.3})
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    world, kept = plain_run(spec, sites)
    assert_like_plain(tmp_path / "run", world, kept, atol=2e-5)  # sums over many pairs


# --- limit cases (METHODS 6.4) ---------------------------------------------------------------------


def test_without_its_three_parts_it_is_fedavg_to_the_bit(tmp_path):
    off = {"tdf": False, "pd": False, "la": False}
    learner = {"objective": "partial-ce"}
    one, two = spec_of(settings=off, learner=learner), spec_of(method="fedavg", learner=learner)
    sites = sites_of(one)
    metrics = [run_toy(spec, tmp_path / name, sites) for spec, name in ((one, "one"), (two, "two"))]
    assert_same_state(server_weights(tmp_path / "one"), server_weights(tmp_path / "two"))
    assert metrics[0]["sites"] == metrics[1]["sites"]


def test_with_one_site_w_moves_for_the_auxiliary_decoder_only(tmp_path):
    spec = spec_of(sites=FORMS[:1])
    run_toy(spec, tmp_path / "run", {"anna": sites_of(spec_of())["anna"]})
    state = final_state(tmp_path / "run")
    follow = {k.split("follow/")[1]: v for k, v in state.items() if "follow/" in k}
    assert all(torch.equal(v, torch.ones_like(v)) for k, v in follow.items() if "aux." not in k)
    assert any((v < 1).any() for k, v in follow.items() if "aux." in k)
    # affinity [1]: what comes down is the site's own main decoder
    for name, sent in state.items():
        if "decoders/anna/" in name:
            own = state[f"server.safetensors:weights/{name.split('/aux.')[1]}"]
            assert torch.equal(sent, own)


def test_a_step_size_of_zero_follows_the_server_in_everything(tmp_path):
    still, off = spec_of(settings={"eta": 0.0}), spec_of(settings={"la": False})
    sites = sites_of(still)
    for spec, name in ((still, "still"), (off, "off")):
        run_toy(spec, tmp_path / name, sites)
    assert_same_state(server_weights(tmp_path / "still"), server_weights(tmp_path / "off"))


def test_the_dual_learner_under_fedavg_averages_both_decoders(tmp_path):
    spec = spec_of(method="fedavg", learner={"name": "dual"}, rounds=2)
    sites = sites_of(spec)
    run_toy(spec, tmp_path / "run", sites)
    with seeded(spec.seed, "network", "main"):
        net = make_learner(spec.learner, spec.federation).build()
    world = {k: v.clone() for k, v in net.state_dict().items()}
    assert not torch.equal(world["head.weight"], world["aux.head.weight"])
    for number in (1, 2):
        sent = {}
        for name in sites:
            cases = ResidentCases.of(sites[name].train, sites[name].view, CPU)
            net.load_state_dict(world)
            plain_training(spec, net, name, number, cases)
            sent[name] = {k: v.clone() for k, v in net.state_dict().items()}
        n = {name: len(sites[name].train) for name in sites}
        for k in world:
            total = sum(n[s] * sent[s][k].double() for s in sent)
            world[k] = (total / sum(n.values())).float()
    got = server_weights(tmp_path / "run")
    for name, tensor in world.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    "method", [m for m in ("fedprox", "fedbn", "fedrep", "fedala") if m in METHODS]
)
def test_the_dual_learner_runs_under_the_papers_other_methods(method, tmp_path):
    spec = spec_of(method=method, learner={"name": "dual"}, rounds=2)
    metrics = run_toy(spec, tmp_path / "run", sites_of(spec))
    assert 0 <= metrics["mean"]["dice"] <= 1
    lines = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["events"] for line in lines] == [[], []]


# --- the server --------------------------------------------------------------------------------------


def server_of(prompts, decoders, universal=(1.0, 0.0), sites=("a", "b", "c")):
    """Return a server of scalar decoders: what METHODS 3.9-1 writes down."""
    rows = torch.tensor([prompts.get(s, [0.5, 0.5]) for s in sites])[:, None, :]
    weights = {
        UKP: torch.tensor(universal)[None, None],
        DDP: rows,
        "head.w": torch.tensor([9.0]),
        "aux.head.w": torch.tensor([7.0]),
    }
    groups = {"shared": (UKP, DDP), "main": ("head.w",), "aux": ("aux.head.w",)}
    sent = {s: {"aux.head.w": torch.tensor([float(d)])} for s, d in decoders.items()}
    rows = {s: torch.tensor(prompts[s])[None] for s in decoders}
    images = dict.fromkeys(sites, 4)
    return Server(weights, groups, sites, images, sent, rows, {}, 1, 0)


TOLD = {"a": [1.0, 1.0], "b": [1.0, -1.0], "c": [-2.0, -1.0]}


def aux(server, site, strategy="aggregated", auxiliary="main"):
    method = make_method("fedlppa", {"strategy": strategy, "auxiliary": auxiliary})
    return method.broadcast(server, site).aux["aux.head.w"].item()


def test_auxiliary_decoders_of_the_specification():
    server = server_of(TOLD, {"a": 1, "b": 2, "c": 4})
    assert [aux(server, s) for s in "abc"] == pytest.approx([1.25, 1.75, 4.0])
    assert [aux(server, s, "fixed") for s in "abc"] == [4.0, 1.0, 2.0]
    assert [aux(server, s, "highest") for s in "ab"] == [2.0, 1.0]
    assert aux(server, "a", "random") in (2.0, 4.0)


def test_a_site_that_nobody_is_like_gets_its_own_main_decoder():
    server = server_of({"a": [1.0, 0.0], "b": [-1.0, 0.0]}, {"a": 1, "b": 2}, (0.0, 0.0))
    assert aux(server, "a") == 1.0
    assert aux(server, "a", "highest") == 1.0
    silent = server_of({"a": [0.0, 0.0], "b": [1.0, 0.0]}, {"a": 1, "b": 2}, (0.0, 0.0))
    assert aux(silent, "a") == 1.0  # a prompt of length zero


def test_before_any_site_has_sent_the_auxiliary_decoder_is_the_start():
    assert aux(server_of({}, {}), "a") == 7.0


def test_a_newcomer_is_compared_by_the_global_row_and_falls_back_on_the_global_decoder():
    server = server_of(TOLD, {"a": 1, "b": 2})
    v = [1.0, 0.0, *TOLD["c"]]
    a = {s: max(0, plain_cos(v, [1.0, 0.0, *TOLD[s]])) for s in "ab"}
    assert sum(a.values()) < 1e-9  # nobody is like it
    assert aux(server, "c", "highest") == 9.0
    like = server_of({**TOLD, "c": [1.0, 0.9]}, {"a": 1, "b": 2})
    v = [1.0, 0.0, 1.0, 0.9]
    a = {s: plain_cos(v, [1.0, 0.0, *TOLD[s]]) for s in "ab"}
    wanted = (a["a"] * 1 + a["b"] * 2) / (a["a"] + a["b"])
    assert aux(like, "c") == pytest.approx(wanted)
    assert aux(like, "somebody") == 7.0  # a common test set has no decoder made for it


def test_auxiliary_decoders_of_auxiliary_ones_are_mixed_and_averaged_by_themselves():
    method = make_method("fedlppa", {"auxiliary": "own", "strategy": "highest"})
    server = server_of(TOLD, {})
    ups = {
        s: Whole(
            {UKP: server.weights[UKP], DDP: server.weights[DDP]},
            {"head.w": torch.tensor([5.0])},
            {"aux.head.w": torch.tensor([value])},
        )
        for s, value in (("a", 1.0), ("b", 2.0))
    }
    after = method.aggregate(server, ups)
    told = [method.broadcast(after, s).aux["aux.head.w"].item() for s in "abc"]
    assert told == [2.0, 1.0, 1.5]  # nobody is like c, which has sent none: the mean of all
    assert after.weights["head.w"].item() == 5.0


@pytest.mark.parametrize("owner", [True, False])
def test_whose_row_of_the_prompt_it_is(owner):
    server = server_of(TOLD, {})
    ups = {
        s: Up(
            {UKP: torch.full((1, 1, 2), k), DDP: torch.full((3, 1, 2), k)},
            {"head.w": torch.ones(1)},
        )
        for s, k in (("a", 1.0), ("b", 3.0))
    }
    after = make_method("fedlppa", {"row_owner": owner}).aggregate(server, ups).weights
    assert after[UKP].flatten().tolist() == [2.0, 2.0]
    rows = after[DDP][:, 0, 0].tolist()
    assert rows == (
        [1.0, 3.0, -2.0] if owner else [2.0, 2.0, 2.0]
    )  # c is away: its row is what it was


# --- what leaves a site, and what stays ----------------------------------------------------------------


def faz_plan(**settings):
    forms = ("scribble", "point", "block", "box", "scribble")
    sites = [{"name": f"site-{i}", "supervision": form} for i, form in enumerate(forms)]
    spec = toy_spec(
        sites=sites,
        labels=["faz"],
        learner={"network": "unet-fedlppa"},
        method={"name": "fedlppa", "settings": settings},
    ).model_dump()
    spec["federation"]["image"]["size"] = (256, 256)
    return make_plan(RunSpec.model_validate(spec))


def test_numbers_that_travel_in_the_faz_setting():
    plan = faz_plan()
    assert plan.parameters == 2_897_430
    assert (plan.network, plan.objective) == ("unet-fedlppa", "partial-ce")
    fields = [f for f in plan.fields if f.message in ("Intro", "Down", "Up")]
    sent = {(f.direction, f.field): f.numbers for f in fields}
    assert set(sent) == {
        ("once, up", "images"),
        ("down", "shared"),
        ("down", "main"),
        ("down", "aux"),
        ("up", "shared"),
        ("up", "main"),
    }
    up = sent["up", "shared"] + sent["up", "main"]
    down = sum(n for (direction, _), n in sent.items() if direction == "down")
    # parameters 2,256,228 and 2,897,430 (paper 2.2564 M and 2.8978 M), and BatchNorm's statistics
    assert up == 2_256_228 + 3_768
    assert down == 2_897_430 + 4_736


def test_the_ledger_is_that_of_the_paper_and_personal_parts_stay(tmp_path):
    spec = spec_of(rounds=2)
    run_toy(spec, tmp_path / "run", sites_of(spec))
    assert ledger_fields(tmp_path / "run", "up", "introduce") == {("Intro", "images")}
    assert ledger_fields(tmp_path / "run", "up", "train") == {("Up", "shared"), ("Up", "main")}
    assert ledger_fields(tmp_path / "run", "down", "train") == {
        ("Down", "shared"),
        ("Down", "main"),
        ("Down", "aux"),
    }
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    largest = max(x["numbers"] for x in lines if x["direction"] == "up" and x["verb"] == "train")
    parameters = sum(v.numel() for v in server_weights(tmp_path / "run").values())
    assert largest < parameters


def test_auxiliary_decoders_leave_only_where_they_are_mixed_with_each_other(tmp_path):
    for settings, sent in (
        ({"auxiliary": "own"}, {("Whole", "shared"), ("Whole", "main"), ("Whole", "aux")}),
        ({"auxiliary": "own", "pd": False}, {("Up", "shared"), ("Up", "main")}),
    ):
        spec = spec_of(rounds=1, settings=settings)
        path = tmp_path / str(len(sent))
        run_toy(spec, path, sites_of(spec))
        assert ledger_fields(path, "up", "train") == sent
        down = {("Down", "shared"), ("Down", "main"), ("Down", "aux")}
        assert ledger_fields(path, "down", "train") == down
    sent = {f.field: f.numbers for f in faz_plan(auxiliary="own").fields if f.message == "Whole"}
    assert sum(sent.values()) == 2_897_430 + 4_736  # as much as comes down


def test_the_hidden_truth_is_never_read(tmp_path):
    spec = spec_of(rounds=2)
    clean = sites_of(spec)
    run_toy(spec, tmp_path / "one", clean)
    run_toy(spec, tmp_path / "two", {k: garbled(v) for k, v in clean.items()})
    assert_same_state(final_state(tmp_path / "one"), final_state(tmp_path / "two"))


def test_a_site_that_dies_while_training_comes_back_with_its_own_memory(tmp_path, monkeypatch):
    spec = spec_of(rounds=3)
    sites = sites_of(spec)
    whole = fedlppa.train_locally

    def dies(site, *args, **kwargs):
        if (site.name, site.round) == ("bo", 2):
            raise MemoryError
        return whole(site, *args, **kwargs)

    monkeypatch.setattr(fedlppa, "train_locally", dies)
    run_toy(spec, tmp_path / "died", sites)
    monkeypatch.undo()
    away = spec_of(rounds=3, participation={"absent": {"bo": [2]}})
    run_toy(away, tmp_path / "away", sites)
    assert_same_state(final_state(tmp_path / "died"), final_state(tmp_path / "away"))
    events = json.loads((tmp_path / "died/rounds.jsonl").read_text().splitlines()[1])["events"]
    assert [(e["site"], e["event"]) for e in events] == [("bo", "failed: MemoryError: ")]


# --- switches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"pd": False},
        {"pd": False, "la": False},
        {"tdf": False, "strategy": "fixed"},
        {"ukp": False, "asp": False, "attention": "none"},
        {"strategy": "random"},
        {"pseudo": 0.0, "auxiliary": "own", "strategy": "fixed"},
        {"pd": False, "crf": 0.1},
        {"strategy": "highest", "row_owner": False, "judged": "trained"},
    ],
    ids=str,
)
def test_ablations_run(settings, tmp_path):
    spec = spec_of(sites=FORMS[:2], settings=settings, rounds=3)
    run_toy(spec, tmp_path / "run", {k: v for k, v in sites_of(spec_of()).items() if k != "cleo"})
    lines = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    assert all(json.loads(line)["events"] == [] for line in lines)


def test_a_common_test_set_is_judged_by_the_global_model_and_the_mean_prompt():
    spec = spec_of()
    method = make_method("fedlppa")
    bench = make_bench(spec, method, spec.federation)
    server = method.start(make_start(spec, spec.federation, bench), {})
    down = method.broadcast(server, "common")
    model = method.model_for(down, None, types.SimpleNamespace(name="common"))
    bench.enter("anna")
    bench.enter("common")
    assert model.keys() == {*down.shared, *down.main}
    prompts = bench.network().fusion.prompts
    torch.testing.assert_close(prompts()[1], prompts.distribution.mean(0))


def test_a_site_is_judged_by_its_mixture_or_by_what_it_trained():
    def tensors(value):
        return {"head.w": torch.tensor([value]), "head.steps": torch.tensor(int(value))}

    down = Down({"encoder.w": torch.tensor([8.0])}, tensors(3.0), {})
    follow = {"head.w": torch.tensor([0.25]), "aux.head.w": torch.tensor([1.0])}
    member = types.SimpleNamespace(name="anna", federation=spec_of().federation)
    kept = Memory(tensors(1.0), {}, follow, 2, None)
    mixed = make_method("fedlppa").model_for(down, kept, member)
    assert mixed["head.w"].item() == pytest.approx(1.5)
    assert mixed["head.steps"].item() == 3
    assert mixed["encoder.w"].item() == 8
    own = Memory(tensors(1.0), {}, follow, 2, {"encoder.w": torch.tensor([5.0])})
    trained = make_method("fedlppa", {"judged": "trained"}).model_for(down, own, member)
    assert (trained["head.w"].item(), trained["encoder.w"].item()) == (1.0, 5.0)
    fresh = make_method("fedlppa").model_for(down, None, member)
    assert fresh["head.w"].item() == 3


def test_what_it_cannot_serve_is_refused():
    assert "segments" in why_not("fedlppa", toy_spec("multi-label").federation)
    tags = [{"name": "anna", "supervision": "image"}, {"name": "bo", "supervision": "none"}]
    assert "marks pixels" in why_not("fedlppa", toy_spec(sites=tags).federation).replace(
        "mark pixels", "marks pixels"
    )
    for settings in ({"tdf": False}, {"ddp": False}, {"ddp": False, "strategy": "highest"}):
        with pytest.raises(UsageError, match=r"compares the sites' distribution prompts"):
            make_method("fedlppa", settings)
    assert make_method("fedlppa", {"ddp": False, "pd": False}).ddp is False


def learner_of(settings):
    """Return the learner that FedLPPA makes of the paper's U-Net."""
    spec = toy_spec(sites=FORMS, learner={"network": "unet-fedlppa"})
    return make_method("fedlppa", settings).learner(make_learner(spec.learner, spec.federation))


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, Parts(True, True, True, True, True, "dual")),
        ({"tdf": False, "strategy": "fixed"}, Parts(fusion=False)),
        ({"pd": False}, Parts(auxiliary=False)),
        ({"ukp": False}, Parts(universal=False)),
        ({"ddp": False, "strategy": "fixed"}, Parts(distribution=False)),
        ({"asp": False}, Parts(sparsity=False)),
        ({"attention": "spatial"}, Parts(attention="spatial")),
        ({"attention": "channel"}, Parts(attention="channel")),
        ({"attention": "none"}, Parts(attention="none")),
    ],
    ids=str,
)
def test_each_switch_leaves_out_its_own_part(settings, parts):
    assert learner_of(settings).parts == parts


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({}, (0.5, 0.7, 0.0)),
        ({"pseudo": 0.25}, (0.25, 0.7, 0.0)),
        ({"least_main": 0.9}, (0.5, 0.9, 0.0)),
        ({"crf": 0.1}, (0.5, 0.7, 0.1)),
    ],
    ids=str,
)
def test_the_learner_weighs_its_loss_as_the_settings_say(settings, loss):
    learner = learner_of(settings)
    assert (learner.pseudo, learner.least, learner.crf) == loss


FUSED, ENLARGED = "fusion.fuse.0.weight", "decoder.ups.0.project.weight"


@pytest.mark.parametrize(
    ("settings", "gone", "narrower"),
    [
        ({"la": False}, (), {}),
        ({"ukp": False}, (UKP,), {FUSED: 260}),
        ({"ddp": False, "strategy": "fixed"}, (DDP,), {FUSED: 260}),
        ({"asp": False}, (), {FUSED: 258}),
        ({"attention": "spatial"}, ("fusion.of_channels",), {}),
        ({"attention": "channel"}, ("fusion.of_space", "fusion.spatial."), {}),
        ({"attention": "none"}, ("fusion.of_", "fusion.spatial."), {}),
        ({"pd": False}, ("aux.",), {}),
        (
            {"tdf": False, "strategy": "fixed"},
            ("fusion.", "mlp."),
            {ENLARGED: 256, f"aux.{ENLARGED}": 256},
        ),
    ],
    ids=str,
)
def test_the_network_lacks_what_is_switched_off_and_nothing_else(settings, gone, narrower):
    whole, less = (
        {name: tensor.shape for name, tensor in learner_of(given).build().state_dict().items()}
        for given in ({}, settings)
    )
    assert (whole[FUSED][1], whole[ENLARGED][1]) == (261, 320)
    assert less.keys() == {name for name in whole if not name.startswith(gone)}
    assert {name: less[name][1] for name in less if less[name] != whole[name]} == narrower
