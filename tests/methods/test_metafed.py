"""MetaFed against a second, plain implementation: copying, distillation with a gradient, two stages."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.methods.personal.metafed import Accumulate, Memory
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.site import Site
from tests.methods.plain_personal import Plain, close, kept, spec_of, uneven
from tests.methods.support import assert_same_state, ledger_fields


def dice(said, true):
    each = []
    for label in range(said.shape[1]):
        a, b = said[:, label] > 0.5, true[:, label] > 0.5
        if (a | b).any():
            each.append(2 * float((a & b).sum()) / float(a.sum() + b.sum()))
    return sum(each) / len(each) if each else 1.0


class Cycle(Plain):
    """The networks of a cycle of sites, for labels of whole images."""

    def score(self, name, net, held):
        net.eval()
        with torch.no_grad():
            said = net(self.cases[name].image[held].float() / 255).sigmoid()
        return dice(said, self.cases[name].target[held])

    def distil(self, teacher, lam):
        def loss(batch):
            features = self.net.features(batch.image)
            scores = self.net.head(features)
            with torch.no_grad():
                example = teacher.features(batch.image)
                t = teacher.head(example).sigmoid().clamp(1e-6, 1 - 1e-6)
            s = scores.sigmoid().clamp(1e-6, 1 - 1e-6)
            kl = (t * (t.log() - s.log()) + (1 - t) * ((1 - t).log() - (1 - s).log())).mean()
            task = F.binary_cross_entropy_with_logits(scores, batch.target)
            return task + lam * (((features - example) ** 2).mean() + kl)

        return loss

    def settle(self, name, net, used):
        """Measure the statistics of each normalisation layer anew, one layer after the other."""
        x = self.cases[name].image[used].float() / 255
        net.eval()
        with torch.no_grad():
            for layer in net.body:
                if isinstance(layer, torch.nn.BatchNorm2d):
                    layer.running_mean.copy_(x.mean((0, 2, 3)))
                    layer.running_var.copy_(x.var((0, 2, 3), unbiased=True))
                    scale = layer.weight / (x.var((0, 2, 3), unbiased=False) + layer.eps).sqrt()
                    shift = layer.bias - x.mean((0, 2, 3)) * scale
                    x = x * scale[:, None, None] + shift[:, None, None]
                else:
                    x = layer(x)


def plain_run(spec, sites, *, lam=0.5, threshold=0.6, common=2, step=5, turns=False):
    """Return every site's model, whether it was able, and how often each thing happened."""
    plain = Cycle(spec, sites)
    norm, order = plain.norm_names(), sorted(sites)
    own = dict.fromkeys(order, plain.start)
    able = dict.fromkeys(order, False)
    models, done = {}, {"copied": 0, "distilled": 0, "personal": 0, "plain": 0}
    turn = None
    for number in range(1, spec.rounds + 1):
        personal = number > common
        taking_part = order
        if turns and not personal:
            taking_part = [order[(number - 1) % len(order)]]
        sent = {}
        for name in taking_part:
            n = len(plain.cases[name])
            held = [i for i in range(n) if step and i % step == step - 1] or list(range(n))
            used = [i for i in range(n) if i not in held] or held
            at = order.index(name)
            cycle = [*order[at + 1 :], *order[:at]]  # the nearest before comes last
            before = [other for other in cycle if other in models]
            source = turn if personal else (before[-1] if before else None)
            plain.net.load_state_dict(own[name])
            loss = None
            if source is not None:
                body = {k: v for k, v in models[source].items() if k not in norm}
                teacher = copy.deepcopy(plain.net)
                teacher.load_state_dict({**own[name], **body})
                plain.settle(name, teacher, used)
                strength = lam
                if personal:
                    gap = plain.score(name, teacher, held) - plain.score(name, plain.net, held)
                    strength = 0 if gap <= 0 else lam / 10 * 10 ** min(1, 5 * gap)
                if not personal and not able[name]:
                    plain.net.load_state_dict({**own[name], **body})
                    done["copied"] += 1
                elif strength:
                    loss = plain.distil(teacher, strength)
                    done["personal" if personal else "distilled"] += 1
                else:
                    done["plain"] += 1
            plain.train(name, number, loss, only=torch.tensor(used))
            own[name] = plain.state()
            able[name] = able[name] or plain.score(name, plain.net, held) > threshold
            sent[name] = own[name]
        if not personal:
            models |= sent
            turn = max(sent) if turns else max(models)
    return own, able, done


@pytest.mark.parametrize(
    ("rounds", "settings", "expected"),
    [
        (5, {"common": 3, "threshold": 0.3}, {"copied", "distilled"}),
        (4, {"common": 2, "threshold": -1.0}, {"distilled", "personal"}),
        (7, {"common": 5, "threshold": -1.0, "turns": True}, {"distilled"}),
        (6, {"common": 1, "threshold": 1.0, "lam": 2.0}, {"personal", "plain"}),
    ],
)
def test_metafed_is_its_algorithm(rounds, settings, expected, tmp_path):
    spec = spec_of("metafed", "multi-label", settings, rounds=rounds)
    run_toy(spec, tmp_path / "run", uneven(spec))
    own, _, done = plain_run(spec, uneven(spec), **{"lam": 0.5, **settings})
    assert all(done[what] for what in expected), done
    for site in own:
        close(kept(tmp_path / "run", site, "own"), own[site], rtol=5e-4, atol=5e-6)


def test_the_distillation_has_a_gradient(tmp_path):
    """METHODS 7: the reference detaches these terms, and then nothing is distilled."""
    runs = {}
    for lam in (0.0, 0.5):
        spec = spec_of("metafed", "multi-label", {"lam": lam, "threshold": -1.0}, rounds=3)
        run_toy(spec, tmp_path / str(lam))
        runs[lam] = kept(tmp_path / str(lam), "anna", "own")
    assert not torch.equal(runs[0.0]["head.weight"], runs[0.5]["head.weight"])


def test_a_teacher_of_another_scale_is_followed_like_its_equal(tmp_path):
    """Weights before a normalisation layer may grow: the model is the same, if its statistics are too."""
    method = make_method("metafed", {"threshold": -1.0})
    spec = toy_spec(
        learner={"network": "unet-fedlppa"},
        training={"augment": "none", "batch": 8},
        method={"name": "metafed"},
    )
    losses = []
    for scale in (1.0, 8.0):
        bench = make_bench(spec, method, spec.federation)
        data = toy_sites(spec, train=6)["anna"]
        train = ResidentCases.of(data.train, data.view, bench.device)
        site = Site("anna", spec.federation, bench, train, spec.training, 0, 2, 4)
        own = site.weights()
        taught = {
            name: value * (1.0 if name.startswith("head.") or "project" in name else scale)
            for name, value in site.weights("body", "head").items()
        }
        down = Accumulate(taught, None)
        up, _ = method.local_update(down, Memory(own, able=True), site)
        losses.append(up.loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_without_teaching_and_copying_it_is_local_training_to_the_bit(tmp_path):
    off = {"lam": 0.0, "threshold": -1.0, "held_out": 0.0}
    meta = run_toy(toy_spec(method={"name": "metafed", "settings": off}), tmp_path / "meta")
    local = run_toy(toy_spec(method={"name": "local"}), tmp_path / "local")
    assert meta["sites"] == local["sites"]


def test_models_leave_only_in_the_first_stage_and_without_normalisation_layers(tmp_path):
    spec = spec_of("metafed", "multi-label", {"common": 2}, rounds=3)
    run_toy(spec, tmp_path / "run")
    fields = {("Up", name) for name in ("weights", "images", "loss")}
    fields |= {("Kept", name) for name in ("images", "loss")}
    assert ledger_fields(tmp_path / "run", "up", "train") == fields
    lines = [json.loads(x) for x in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    sent = {x["round"] for x in lines if (x["message"], x["field"]) == ("Up", "weights")}
    assert sent == {1, 2}


def test_in_turns_the_cycle_goes_on_past_an_absent_site(tmp_path):
    spec = spec_of(
        "metafed",
        settings={"turns": True, "common": 5},
        rounds=6,
        participation={"absent": {"bo": [2]}},
    )
    run_toy(spec, tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    part = [line["took_part"] for line in lines]
    assert part == [["anna"], ["cleo"], ["anna"], ["bo"], ["cleo"], ["anna", "bo", "cleo"]]


def test_the_teacher_is_the_nearest_before_in_the_cycle():
    from consilia.methods.personal.metafed import Server

    models = {name: {"w": torch.tensor([float(i)])} for i, name in enumerate("acd")}
    server = Server({}, dict.fromkeys("abcde", 1), models, (), "d", 3)
    method = make_method("metafed")
    taught = {site: method.broadcast(server, site).teacher["w"].item() for site in "abcde"}
    assert taught == {"a": 2, "b": 0, "c": 0, "d": 1, "e": 2}
    alone = Server({}, {"a": 1}, {"a": models["a"]}, (), "a", 3)
    assert method.broadcast(alone, "a").teacher is None


def test_a_site_keeps_its_model_while_it_is_away(tmp_path):
    run_toy(spec_of("metafed", rounds=2), tmp_path / "one")
    away = spec_of("metafed", rounds=4, participation={"absent": {"anna": [2, 3, 4]}})
    run_toy(away, tmp_path / "away")
    short = spec_of("metafed", rounds=2, participation={"absent": {"anna": [2]}})
    run_toy(short, tmp_path / "short")
    assert_same_state(
        kept(tmp_path / "away", "anna", "own"), kept(tmp_path / "short", "anna", "own")
    )
