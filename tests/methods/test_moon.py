"""MOON against a second, plain implementation, and its limit cases."""

import math

import pytest
import torch

from consilia.errors import UsageError
from consilia.methods import make_method
from consilia.methods.drift import moon
from consilia.ops.contrast import model_contrast
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.learner import PlainLearner
from consilia.training.site import Workbench
from tests.methods.plain_labels import (
    close,
    federate,
    new_network,
    parts_of,
    spec_of,
    supervised,
)
from tests.methods.support import assert_same_state, final_state, ledger_fields, server_weights

STAR = {"unknown": "masked", "rows": "labelled"}


def plain_moon(spec, mu, temperature, width, rows):
    """Algorithm 1 of MOON: three networks, one of which learns."""
    exclusive = spec.federation.exclusive
    fixed = [new_network(spec, projection=width) for _ in range(2)]

    def cosine(a, b):
        return (a * b).sum() / (a.norm() * b.norm())

    def begin(name, number, part, world, own):
        fixed[0].load_state_dict(world)
        fixed[1].load_state_dict(own or world)
        for net in fixed:
            net.eval()

        def loss(net, index, part):
            x, y, known = part.x[index], part.y[index], part.known[index]
            if rows == "all":
                known = torch.ones_like(known)
            z = net.projection(net.body(x))
            total = supervised(net.head(z), y, known, exclusive)
            if own is None:
                return total
            with torch.no_grad():
                one, two = (net.projection(net.body(x)) for net in fixed)
            for i in range(len(x)):
                near = math.e ** (cosine(z[i], one[i]) / temperature)
                far = math.e ** (cosine(z[i], two[i]) / temperature)
                total = total - mu * torch.log(near / (near + far)) / len(x)
            return total

        used = part.labeled if exclusive else list(range(len(part.x)))
        return loss, used

    world, own = federate(
        spec, parts_of(spec), begin, rows=rows, network=new_network(spec, projection=width)
    )
    return world, own


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("switches", [{}, STAR])
def test_it_is_its_algorithm(task, switches, tmp_path):
    settings = {"mu": 2.0, "temperature": 0.4, "width": 8, **switches}
    spec = spec_of("moon", task, settings, rounds=3)
    run_toy(spec, tmp_path / "run")
    world, own = plain_moon(spec, 2.0, 0.4, 8, switches.get("rows", "all"))
    close(server_weights(tmp_path / "run"), world)
    prefix = "memories/anna/memory.safetensors:previous/"
    kept = {k.removeprefix(prefix): v for k, v in final_state(tmp_path / "run").items()}
    close({k: kept[k] for k in own["anna"]}, own["anna"])


def test_the_contrast_matters(tmp_path):
    runs = []
    for mu in (1.0, 2.0):
        spec = spec_of("moon", settings={"mu": mu, "width": 8})
        run_toy(spec, tmp_path / str(mu))
        runs.append(server_weights(tmp_path / str(mu)))
    assert not torch.equal(runs[0]["head.weight"], runs[1]["head.weight"])


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("switches", [{}, STAR])
def test_without_contrast_it_is_fedavg_to_the_bit(task, switches, tmp_path):
    run_toy(spec_of("fedavg", task, switches), tmp_path / "fedavg")
    run_toy(spec_of("moon", task, {"mu": 0.0, **switches}), tmp_path / "moon")
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / "moon"))


def test_the_first_round_has_nothing_to_move_away_from(tmp_path):
    for mu in (1.0, 5.0):
        run_toy(spec_of("moon", settings={"mu": mu}, rounds=1), tmp_path / str(mu))
    assert_same_state(server_weights(tmp_path / "1.0"), server_weights(tmp_path / "5.0"))


def test_scores_and_features_are_judged_in_float32_also_where_the_network_computes_in_bf16(
    monkeypatch,
):
    seen = {}
    judge, contrast = PlainLearner.loss_of, moon.model_contrast

    def loss_of(self, logits, batch, *weights):
        seen["scores"] = logits.dtype
        return judge(self, logits, batch, *weights)

    def model_contrast(z, *others):
        seen["features"] = {value.dtype for value in (z, *others[:2])}
        return contrast(z, *others)

    monkeypatch.setattr(PlainLearner, "loss_of", loss_of)
    monkeypatch.setattr(moon, "model_contrast", model_contrast)
    spec, method = spec_of("moon"), make_method("moon", {"width": 8})
    learner = method.learner(PlainLearner.of(spec.learner, spec.federation))
    bench = Workbench(learner, spec.federation, torch.device("cpu"), 0, precision="bf16")
    data = toy_sites(spec)["anna"]
    cases = ResidentCases.of(data.train, data.view, torch.device("cpu"), exclusive=False)
    with bench.arithmetic():
        method.contrasted(bench, cases.cut(torch.arange(4)), {})
    assert seen == {"scores": torch.float32, "features": {torch.float32}}


def test_numbers_of_the_contrast():
    z = torch.tensor([[1.0, 0.0]])
    near = torch.tensor([[0.8, 0.6]])
    far = torch.tensor([[0.4, math.sqrt(1 - 0.16)]])
    assert float(model_contrast(z, near, far, 0.5)) == pytest.approx(0.371101, abs=1e-6)
    assert float(model_contrast(z, far, far, 0.5)) == pytest.approx(math.log(2))


def test_the_head_reads_the_projection_unless_there_is_none():
    spec = toy_spec("multi-label")
    plain = PlainLearner.of(spec.learner, spec.federation)
    wide = make_method("moon", {"width": 32}).learner(plain).build()
    assert wide.head.weight.shape == (2, 32)
    assert wide.features(torch.rand(3, 1, 16, 16)).shape == (3, 32)
    groups = plain.groups(wide)
    assert {"projection.0.weight", "projection.2.bias"} <= set(groups["body"])
    assert set(groups["head"]) == {"head.weight", "head.bias"}
    assert make_method("moon", {"width": 0}).learner(plain) == plain


def test_it_refuses_segmentation_and_foreign_learners():
    assert "segmentation" in make_method("moon").unmet(toy_spec().federation)
    with pytest.raises(UsageError, match="'moon' contrasts the features"):
        make_method("moon").learner(object())


def test_the_last_weights_never_leave_twice(tmp_path):
    run_toy(spec_of("moon", settings={"width": 8}), tmp_path / "run")
    up = ledger_fields(tmp_path / "run", "up", "train")
    assert up == {("Up", "weights"), ("Up", "images"), ("Up", "loss")}
    assert ledger_fields(tmp_path / "run", "down", "train") == {("Down", "weights")}
