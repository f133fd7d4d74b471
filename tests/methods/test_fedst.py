"""FedST and FedRGD: warm-up, confident pixels, fixed shares."""

import json
import logging

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method, why_not
from consilia.ops.pseudo import confident_bce
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from tests.methods.plain import Plain, assert_close
from tests.methods.support import assert_same_state, ledger_fields, server_weights

SITES = [
    {"name": "anna", "supervision": "none"},
    {"name": "bo", "supervision": "none"},
    {"name": "cleo", "supervision": "mask"},
]


def lines_of(path):
    return [json.loads(x) for x in (path / "rounds.jsonl").read_text().splitlines()]


def dice_loss(p, y):
    """Return FedMix's Dice loss, image by image."""
    p, y = p.flatten(1), y.flatten(1)
    return (1 - (2 * (p * y).sum(1) + 1e-4) / (p.sum(1) + y.sum(1) + 1e-4)).mean()


def plain_run(spec, sites, warmup, share, low, high, largest):
    """METHODS 1.8 in plain loops; returns the weights and the part of pixels that taught."""
    run, sure = Plain(spec, sites), []
    masks = [name for name in sites if str(spec.federation[name].supervision) == "mask"]

    def on_masks(image, target, index):
        planes = torch.stack([(target == c).float() for c in (1, 2)], 1)
        return dice_loss(run.net(image).sigmoid(), planes)

    def on_guesses(image, target, index):
        gamma = largest * torch.rand(len(image), 1, 1, 1)
        with torch.no_grad():
            guess = run.net(image).sigmoid()
        second = run.net(torch.clamp(image, min=1e-6) ** gamma).sigmoid()
        kept = (guess > high) | (guess < low)
        sure.append(kept.float().mean().item())
        right = torch.where(guess > 0.5, second, 1 - second)
        return -torch.log(right[kept]).mean() if kept.any() else second.sum() * 0

    for number in range(1, spec.rounds + 1):
        sent = {}
        for name in masks if number <= warmup else sorted(sites):
            run.load()
            run.train(name, number, on_masks if name in masks else on_guesses)
            sent[name] = run.sent()
        rest = (1 - share) / (len(sites) - len(masks))
        shares = {name: share / len(masks) if name in masks else rest for name in sent}
        run.average(sent, shares)
    return run.world["main"], sure


@pytest.mark.parametrize(
    ("name", "share", "gamma"), [("fedst", 0.9, 2.0), ("fedrgd", 0.5, 2.0), ("fedst", 0.9, 0.7)]
)
def test_it_is_its_algorithm(name, share, gamma, tmp_path):
    settings = {"warmup": 0.5, "low": 0.4, "high": 0.6, "gamma": gamma}
    spec = toy_spec(
        sites=[
            *SITES,
            {"name": "dora", "supervision": "mask"},
            {"name": "eva", "supervision": "none"},
        ],
        rounds=4,
        method={"name": name, "settings": settings},
        training={"augment": "none", "optimizer": "sgd", "learning_rate": 0.5},
    )
    sites = {**toy_sites(spec), "dora": toy_sites(spec, train=5)["dora"]}
    run_toy(spec, tmp_path / "run", sites)
    expected, sure = plain_run(spec, sites, 2, share, 0.4, 0.6, gamma)
    assert any(0.05 < part < 0.95 for part in sure)  # some pixels taught, and some did not
    assert_close(tmp_path / "run", expected)


@pytest.mark.parametrize(("name", "share"), [("fedst", 0.9), ("fedrgd", 0.5)])
def test_warm_up_and_shares(name, share, tmp_path):
    run_toy(toy_spec(sites=SITES, rounds=4, method={"name": name}), tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    assert [line["took_part"] for line in lines[:2]] == [["cleo"]] * 2
    assert lines[1]["shares"] == {"cleo": 1.0}
    rest = (1 - share) / 2
    assert lines[3]["shares"] == pytest.approx({"anna": rest, "bo": rest, "cleo": share})


def test_shares_with_several_labeled_sites():
    method = make_method("fedst")
    assert method.fixed_shares({"a": True, "b": True, "c": False}) == pytest.approx(
        {"a": 0.45, "b": 0.45, "c": 0.1}
    )
    assert method.fixed_shares({"a": False, "b": False}) == {"a": 0.5, "b": 0.5}


def test_a_warm_up_of_all_rounds_is_fedavg_on_the_labeled_site_to_the_bit(tmp_path):
    run_toy(
        toy_spec(sites=SITES, method={"name": "fedst", "settings": {"warmup": 1.0}}),
        tmp_path / "st",
    )
    run_toy(toy_spec(sites=SITES), tmp_path / "fedavg")
    assert_same_state(server_weights(tmp_path / "st"), server_weights(tmp_path / "fedavg"))


def test_only_confident_pixels_teach():
    guess = torch.tensor([0.95, 0.05, 0.5, 0.85]).reshape(1, 1, 1, 4)
    p = torch.tensor([0.8, 0.3, 0.01, 0.01]).reshape(1, 1, 1, 4).requires_grad_()
    loss = confident_bce(p, guess)
    expected = -(torch.log(torch.tensor(0.8)) + torch.log(torch.tensor(0.7))) / 2
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    loss.backward()
    assert p.grad.flatten()[2:].tolist() == [0, 0]


def test_it_needs_masks_somewhere():
    assert "needs at least one site with mask" in why_not(
        "fedst", toy_spec(sites=SITES[:2]).federation
    )


def test_a_warm_up_without_any_labeled_site_keeps_the_model_and_lasts_longer(tmp_path, caplog):
    away = {"absent": {"cleo": [1]}}
    spec = toy_spec(sites=SITES, rounds=4, method={"name": "fedst"}, participation=away)
    with caplog.at_level(logging.WARNING, "consilia"):
        run_toy(spec, tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    others = ["anna", "bo"]
    assert [x["took_part"] for x in lines] == [others, ["cleo"], ["cleo"], [*others, "cleo"]]
    assert lines[0]["shares"] == {}
    assert [r.getMessage() for r in caplog.records] == [
        "no site with masks came to this round of the warm-up: the model stays as it is, and the "
        "warm-up lasts a round longer"
    ]
    sent = ledger_fields(tmp_path / "run", "up", "train")
    assert sent == {
        ("Up", name) for name in ("weights", "images", "loss")
    }  # who waits says nothing
    never = toy_spec(
        sites=SITES, rounds=2, method={"name": "fedst"}, participation={"absent": {"cleo": [1, 2]}}
    )
    run_toy(never, tmp_path / "never")
    start = make_bench(spec, make_method("fedst"), spec.federation).start()
    assert_same_state(server_weights(tmp_path / "never"), start)


def test_guesses_are_made_in_evaluation_mode():
    network = {"network": "unet-fedlppa"}  # it has batch norm and dropout
    spec = toy_spec(sites=SITES, learner=network, method={"name": "fedst"})
    method = make_method("fedst", {"low": 0.5, "high": 0.5})
    bench, plain = (make_bench(spec, method, spec.federation) for _ in range(2))
    data = toy_sites(spec)["anna"]
    batch = ResidentCases.of(data.train, data.view, bench.device).cut(torch.arange(6))
    bench.network().train()
    torch.manual_seed(3)
    loss = method.self_training(bench, batch, {})
    guess = plain.learner.probabilities(plain.network().eval(), batch.image).detach()
    torch.manual_seed(3)
    second = batch.image.clamp(min=1e-6) ** (2 * torch.rand(6, 1, 1, 1))
    p = plain.learner.probabilities(plain.network().train(), second)
    assert loss.item() == pytest.approx(confident_bce(p, guess, 0.5, 0.5).item(), rel=1e-6)
    assert bench.network().training
    assert_same_state(bench.network().state_dict(), plain.network().state_dict())
