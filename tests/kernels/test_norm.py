"""Bias, normalisation and activation in one function, against PyTorch's three in double precision."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from consilia import kernels
from tests.kernels.support import NEAR, far, last


def drawn(norm):
    """Return a normalisation whose weights are not the ones it starts from."""
    with torch.no_grad():
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize(
    ("make", "channels"),
    [
        (lambda: nn.GroupNorm(8, 16), 16),
        (lambda: nn.GroupNorm(3, 6), 6),  # channels that no power of two covers
        (lambda: nn.GroupNorm(4, 32), 32),  # more than a program sees at a time
        (lambda: nn.BatchNorm2d(16), 16),
        (lambda: nn.BatchNorm2d(20), 20),
        (lambda: nn.GroupNorm(35, 70), 70),  # many, and no multiple of what a program sees
        (lambda: nn.BatchNorm2d(96), 96),
    ],
    ids=["group", "group-6", "group-32", "batch", "batch-20", "group-70", "batch-96"],
)
@pytest.mark.parametrize("slope", [0.0, 0.01], ids=["relu", "leaky"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no-bias"])
def test_it_is_what_pytorch_computes(make, channels, slope, biased, interpreted):
    torch.manual_seed(channels)
    plain = drawn(make()).double()
    own = copy.deepcopy(plain).float().to(interpreted)
    x = 3 + 2 * torch.randn(3, channels, 18, 21, dtype=torch.float64)
    bias = torch.randn(channels, dtype=torch.float64) if biased else torch.zeros(channels).double()
    g = torch.randn_like(x)
    x_own, bias_own = (last(x).float().to(interpreted), bias.float().to(interpreted))
    for t in (x, bias, x_own, bias_own):
        t.requires_grad_()

    wanted = F.leaky_relu(plain(x + bias[:, None, None]), slope)
    assert kernels.fits_norm(x_own, own)
    found = kernels.normalised(x_own, bias_own if biased else None, own, slope)
    assert far(found, wanted) < NEAR
    assert found.is_contiguous(memory_format=torch.channels_last)

    wanted.backward(g)
    found.backward(g.float().to(interpreted))
    assert far(x_own.grad, x.grad) < 10 * NEAR
    assert far(own.weight.grad, plain.weight.grad) < NEAR
    assert far(own.bias.grad, plain.bias.grad) < NEAR
    if biased and isinstance(plain, nn.GroupNorm):
        assert far(bias_own.grad, bias.grad) < 10 * NEAR
    if isinstance(plain, nn.BatchNorm2d):
        assert far(own.running_mean, plain.running_mean) < NEAR
        assert far(own.running_var, plain.running_var) < NEAR
        assert int(own.num_batches_tracked) == 1
        if biased:  # the mean takes the bias away again: theory says zero, PyTorch a rounding error
            assert not bias_own.grad.any()


@pytest.mark.parametrize("channels", [16, 20, 96])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no-bias"])
def test_running_statistics_are_used_where_nobody_wants_a_gradient(channels, biased, interpreted):
    torch.manual_seed(channels)
    plain = drawn(nn.BatchNorm2d(channels)).double().eval()
    nn.init.normal_(plain.running_mean)
    nn.init.uniform_(plain.running_var, 0.5, 2.0)
    own = copy.deepcopy(plain).float().to(interpreted)
    x = torch.randn(3, channels, 18, 21, dtype=torch.float64)
    bias = torch.randn(channels, dtype=torch.float64) if biased else torch.zeros(channels).double()
    x_own, bias_own = last(x).float().to(interpreted), bias.float().to(interpreted)
    assert not kernels.fits_norm(x_own, own), "gradients are PyTorch's"
    with torch.no_grad():
        assert kernels.fits_norm(x_own, own)
        found = kernels.normalised(x_own, bias_own if biased else None, own, 0.01)
        assert far(found, F.leaky_relu(plain(x + bias[:, None, None]), 0.01)) < NEAR
    assert int(own.num_batches_tracked) == 0


def test_a_large_mean_does_not_drown_the_deviations(interpreted):
    """Sums of squares less the squared mean would have nothing left of these."""
    x = (1e4 + torch.randn(2, 16, 20, 20, dtype=torch.float64)).float()
    own = nn.GroupNorm(8, 16).to(interpreted)
    wanted = F.relu(F.group_norm(x.double(), 8))
    assert far(kernels.normalised(last(x).to(interpreted), None, own, 0.0), wanted) < 1e-2


@pytest.mark.parametrize(
    ("norm", "x", "why"),
    [
        (nn.GroupNorm(8, 16), torch.ones(1, 16, 4, 4), "channels first"),
        (nn.GroupNorm(8, 16), last(torch.ones(1, 16, 4, 4)).double(), "double precision"),
        (nn.GroupNorm(1, 3), last(torch.ones(1, 3, 4, 4)), "a group of three channels"),
        (nn.GroupNorm(8, 16, affine=False), last(torch.ones(1, 16, 4, 4)), "no weights"),
        (nn.BatchNorm2d(16).eval(), last(torch.ones(1, 16, 4, 4)), "running statistics"),
        (nn.BatchNorm2d(16, momentum=None), last(torch.ones(1, 16, 4, 4)), "a mean over all steps"),
        (nn.BatchNorm2d(16, track_running_stats=False), last(torch.ones(1, 16, 4, 4)), "untracked"),
        (nn.InstanceNorm2d(16), last(torch.ones(1, 16, 4, 4)), "another normalisation"),
        (nn.GroupNorm(8, 16), last(torch.ones(0, 16, 4, 4)), "no images"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_does_not_fit_is_left_to_pytorch(norm, x, why):
    assert not kernels.fits_norm(x, norm), why


@pytest.mark.parametrize("momentum", [1.0, 1])
def test_statistics_that_are_replaced_keep_nothing_of_the_old(momentum, interpreted):
    """`old + momentum * (new - old)` would round to the steps of the old."""
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(16, momentum=momentum)
    plain.running_mean.fill_(1e8)
    plain.running_var.fill_(1e8)
    own = copy.deepcopy(plain).to(interpreted)
    x = torch.randn(2, 16, 8, 8)
    plain(x)
    kernels.normalised(last(x).to(interpreted), None, own, 0.0)
    assert far(own.running_mean, plain.running_mean) < NEAR
    assert far(own.running_var, plain.running_var) < NEAR


def test_a_step_makes_no_gradient_for_what_nobody_used(interpreted, monkeypatch):
    from consilia.kernels.norm import Normalised

    given, backward = [], Normalised.backward
    monkeypatch.setattr(
        Normalised, "backward", lambda ctx, *d: given.append(d) or backward(ctx, *d)
    )
    x = last(torch.randn(1, 16, 8, 8, device=interpreted)).requires_grad_()
    kernels.normalised(x, None, nn.GroupNorm(8, 16).to(interpreted), 0.0).sum().backward()
    assert [each is None for each in given[0]] == [False, True]
    assert x.grad.shape == x.shape


class Swallowed(torch.autograd.Function):
    """The same numbers; no gradient comes back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return None


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no-bias"])
def test_where_no_gradient_comes_none_goes_on(biased, interpreted):
    norm = nn.GroupNorm(8, 16).to(interpreted)
    x = last(torch.randn(1, 16, 8, 8, device=interpreted)).requires_grad_()
    bias = torch.randn(16, device=interpreted).requires_grad_() if biased else None
    Swallowed.apply(kernels.normalised(x, bias, norm, 0.0)).sum().backward()
    given = [x, norm.weight, norm.bias, *([bias] if biased else [])]
    assert [each.grad for each in given] == [None] * len(given)


def test_a_second_derivative_is_refused_and_not_wrong(interpreted):
    x = last(torch.randn(1, 16, 8, 8, device=interpreted)).requires_grad_()
    y = kernels.normalised(x, None, nn.GroupNorm(8, 16).to(interpreted), 0.0)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
