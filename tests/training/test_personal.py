"""The loop that learns shares: how many batches it takes, what it leaves behind, and its cap."""

from dataclasses import replace

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.testing import toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.personal import learn_shares
from consilia.training.site import Site


@pytest.fixture
def site():
    spec = toy_spec(learner={"network": "unet-fedlppa"}, training={"batch": 4, "augment": "none"})
    bench = make_bench(spec, make_method("fedavg"), spec.federation)
    data = toy_sites(spec, train=10)["anna"]
    train = ResidentCases.of(data.train, data.view, torch.device("cpu"))
    return Site("anna", spec.federation, bench, train, spec.training, 0, 2, 3)


def parts_of(site):
    """Return a site's and a server's head that differ, and shares of one."""
    server = site.weights("head")
    own = {name: value + 0.1 * torch.randn_like(value) for name, value in server.items()}
    return own, server, {name: torch.ones_like(value) for name, value in server.items()}


def counting(site, values=None):
    """Return a loss that counts its batches, and may add a given value to each."""
    seen = []

    def loss(batch):
        seen.append(len(batch))
        extra = values[len(seen) - 1] if values else 0.0
        return site.task_loss(batch) + extra

    return seen, loss


def test_two_batches_are_two_batches_also_of_a_small_site(site):
    seen, loss = counting(site)
    learn_shares(site, *parts_of(site), loss, batches=2)
    assert seen == [4, 4]
    site.train = replace(site.train, image=site.train.image[:3], target=site.train.target[:3])
    seen, loss = counting(site)
    learn_shares(site, *parts_of(site), loss, batches=2)
    assert seen == [3, 3]


def test_one_pass_over_a_part_of_the_images(site):
    seen, loss = counting(site)
    learn_shares(site, *parts_of(site), loss, portion=0.8)
    assert seen == [4, 4]
    seen, loss = counting(site)
    learn_shares(site, *parts_of(site), loss)
    assert seen == [4, 4, 2]


def test_it_goes_on_until_the_losses_are_steady_or_the_cap_is_reached(site):
    seen, loss = counting(site)
    learn_shares(site, *parts_of(site), loss, passes=30, threshold=0.1)
    assert len(seen) == 33  # eleven passes
    wild, loss = counting(site, values=[float(i // 3 % 2) for i in range(90)])
    learn_shares(site, *parts_of(site), loss, passes=14, threshold=0.1)
    assert len(wild) == 42


def test_only_the_mixed_tensors_move_and_buffers_stay(site):
    before = site.weights()
    own, server, ones = parts_of(site)
    shares = learn_shares(site, own, server, ones, eta=5.0, passes=3)
    after = site.weights()
    assert any((share < 1).any() for share in shares.values())
    assert all(share.min() >= 0 and share.max() <= 1 for share in shares.values())
    for name, value in after.items():
        if name in shares:
            mixed = own[name] + (server[name] - own[name]) * shares[name]
            torch.testing.assert_close(value, mixed)
        else:
            assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in site.network.parameters())


def test_a_site_without_a_usable_image_only_mixes(site):
    own, server, _ = parts_of(site)
    half = {name: torch.full_like(value, 0.5) for name, value in server.items()}
    known = torch.zeros(len(site.train), site.train.labels, dtype=torch.bool)
    site.train = replace(site.train, known_labels=known)
    seen, loss = counting(site)
    shares = learn_shares(site, own, server, half, loss, passes=5)
    assert seen == []
    assert all(torch.equal(shares[name], half[name]) for name in half)
    torch.testing.assert_close(
        site.weights("head")["head.bias"], (own["head.bias"] + server["head.bias"]) / 2
    )
