"""Convolutions between few channels, against PyTorch's in double precision."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from consilia import kernels
from tests.kernels.support import NEAR, far, last


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize(
    ("inside", "out"),
    [
        (1, 16),
        (16, 16),
        (32, 16),
        (16, 32),
        (16, 4),
        (3, 5),
        (32, 32),
        (20, 30),
        (64, 40),
        (40, 64),
    ],
    ids=str,
)
def test_it_is_what_pytorch_computes(inside, out, biased, interpreted):
    torch.manual_seed(inside)
    plain = nn.Conv2d(inside, out, 3, padding=1, bias=biased).double()
    own = nn.Conv2d(inside, out, 3, padding=1, bias=biased)
    own.load_state_dict(plain.state_dict())
    own = own.to(interpreted, memory_format=torch.channels_last)
    x = torch.randn(2, inside, 11, 13, dtype=torch.float64)  # rows that end within a program
    g = torch.randn(2, out, 11, 13)
    x_own = last(x.float()).to(interpreted).requires_grad_()
    x.requires_grad_()

    assert kernels.fits_convolution(x_own, own)
    wanted, found = plain(x), kernels.convolved(x_own, own, own.bias)
    assert far(found, wanted) < NEAR
    wanted.backward(g.double())
    found.backward(g.to(interpreted))
    assert far(x_own.grad, x.grad) < NEAR
    assert far(own.weight.grad, plain.weight.grad) < NEAR
    if biased:
        assert far(own.bias.grad, plain.bias.grad) < NEAR


def test_an_image_does_not_reach_its_neighbour(interpreted):
    """Images lie one after another in memory; margins between them must stay margins."""
    layer = nn.Conv2d(16, 16, 3, padding=1, bias=False).to(interpreted)
    x = torch.zeros(3, 16, 5, 7, device=interpreted)
    x[1] = 1.0
    y = kernels.convolved(last(x), layer, None)
    assert not y[0].any()
    assert not y[2].any()
    assert far(y, nn.functional.conv2d(x, layer.weight, padding=1)) < NEAR


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(16, 80, 3, padding=1), last(torch.ones(1, 16, 4, 4))),
        (nn.Conv2d(16, 16, 1), last(torch.ones(1, 16, 4, 4))),
        (nn.Conv2d(16, 16, 3), last(torch.ones(1, 16, 4, 4))),
        (nn.Conv2d(16, 16, 3, padding=1, stride=2), last(torch.ones(1, 16, 4, 4))),
        (nn.Conv2d(16, 16, 3, padding=1, groups=2), last(torch.ones(1, 16, 4, 4))),
        (nn.Conv2d(16, 16, 3, padding=1), torch.ones(1, 16, 4, 4)),
        (nn.Conv2d(16, 16, 3, padding=1).double(), last(torch.ones(1, 16, 4, 4)).double()),
        (nn.Conv2d(16, 16, 3, padding=1), last(torch.ones(0, 16, 4, 4))),
    ],
    ids=["wide", "1x1", "no margin", "strided", "grouped", "channels first", "double", "no images"],
)
def test_what_does_not_fit_is_left_to_pytorch(layer, x):
    assert not kernels.fits_convolution(x, layer)
    assert torch.equal(kernels.convolved(x, layer, layer.bias), layer(x))


@pytest.mark.parametrize(
    ("inside", "out", "most"),
    [(16, 16, 2**27), (3, 5, 2**31 // 5 + 1), (5, 3, 2**31 // 5 + 1), (1, 33, 2**31 // 33 + 1)],
    ids=str,
)
def test_what_32_bits_do_not_count_is_left_to_pytorch(inside, out, most):
    """Neither what goes in nor what comes out may have more numbers than offsets can say."""
    layer = nn.Conv2d(inside, out, 3, padding=1)
    with FakeTensorMode():  # tensors without memory
        for pixels, fits in ((most - 1, True), (most, False)):
            x = torch.empty(1, inside, pixels, 1, memory_format=torch.channels_last)
            assert kernels.fits_convolution(x, layer) is fits


def test_a_second_derivative_is_refused_and_not_wrong(interpreted):
    layer = nn.Conv2d(16, 16, 3, padding=1).to(interpreted)
    x = last(torch.randn(1, 16, 8, 8, device=interpreted)).requires_grad_()
    y = kernels.convolved(x, layer, layer.bias)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
