"""Halving and enlarging between the levels of a U-Net, against PyTorch's in double precision."""

import pytest
import torch
import torch.nn.functional as F

from consilia import kernels
from tests.kernels.support import far, last

EXACT = 1e-6


def wanted(skip, below):
    """Return what PyTorch joins."""
    size = skip.shape[-2:]
    below = F.interpolate(below, size=size, mode="bilinear", align_corners=True)
    return torch.cat((skip, below), 1)


@pytest.mark.parametrize("channels", [1, 16, 20, 70])
def test_halving_is_what_pytorch_computes(channels, interpreted):
    torch.manual_seed(channels)
    x = torch.randn(
        3, channels, 6, 14
    ).relu()  # many pixels are equal: the first one has the gradient
    own = last(x).to(interpreted).requires_grad_()
    x.requires_grad_()
    g = torch.randn(3, channels, 3, 7)
    found, plain = kernels.halved(own), F.max_pool2d(x, 2)
    assert torch.equal(found.cpu(), plain)
    found.backward(g.to(interpreted))
    plain.backward(g)
    assert torch.equal(own.grad.cpu(), x.grad)


def test_halving_in_bfloat16_is_exact(interpreted):
    torch.manual_seed(0)
    x = torch.randn(2, 16, 6, 14).bfloat16()
    own = last(x).to(interpreted).requires_grad_()
    plain = x.float().requires_grad_()
    g = torch.randn(2, 16, 3, 7).bfloat16()
    found, wanted = kernels.halved(own), F.max_pool2d(plain, 2)
    assert torch.equal(found.float().cpu(), wanted)
    found.backward(g.to(interpreted))
    wanted.backward(g.float())
    assert torch.equal(own.grad.float().cpu(), plain.grad)


def test_what_is_not_a_number_is_not_hidden(interpreted):
    for place in range(4):
        x = torch.zeros(1, 16, 2, 2, device=interpreted)
        x[..., place // 2, place % 2] = torch.nan
        assert kernels.halved(last(x)).isnan().all()


@pytest.mark.parametrize(
    ("skip", "below", "size"),
    [(16, 16, (2, 3)), (32, 64, (4, 4)), (5, 3, (5, 9)), (70, 20, (3, 2)), (16, 16, (16, 24))],
    ids=str,
)
def test_joining_is_what_pytorch_computes(skip, below, size, interpreted):
    torch.manual_seed(skip)
    large = tuple(2 * side for side in size)
    pair = [torch.randn(2, skip, *large), torch.randn(2, below, *size)]
    own = [last(x).to(interpreted).requires_grad_() for x in pair]
    exact = [x.double().requires_grad_() for x in pair]
    g = torch.randn(2, skip + below, *large)
    found, plain = kernels.joined(*own), wanted(*exact)
    assert far(found, plain) < EXACT
    assert torch.equal(found[:, :skip].cpu(), pair[0])
    assert found.is_contiguous(memory_format=torch.channels_last)
    found.backward(g.to(interpreted))
    plain.backward(g.double())
    for mine, theirs in zip(own, exact, strict=True):
        assert far(mine.grad, theirs.grad) < EXACT


@pytest.mark.parametrize("few", [2, 3, 4, 5, 8, 64, 100])
def test_no_enlarged_pixel_is_left_out(few, interpreted):
    """Every gradient reaches the small map in full, however far its pixels reach."""
    skip = last(torch.zeros(1, 16, 2 * few, 2 * few, device=interpreted))
    below = last(torch.zeros(1, 16, few, few, device=interpreted)).requires_grad_()
    kernels.joined(skip, below)[:, 16:].sum().backward()
    assert float(below.grad[0, 0].double().sum()) == pytest.approx(4 * few * few, rel=1e-5)


@pytest.mark.parametrize(
    ("skip", "below"),
    [
        (last(torch.ones(1, 4, 6, 6)), last(torch.ones(1, 4, 2, 3))),
        (last(torch.ones(1, 4, 2, 4)), last(torch.ones(1, 4, 1, 2))),
        (torch.rand(1, 4, 4, 4), torch.rand(1, 4, 2, 2)),
        (last(torch.rand(1, 4, 4, 4)).double(), last(torch.rand(1, 4, 2, 2)).double()),
    ],
    ids=["not doubled", "one row", "channels first", "double"],
)
def test_joining_that_does_not_fit_is_left_to_pytorch(skip, below):
    assert torch.equal(kernels.joined(skip, below), wanted(skip, below))


def test_halving_that_does_not_fit_is_left_to_pytorch():
    for x in (last(torch.rand(1, 4, 5, 6)), torch.rand(1, 4, 6, 6)):
        assert torch.equal(kernels.halved(x), F.max_pool2d(x, 2))


@pytest.fixture
def ours(monkeypatch, interpreted):
    """Return a function that says whether kernels of our own are called; they do nothing here."""
    from consilia.kernels import sample

    def called(compute, *shapes):
        calls = []
        for name in ("Halved", "Joined"):
            monkeypatch.setattr(getattr(sample, name), "apply", lambda *maps: calls.append(maps))
        maps = [
            torch.empty(shape, device="meta", memory_format=torch.channels_last) for shape in shapes
        ]
        compute(*maps)
        return bool(calls)

    return called


def test_what_32_bits_do_not_count_is_left_to_pytorch(ours):
    """Joined, both maps have more numbers than either; enlarged, the small one has four times as many."""
    assert ours(kernels.halved, (2, 16, 2**12, 2**14 - 2))
    assert not ours(kernels.halved, (2, 16, 2**12, 2**14))
    for skip, below in ((16, 16), (1, 31), (31, 1)):
        side = 2**12
        assert ours(kernels.joined, (4, skip, side, side - 2), (4, below, side // 2, side // 2 - 1))
        assert not ours(kernels.joined, (4, skip, side, side), (4, below, side // 2, side // 2))


@pytest.mark.parametrize("what", ["halved", "joined"])
def test_a_second_derivative_is_refused_and_not_wrong(what, interpreted):
    x = last(torch.randn(1, 16, 4, 4, device=interpreted)).requires_grad_()
    below = last(torch.randn(1, 16, 2, 2, device=interpreted))
    y = kernels.halved(x) if what == "halved" else kernels.joined(x, below)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
