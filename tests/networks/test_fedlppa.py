"""FedLPPA's network: shapes and counts of METHODS 3.2 and 3.9, and each module against plain loops."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from consilia.networks.dual import DualUNet
from consilia.networks.fedlppa import FedLPPANet, Parts, Prompts, channel_attention
from consilia.networks.layers import Convolution
from consilia.networks.unet import UNETS, UNet

SHAPE = UNETS["unet-fedlppa"]


def count(module):
    return sum(p.numel() for p in module.parameters())


def faz(size=256, **parts):
    return FedLPPANet(SHAPE, 1, 2, 5, (size, size), Parts(**parts))


def wide():
    """Return a network for images wider than high, so that rows and columns cannot be confused."""
    torch.manual_seed(0)
    return uneven(FedLPPANet(SHAPE, 1, 2, 5, (32, 48), Parts()))


def uneven(module):
    """Give normalisation layers other weights and statistics than the neutral ones they start with."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                for tensor in (layer.weight, layer.running_var):
                    tensor.uniform_(0.5, 2)
                for tensor in (layer.bias, layer.running_mean):
                    tensor.normal_(0, 0.2)
    return module.eval()


def of_kind(kind, module):
    return [layer for layer in module.modules() if isinstance(layer, kind)]


def plain_norm(x, norm):
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def plain_block(x, block):
    """Twice: convolve, normalise, leaky ReLU."""
    layers = (of_kind(nn.Conv2d, block), of_kind(nn.BatchNorm2d, block))
    for convolution, norm in zip(*layers, strict=True):
        x = F.conv2d(x, convolution.weight, convolution.bias, padding=1)
        x = F.leaky_relu(plain_norm(x, norm), 0.01)
    return x


def plain_up(below, skip, up):
    """Narrow by 1x1, enlarge between corners, join, convolve."""
    below = F.conv2d(below, up.project.weight, up.project.bias)
    below = F.interpolate(below, scale_factor=2, mode="bilinear", align_corners=True)
    return plain_block(torch.cat((skip, below), 1), up.block)


def plain_spatial(x, spatial):
    def look(layers, padding):
        (convolution,), (norm,) = (of_kind(k, layers) for k in (nn.Conv2d, nn.BatchNorm2d))
        return plain_norm(F.conv2d(x, convolution.weight, convolution.bias, padding=padding), norm)

    q = F.relu(look(spatial.query, (0, 1))).flatten(2)
    k = F.relu(look(spatial.key, (1, 0))).flatten(2)
    v = F.conv2d(x, spatial.value.weight, spatial.value.bias).flatten(2)
    share = torch.einsum("bdq,bdk->bqk", q, k).softmax(2)
    return torch.einsum("bqk,bck->bcq", share, v).reshape(x.shape)


def plain_channel(x):
    alike = torch.einsum("bip,bjp->bij", x.flatten(2), x.flatten(2))
    share = (alike.max(2, keepdim=True).values - alike).softmax(2)
    return torch.einsum("bij,bjp->bip", share, x.flatten(2)).reshape(x.shape)


def plain_fusion(features, fusion):
    prompt = fusion.prompts().expand(len(features), -1, -1, -1)
    fused = plain_block(torch.cat((features, prompt), 1), fusion.fuse)
    by_space = fusion.of_space * plain_spatial(fused, fusion.spatial) + fused
    by_channel = fusion.of_channels * plain_channel(fused) + fused
    return torch.cat((features, by_space + by_channel), 1)


def plain_mlp(x, mlp):
    """Two hidden layers and an output on every position alone, and only then the mean."""
    first, second, last = of_kind(nn.Conv2d, mlp)
    norms = of_kind(nn.BatchNorm2d, mlp)
    out = []
    for position in x.flatten(2).unbind(2):
        for layer, norm in zip((first, second), norms, strict=True):
            position = F.linear(position, layer.weight.flatten(1), layer.bias)
            position = F.leaky_relu(plain_norm(position, norm), 0.01)
        out.append(F.linear(position, last.weight.flatten(1), last.bias))
    return torch.stack(out).mean(0)[:, :, None, None]


def with_both_attentions(network):
    """Let both attentions count, each by another share."""
    with torch.no_grad():
        network.fusion.of_space.fill_(0.7)
        network.fusion.of_channels.fill_(-0.4)
    return network


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


# --- the layers of METHODS 3.2 -----------------------------------------------------------------------


def test_the_fusion_drops_half_of_its_middle_channels():
    fuse = faz(32).fusion.fuse
    kinds = [Convolution, nn.BatchNorm2d, nn.LeakyReLU]
    assert [type(layer) for layer in fuse] == [*kinds, nn.Dropout, *kinds]
    assert [(c.in_channels, c.out_channels) for c in of_kind(nn.Conv2d, fuse)] == [
        (261, 128),
        (128, 64),
    ]
    assert fuse[3].p == 0.5


@pytest.mark.parametrize(
    ("part", "kernel", "padding"), [("query", (1, 3), (0, 1)), ("key", (3, 1), (1, 0))]
)
def test_queries_look_along_the_row_and_keys_along_the_column(part, kernel, padding):
    convolution, norm, active = getattr(faz(32).fusion.spatial, part)
    assert (convolution.kernel_size, convolution.padding) == (kernel, padding)
    assert (convolution.in_channels, convolution.out_channels) == (64, 8)
    assert (type(norm), type(active)) == (nn.BatchNorm2d, nn.ReLU)


def test_values_are_projected_at_each_position():
    value = faz(32).fusion.spatial.value
    assert (value.in_channels, value.out_channels, value.kernel_size) == (64, 64, (1, 1))


def test_the_mlp_works_on_each_position_and_pools_last():
    mlp = faz(32).mlp
    hidden = [Convolution, nn.BatchNorm2d, nn.LeakyReLU]
    wanted = [*hidden, *hidden, nn.Conv2d, nn.AdaptiveAvgPool2d]
    assert [type(layer) for layer in mlp] == wanted
    shapes = [(c.in_channels, c.out_channels, c.kernel_size) for c in of_kind(nn.Conv2d, mlp)]
    assert shapes == [(320, 128, (1, 1)), (128, 64, (1, 1)), (64, 16, (1, 1))]


def test_the_auxiliary_decoder_is_built_as_the_main_one():
    network = faz(32)
    main, aux = (
        {n: t.shape for n, t in part.state_dict().items()}
        for part in (network.decoder, network.aux)
    )
    assert aux == {
        **{f"decoder.{n}": shape for n, shape in main.items()},
        **{f"head.{n}": t.shape for n, t in network.head.state_dict().items()},
    }
    assert of_kind(nn.Dropout, network.decoder) == of_kind(nn.Dropout, network.aux) == []


# --- forward, written out ----------------------------------------------------------------------------


@torch.no_grad()
def test_an_up_block_equals_its_forward_written_out():
    first = wide().decoder.ups[0]
    below, skip = torch.randn(2, 320, 2, 3), torch.randn(2, 128, 4, 6)
    torch.testing.assert_close(first(below, skip), plain_up(below, skip, first))


@torch.no_grad()
def test_the_fusion_with_both_attentions_equals_its_forward_written_out():
    fusion = with_both_attentions(wide()).fusion
    fusion.prompts.place(torch.tensor([0.0, 0, 1, 0, 0]), torch.tensor([1.0, 0, 0]))
    features = torch.randn(2, 256, 2, 3)
    torch.testing.assert_close(fusion(features), plain_fusion(features, fusion))


@torch.no_grad()
def test_the_modulation_equals_an_mlp_per_position_and_then_their_mean():
    mlp, context = wide().mlp, torch.randn(2, 320, 2, 3)
    torch.testing.assert_close(mlp(context), plain_mlp(context, mlp))


@torch.no_grad()
def test_the_network_equals_its_forward_written_out():
    network, x = with_both_attentions(wide()), torch.rand(2, 1, 32, 48)
    features = []
    for level in network.encoder.levels:
        features.append(plain_block(F.max_pool2d(features[-1], 2) if features else x, level))
    *skips, bottom = features
    context = plain_fusion(bottom, network.fusion)
    scores = []
    for part in (network, network.aux):
        y = context
        for up, skip in zip(part.decoder.ups, reversed(skips), strict=True):
            y = plain_up(y, skip, up)
        y = y * plain_mlp(context, network.mlp) if part is network else y
        scores.append(F.conv2d(y, part.head.weight, part.head.bias, padding=1))
    for found, wanted in zip(network.both(x), scores, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
