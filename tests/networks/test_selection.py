"""Channel selection: its formula by hand, its parameters, and whose images come."""

import pytest
import torch

from consilia.networks.selection import ChannelSelection, SideHead
from consilia.networks.unet import UNETS, UNet


def test_it_is_its_formula():
    torch.manual_seed(0)
    layer = ChannelSelection(32, 3)
    layer.place(torch.tensor([0.0, 1.0, 0.0]))
    x = torch.randn(2, 32, 4, 5)
    e = layer.embed[2].weight @ torch.relu(layer.embed[0].weight[:, 1])
    expected = []
    for image in x:
        both = 0
        for pooled in (image.mean((1, 2)), image.amax((1, 2))):
            hidden = torch.relu(layer.weigh[0].weight @ torch.cat((pooled, e)))
            both = both + layer.weigh[2].weight @ hidden
        h = torch.sigmoid(both)[:, None, None]
        expected.append(image * h + image)
    torch.testing.assert_close(layer(x), torch.stack(expected))


def test_the_separation_is_the_mean_over_the_others_and_teaches_only_the_own():
    torch.manual_seed(1)
    layer = ChannelSelection(16, 4)
    here = torch.tensor([0.0, 0.0, 1.0, 0.0])
    layer.place(here)
    x = torch.randn(3, 16, 2, 2)
    h = layer.heat(x, torch.eye(4))
    gaps = [((h[2] - h[j].detach()) ** 2).mean() for j in (0, 1, 3)]
    found = layer.separation(x)
    torch.testing.assert_close(found, sum(gaps) / 3)
    found.backward()
    slope = layer.embed[0].weight.grad  # one column per site
    assert slope[:, 2].abs().sum() > 0
    assert slope[:, [0, 1, 3]].abs().sum() == 0


def test_one_site_alone_has_nobody_to_be_apart_from():
    layer = ChannelSelection(16, 1)
    layer.place(torch.ones(1))
    assert layer.separation(torch.randn(2, 16, 2, 2)).item() == 0


def test_whose_images_come_is_neither_sent_nor_saved():
    layer = ChannelSelection(16, 4)
    assert not any("here" in name for name in layer.state_dict())


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_parameters_and_the_papers_table_ix():
    """The paper's counts are a U-Net with side heads; selection was a list the code never registered."""
    unet = count(UNet(UNETS["unet-fedlppa"], 1, 2))
    selection = count(ChannelSelection(256, 5))
    sides = [count(SideHead(width, 2)) for width in (64, 32, 16)]
    assert unet == 1_813_474
    assert selection == 5 * 256 + 256 * 256 + 512 * 16 + 16 * 256 == 79_104
    assert sides == [297_472, 150_016, 76_288]
    assert (unet + sides[0]) / 1e6 == pytest.approx(2.1109, abs=1e-4)  # FedLC, as printed
    assert (unet + sum(sides)) / 1e6 == pytest.approx(2.3372, abs=1e-4)  # FedICRA, as printed
