"""Dropout for a while."""

import torch
from torch import nn

from consilia.networks.dropout import dropping
from consilia.networks.unet import UNETS, UNet


def test_it_drops_within_the_block_and_not_after():
    torch.manual_seed(0)
    network, image = UNet(UNETS["unet-tiny"], 1, 1), torch.rand(2, 1, 16, 16)
    plain = network(image)
    with dropping(network, (0.5, 0.5)):
        one, two = network(image), network(image)
    assert not torch.equal(one, two)
    assert not torch.equal(one, plain)
    assert torch.equal(network(image), plain)


def test_rate_zero_and_no_rates_change_nothing():
    network, image = UNet(UNETS["unet-tiny"], 1, 1), torch.rand(1, 1, 16, 16)
    plain = network(image)
    for rates in ((0.0, 0.0, 0.0, 0.5), ()):
        with dropping(network, rates):
            assert torch.equal(network(image), plain)


def test_a_network_without_levels_stays_as_it_is():
    network = nn.Conv2d(1, 1, 1)
    with dropping(network, (0.5,)):
        assert torch.equal(network(torch.ones(1, 1, 2, 2)), network(torch.ones(1, 1, 2, 2)))
