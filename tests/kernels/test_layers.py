"""Networks on kernels of our own compute what they compute on PyTorch's, and whole runs come to the same."""

import copy
import json
import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from consilia.engines import inprocess
from consilia.engines.machine import card as card_of
from consilia.engines.machine import warn_of_kernels, why_no_kernels
from consilia.networks.layers import Chain, Convolution, fuse
from consilia.networks.unet import UNETS, UNet
from consilia.testing import run_toy, with_changes
from consilia.training.site import laid_out
from tests.kernels.support import NEAR, far, last
from tests.methods.test_every_method import spec_for

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def small(name):
    """Return a U-Net as fresh runs have it, but without dropout."""
    torch.manual_seed(1)

    network = UNet(UNETS[name], 1, 2)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network


def step(network, x):
    """Return scores and the gradients of all parameters."""
    network.zero_grad()
    scores = network(x)
    scores.square().mean().backward()
    return scores, {name: p.grad for name, p in network.named_parameters()}


def apart(found, wanted):
    """Return the distance of all gradients together, relative to their length."""
    names = sorted(wanted)
    return far(*[torch.cat([g[n].flatten().double() for n in names]) for g in (found, wanted)])


@pytest.mark.parametrize("name", ["unet-small", "unet-fedlppa"])  # group norm, batch norm
def test_a_network_computes_the_same_fused(name, interpreted, counted):
    plain = small(name).to(interpreted)
    x = torch.rand(2, 1, 32, 32, device=interpreted)
    fused = laid_out(fuse(copy.deepcopy(plain)))
    scores, slopes = step(copy.deepcopy(plain).double(), x.double())
    _, rounded = step(plain, x)
    found, own = step(fused, last(x))
    assert far(found, scores) < 10 * NEAR
    # float32 moves a unit across ReLU's bend now and then, on PyTorch's kernels as on ours
    assert apart(own, slopes) < 3 * apart(rounded, slopes) + 10 * NEAR
    state = fused.state_dict()
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=100 * NEAR, atol=100 * NEAR)
    assert counted["norm"] == sum(
        isinstance(m, nn.BatchNorm2d | nn.GroupNorm) for m in fused.modules()
    )
    assert counted["convolution"]


@pytest.fixture
def counted(monkeypatch, interpreted):
    """Count how often the kernels are called."""
    from consilia.kernels import conv, norm

    counts = {"norm": 0, "convolution": 0}

    def count(owner, what):
        apply = owner.apply

        def counting(*given):
            counts[what] += 1
            return apply(*given)

        monkeypatch.setattr(owner, "apply", counting)

    count(norm.Normalised, "norm")
    count(conv.Convolved, "convolution")
    return counts


def test_a_fused_network_in_evaluation_mode_uses_running_statistics(interpreted, counted):
    plain = small("unet-fedlppa").to(interpreted)
    x = torch.rand(2, 1, 16, 16, device=interpreted)
    plain(x)
    fused = laid_out(fuse(copy.deepcopy(plain))).eval()
    with torch.no_grad():
        assert far(fused(last(x)), plain.eval()(x)) < 5 * NEAR
    assert counted["norm"] == 0


def test_somebody_who_listens_hears_what_passes_between_layers(interpreted, counted):
    block = fuse(Chain(Convolution(16, 16, 3, padding=1), nn.GroupNorm(8, 16), nn.ReLU()))
    block = block.to(interpreted, memory_format=torch.channels_last)
    x = last(torch.rand(1, 16, 8, 8, device=interpreted))
    block(x)
    assert counted == {"norm": 1, "convolution": 1}
    heard = []
    block[1].register_forward_hook(lambda layer, given, out: heard.append(out))
    y = block(x)
    assert counted["norm"] == 1
    assert far(y, heard[0].relu()) == 0


def test_a_chain_that_is_not_fused_is_a_sequence_of_layers():
    layers = [Convolution(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU()]
    x = torch.rand(2, 3, 8, 8)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU())
    plain.load_state_dict(Chain(*layers).state_dict())
    assert torch.equal(Chain(*layers)(x), plain(x))


@pytest.mark.parametrize(
    "name", ["fedavg", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedmix", "fedia"))]
)
def test_a_run_on_our_kernels_comes_to_the_same(name, tmp_path, monkeypatch, interpreted):
    """The whole path: networks, layout, optimiser, averaging, on a CPU in the interpreter."""
    if interpreted == "cuda":
        pytest.skip("`benchmarks.gpu --only agreement` compares runs on a card")
    spec = with_changes(spec_for(name), "training.optimizer=sgd", "rounds=1")
    plain = run_toy(spec, tmp_path / "plain")
    monkeypatch.setattr(inprocess, "why_no_kernels", lambda spec, device: None)
    fused = run_toy(spec, tmp_path / "fused")
    assert fused["mean"]["dice"] == pytest.approx(plain["mean"]["dice"], abs=0.02)


@pytest.fixture
def card(monkeypatch):
    """Say what the card is; by default one on which the kernels run."""

    def be(*, available=True, fits=True, measured=True, fails=None):
        monkeypatch.setattr("consilia.kernels.available", lambda: available)
        monkeypatch.setattr("consilia.kernels.fit_on", lambda device: fits)
        monkeypatch.setattr("consilia.kernels.measured_on", lambda device: measured)
        monkeypatch.setattr("consilia.engines.machine.trial", lambda device, dtype: fails)

    be()
    return be


@pytest.mark.parametrize(
    ("device", "changes", "why"),
    [
        (CUDA, ["engine.kernels=off"], "off"),
        (CPU, [], "for a GPU"),
        (CPU, ["engine.kernels=on"], "for a GPU"),
        (CUDA, ["engine.precision=float32"], "round"),
        (CUDA, ["engine.compile=on"], "compile"),
    ],
)
def test_why_pytorchs_kernels_run(device, changes, why, card):
    assert why in why_no_kernels(with_changes(spec_for("fedavg"), *changes), device)


@pytest.mark.parametrize("wanted", ["auto", "on"])
def test_they_run_where_a_card_and_a_compiler_are(wanted, card):
    spec = with_changes(spec_for("fedavg"), f"engine.kernels={wanted}")
    assert why_no_kernels(spec, CUDA) is None
    card(available=False)
    assert "triton" in why_no_kernels(spec, CUDA)
    card(fits=False)
    assert "shared memory" in why_no_kernels(spec, CUDA)
    card(fails="one failed")
    assert why_no_kernels(spec, CUDA) == "one failed"


def test_a_kind_of_card_they_were_not_measured_on_must_be_asked_for(card):
    card(measured=False)
    spec = spec_for("fedavg")
    assert "measured" in why_no_kernels(spec, CUDA)
    assert why_no_kernels(with_changes(spec, "engine.kernels=on"), CUDA) is None


def test_a_run_that_asks_for_them_in_vain_is_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "consilia"):
        run_toy(with_changes(spec_for("fedavg"), "engine.kernels=on", "rounds=1"), tmp_path / "run")
    told = [r.getMessage() for r in caplog.records if "kernels" in r.getMessage()]
    assert told == ["engine.kernels is 'on', but PyTorch's own kernels run: they are for a GPU"]


@pytest.fixture
def told(caplog):
    """Return a function that says what a run on a card is told of kernels."""

    def warn(*changes, device=CUDA, network=None):
        caplog.clear()
        bench = SimpleNamespace(device=device, network=lambda: network or Convolution(1, 1, 3))
        with caplog.at_level(logging.DEBUG, "consilia"):
            warn_of_kernels(with_changes(spec_for("fedavg"), *changes), bench)
        return [record.getMessage() for record in caplog.records]

    return warn


def test_a_card_that_should_run_them_and_fails_is_told(card, told):
    assert told() == []
    card(fails="one failed")
    why = "but PyTorch's own kernels run: one failed"
    assert told() == [f"engine.kernels is 'auto', {why}"]
    assert told("engine.kernels=on") == [f"engine.kernels is 'on', {why}"]


def test_where_they_are_not_meant_nobody_is_told(card, told):
    card(fails="one failed")
    assert told(device=CPU) == []
    for change in ("engine.precision=float32", "engine.compile=on", "engine.kernels=off"):
        assert told(change) == []
    assert told(network=nn.Conv2d(1, 1, 3)) == []
    for lacks in ({"measured": False}, {"fits": False}, {"available": False}):
        card(fails="one failed", **lacks)
        assert told() == []


def test_a_network_without_such_layers_that_asks_for_them_is_told(card, told):
    assert told("engine.kernels=on", network=nn.Conv2d(1, 1, 3)) == [
        "engine.kernels is 'on', but PyTorch's own kernels run: this network has no layers for them"
    ]


@pytest.mark.parametrize(
    ("fails", "network", "wanted"),
    [
        (None, Convolution(1, 1, 3), "used"),
        ("one failed", Convolution(1, 1, 3), "not used: one failed"),
        (None, nn.Conv2d(1, 1, 3), "not used: this network has no layers for them"),
    ],
    ids=["used", "failed", "other network"],
)
def test_a_run_says_which_card_and_whose_kernels(fails, network, wanted, card, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    card(fails=fails)
    bench = SimpleNamespace(device=CUDA, network=lambda: network)
    assert card_of(spec_for("fedavg"), bench) == {"gpu": "a card", "kernels": wanted}
    bench.device = CPU
    assert card_of(spec_for("fedavg"), bench) == {}


def test_a_run_folder_holds_which_card_it_was(tmp_path, monkeypatch):
    held = {"gpu": "a card", "kernels": "used"}
    monkeypatch.setattr(inprocess, "card", lambda spec, bench: held)
    run_toy(with_changes(spec_for("fedavg"), "rounds=1"), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "environment.json").read_text()).items() >= held.items()
