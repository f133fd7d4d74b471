"""Parameter counts of the papers, output shapes, and the head apart from the body."""

import pytest
import torch
from torch import nn

from consilia.networks.classifiers import DenseNet121, SmallCNN
from consilia.networks.layers import Convolution
from consilia.networks.unet import UNETS, UNet, UpBlock


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_match_the_papers():  # METHODS 1.2, 3.2, 4.2
    assert count(UNet(UNETS["unet-fedlppa"], 1, 2)) == 1_813_474
    assert count(UNet(UNETS["unet-fedmix"], 1, 1)) == pytest.approx(17.3e6, rel=3e-3)
    assert count(UNet(UNETS["unet-fedia"], 1, 2)) == pytest.approx(17.26e6, rel=1e-3)


def test_the_decoder_of_fedlppa_on_its_wider_bottleneck():  # METHODS 3.2
    from consilia.networks.unet import Decoder

    head = torch.nn.Conv2d(16, 2, 3)
    assert count(Decoder(UNETS["unet-fedlppa"], bottleneck=320)) + count(head) == 641_202


@pytest.mark.parametrize(("level", "rate"), [*enumerate((0.05, 0.1, 0.2, 0.3, 0.5))])
def test_dropout_of_fedlppas_encoder_grows_from_level_to_level(level, rate):  # METHODS 3.2
    block = UNet(UNETS["unet-fedlppa"], 1, 2).encoder.levels[level]
    kinds = [Convolution, nn.BatchNorm2d, nn.LeakyReLU]
    assert [type(layer) for layer in block] == [*kinds, nn.Dropout, *kinds]
    assert block[3].p == rate
    assert {(c.kernel_size, c.padding) for c in (block[0], block[4])} == {((3, 3), (1, 1))}


def test_fedlppas_up_blocks_project_to_the_skip_and_drop_nothing():  # METHODS 3.2
    network = UNet(UNETS["unet-fedlppa"], 1, 2)
    kinds = [Convolution, nn.BatchNorm2d, nn.LeakyReLU]
    for up, below, skip in zip(
        network.decoder.ups, (256, 128, 64, 32), (128, 64, 32, 16), strict=True
    ):
        project, block = up.project, up.block
        assert (project.in_channels, project.out_channels) == (below, skip)
        assert project.kernel_size == (1, 1)
        assert [type(layer) for layer in block] == 2 * kinds
        assert [(c.in_channels, c.out_channels) for c in (block[0], block[3])] == [
            (2 * skip, skip),
            (skip, skip),
        ]
    assert network.head.kernel_size == (3, 3)


def test_up_blocks_keep_the_corners_in_place():  # align_corners
    up = UpBlock(1, 1, 2, UNETS["unet-fedlppa"])
    seen = []
    up.block.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        up.project.weight.fill_(1)
        up.project.bias.zero_()
        up(torch.tensor([[[[0.0, 3.0]]]]), torch.zeros(1, 1, 1, 4))
    torch.testing.assert_close(seen[0], torch.tensor([[[[0.0, 0, 0, 0]], [[0, 1, 2, 3]]]]))


@pytest.mark.parametrize("name", UNETS)
@pytest.mark.parametrize("size", [32, 40])
def test_masks_have_the_size_of_the_image(name, size):
    network = UNet(UNETS[name], 3, 2).eval()
    with torch.no_grad():
        assert network(torch.rand(1, 3, size, size)).shape == (1, 2, size, size)


def test_fedmix_starts_with_xavier_and_no_bias():
    network = UNet(UNETS["unet-small"], 1, 1)
    assert all(not p.any() for n, p in network.named_parameters() if n.endswith("0.bias"))


@pytest.mark.parametrize("kind", [DenseNet121, SmallCNN])
def test_classifiers_keep_the_head_apart(kind):
    network = kind(1, 5).eval()
    with torch.no_grad():
        x = torch.rand(2, 1, 32, 32)
        assert torch.equal(network(x), network.head(network.features(x)))
    assert {n for n, _ in network.named_parameters() if n.startswith("head.")} == {
        "head.weight",
        "head.bias",
    }


def test_densenet_is_the_known_one():
    assert count(DenseNet121(1, 14)) == 6_961_934
    assert DenseNet121(1, 14).head.weight.shape == (14, 1024)
