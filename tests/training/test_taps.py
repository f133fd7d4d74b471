"""Listening in on a network: inputs and outputs of layers, and the statistics of features."""

import torch
from torch import nn

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.testing import toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.site import Site
from consilia.training.taps import norm_statistics, settle, tapped


def site_of(task="multi-label", train=10, **changes):
    spec = toy_spec(task, **changes)
    bench = make_bench(spec, make_method("fedavg"), spec.federation)
    data = toy_sites(spec, train=train)["anna"]
    cases = ResidentCases.of(data.train, data.view, bench.device, spec.federation.exclusive)
    return Site("anna", spec.federation, bench, cases, spec.training, 0, 1, 3)


def test_a_tap_hears_one_side_and_is_gone_afterwards():
    first, second = nn.Linear(2, 3), nn.Linear(3, 1)
    x = torch.rand(4, 2)
    with tapped((second,), "in") as given, tapped((second,)) as returned:
        y = second(first(x))
    assert torch.equal(given[second], first(x))
    assert returned[second] is y
    second(torch.zeros(1, 3))
    assert torch.equal(given[second], first(x))


def test_statistics_are_those_of_every_value_that_enters_a_layer():
    site = site_of(train=40)  # more than one part
    means, deviations = norm_statistics(site)
    x = site.train.image.float() / 255
    found = 0
    site.network.eval()
    for name, layer in site.network.body.named_children():
        if isinstance(layer, nn.BatchNorm2d):
            flat = x.detach().double().permute(1, 0, 2, 3).flatten(1)
            torch.testing.assert_close(
                means[f"body.{name}"].double(), flat.mean(1), rtol=1e-4, atol=1e-5
            )
            spread = flat.std(1, correction=0)
            torch.testing.assert_close(
                deviations[f"body.{name}"].double(), spread, rtol=1e-3, atol=1e-4
            )
            found += 1
        x = layer(x)
    assert found == len(means) == 4


def test_statistics_of_a_unet_are_those_of_its_encoder():
    means, _ = norm_statistics(site_of("segmentation"))
    assert means
    assert all(name.startswith("encoder.") for name in means)


def test_settled_layers_have_the_statistics_of_the_images_and_nothing_else_changes():
    site = site_of(train=40)  # two parts of twenty
    before = site.weights()
    settle(site, torch.arange(40))
    after = site.weights()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        name for name in before if name.endswith(("running_mean", "running_var", "batches_tracked"))
    }
    entering = site.network.body[0](site.train.image.float() / 255)
    torch.testing.assert_close(after["body.1.running_mean"], entering.mean((0, 2, 3)))
    parts = torch.stack([part.var((0, 2, 3)) for part in entering.split(20)]).mean(0)
    torch.testing.assert_close(after["body.1.running_var"], parts)
    layers = [m for m in site.network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(layer.momentum == 0.1 and not layer.training for layer in layers)


def test_one_image_settles_nothing():
    site = site_of()
    before = site.weights()
    settle(site, torch.tensor([3]))
    assert all(torch.equal(value, before[name]) for name, value in site.weights().items())
    assert not site.network.training
