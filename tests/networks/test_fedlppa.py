"""FedLPPA's network: shapes and counts of METHODS 3.2 and 3.9, and each module against plain loops."""

import pytest
import torch
from torch import nn

from consilia.networks.dual import DualUNet
from consilia.networks.fedlppa import FedLPPANet, Parts, Prompts, channel_attention
from consilia.networks.unet import UNETS, UNet

SHAPE = UNETS["unet-fedlppa"]


def count(module):
    return sum(p.numel() for p in module.parameters())


def faz(size=256, **parts):
    return FedLPPANet(SHAPE, 1, 2, 5, (size, size), Parts(**parts))


def test_parameter_counts_of_the_paper():
    network = faz()
    assert count(network) == 2_897_430
    assert count(network.aux) == 641_202
    assert count(network.decoder) + count(network.head) == 641_202
    assert count(UNet(SHAPE, 1, 2)) == 1_813_474
    assert count(DualUNet(SHAPE, 1, 2)) == 1_813_474 + 641_202 - 64 * 128


def test_shapes_of_a_256_pixel_image():
    network = faz().eval()
    x = torch.rand(1, 1, 256, 256)
    with torch.no_grad():
        bottom = network.encoder(x)[-1]
        assert bottom.shape == (1, 256, 16, 16)
        assert network.fusion.prompts().shape == (5, 16, 16)
        assert network.fusion.fuse[0].in_channels == 261
        starred = network.context(x)[-1]
        assert starred.shape == (1, 320, 16, 16)
        assert torch.equal(starred[:, :256], bottom)
        assert network.mlp(starred).shape == (1, 16, 1, 1)
        main, aux = network.both(x)
        assert main.shape == aux.shape == (1, 2, 256, 256)
        assert torch.equal(main, network(x))


def test_without_any_part_it_is_the_plain_unet_to_the_bit():
    torch.manual_seed(0)
    plain = UNet(SHAPE, 1, 2)
    torch.manual_seed(0)
    bare = faz(32, fusion=False, auxiliary=False)
    assert plain.state_dict().keys() == bare.state_dict().keys()
    x = torch.rand(2, 1, 32, 32)
    assert torch.equal(plain.eval()(x), bare.eval()(x))
    assert bare.both(x)[1] is None


def test_fused_features_are_doubled_before_attention_has_learned():
    network = faz(32).eval()
    bottom = torch.rand(2, 256, 2, 2)
    prompt = network.fusion.prompts().expand(2, -1, -1, -1)
    fused = network.fusion.fuse(torch.cat((bottom, prompt), 1))
    assert torch.equal(network.fusion(bottom)[:, 256:], 2 * fused)


@pytest.mark.parametrize(("attention", "times"), [("spatial", 1), ("channel", 1), ("none", 1)])
def test_single_attentions(attention, times):
    network = faz(32, attention=attention).eval()
    bottom = torch.rand(2, 256, 2, 2)
    prompt = network.fusion.prompts().expand(2, -1, -1, -1)
    fused = network.fusion.fuse(torch.cat((bottom, prompt), 1))
    assert torch.equal(network.fusion(bottom)[:, 256:], times * fused)
    assert (network.fusion.spatial is None) == (attention in {"channel", "none"})
    assert (network.fusion.of_channels is None) == (attention in {"spatial", "none"})


def test_spatial_attention_equals_a_loop_over_positions():
    torch.manual_seed(1)
    spatial = faz(32).fusion.spatial.eval()
    x = torch.randn(1, 64, 2, 3)
    q, k, v = (part(x)[0].flatten(1) for part in (spatial.query, spatial.key, spatial.value))
    assert q.shape == (8, 6)
    wanted = torch.zeros(64, 6)
    for here in range(6):
        scores = [sum(q[c, here] * k[c, there] for c in range(8)).exp() for there in range(6)]
        for there in range(6):
            wanted[:, here] += scores[there] / sum(scores) * v[:, there]
    torch.testing.assert_close(spatial(x)[0].flatten(1), wanted)


def test_channel_attention_looks_at_channels_unlike_its_own():
    x = torch.randn(1, 3, 2, 2)
    flat = x[0].flatten(1)
    wanted = torch.zeros(3, 4)
    for i in range(3):
        alike = [float(flat[i] @ flat[j]) for j in range(3)]
        scores = torch.tensor([max(alike) - a for a in alike]).exp()
        for j in range(3):
            wanted[i] += scores[j] / scores.sum() * flat[j]
    torch.testing.assert_close(channel_attention(x)[0].flatten(1), wanted)


def test_the_context_scales_the_last_features_of_the_main_decoder_only():
    network = faz(32).eval()
    x = torch.rand(1, 1, 32, 32)
    features = network.context(x)
    factor = network.mlp(features[-1])
    wanted = network.head(network.decoder(features) * factor)
    torch.testing.assert_close(network(x), wanted)
    with torch.no_grad():
        for layer in network.mlp:
            if isinstance(layer, nn.Conv2d):
                layer.weight.zero_()
                layer.bias.zero_()
    assert network(x).flatten(2).std(-1).max() < 1e-6  # nothing but the head's bias passes
    assert network.both(x)[1].flatten(2).std(-1).min() > 1e-6


def test_prompts_are_the_sites_own_row_and_sparsity():
    prompts = Prompts(3, (2, 2), Parts())
    prompts.place(torch.tensor([0.0, 1, 0]), torch.tensor([0.0, 0, 1]))
    got = prompts()
    assert torch.equal(got[0], prompts.universal[0])
    assert torch.equal(got[1], prompts.distribution[1])
    assert torch.equal(got[2:], torch.tensor([0.0, 0, 1])[:, None, None].expand(3, 2, 2))
    got.sum().backward()
    touched = prompts.distribution.grad.flatten(1).any(1)
    assert touched.tolist() == [False, True, False]


def test_learnable_prompts_start_between_zero_and_one_and_sparsity_is_no_tensor_of_the_network():
    prompts = Prompts(4, (3, 3), Parts())
    assert set(prompts.state_dict()) == {"universal", "distribution"}
    for value in prompts.parameters():
        assert 0 <= value.min() < value.max() <= 1


@pytest.mark.parametrize(
    ("parts", "channels"),
    [
        ({"universal": False}, 4),
        ({"sparsity": False}, 2),
        ({"distribution": False}, 4),
        ({"universal": False, "sparsity": False}, 1),
        ({"universal": False, "sparsity": False, "distribution": False}, 0),
    ],
)
def test_prompts_can_be_left_out(parts, channels):
    network = faz(32, **parts).eval()
    assert network.fusion.prompts().shape == (channels, 2, 2)
    assert network(torch.rand(1, 1, 32, 32)).shape == (1, 2, 32, 32)
