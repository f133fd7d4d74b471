"""Parameter counts of the papers, output shapes, and the head apart from the body."""

import pytest
import torch

from consilia.networks.classifiers import DenseNet121, SmallCNN
from consilia.networks.unet import UNETS, UNet


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
