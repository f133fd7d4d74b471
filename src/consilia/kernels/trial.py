"""A trial before a run relies on the kernels: each computes once, and PyTorch has to come to the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilia import kernels

#: How far a result may be from PyTorch's in double precision, relative to its length: where factors or
#: results are rounded, as in convolutions and in bfloat16, and elsewhere.
ROUNDED, EXACT = 1e-2, 1e-3
#: Feature maps so small that they cost nothing, with sides like those that are trained.
LARGE, SMALL = (2, 16, 16, 32), (2, 16, 8, 16)
SLOPE = 0.01


@dataclass(frozen=True)
class _Task:
    """What kernels compute of a layer and feature maps, what PyTorch does, and how far that may be."""

    name: str
    layer: nn.Module
    own: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    most: float
    sizes: tuple[tuple[int, ...], ...] = (LARGE,)


@cache
def trial(device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
    """Return why the kernels fail on a card, or `None` where they compute what PyTorch does.

    Triton needs a C compiler besides its own, a driver that knows what it compiles for, and room on disk.
    """
    try:
        for task in _tasks(EXACT if dtype == torch.float32 else ROUNDED):
            far = _distance(task, device, dtype)
            if not far <= task.most:  # nor is what is not a number
                return f"{task.name} differs from PyTorch's by {far:.1g} of its length"
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a kernel's error may come late
    except Exception as error:  # whatever it is, PyTorch's kernels can do the work
        return f"one failed ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})"
    return None


def _tasks(most: float) -> tuple[_Task, ...]:
    """Return what takes every kernel, with weights that are not those which layers start from."""
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        conv = nn.Conv2d(16, 16, 3, padding=1)
    group, batch = nn.GroupNorm(8, 16), nn.BatchNorm2d(16)
    group.register_parameter("before", nn.Parameter(torch.zeros(16)))  # a convolution's bias
    for parameter in (p for layer in (conv, group, batch) for p in layer.parameters()):
        parameter.data = _drawn(parameter.shape, draw)
    settled = copy.deepcopy(batch).eval()
    settled.running_mean = _drawn((16,), draw)
    settled.running_var = _drawn((16,), draw).square() + 0.5
    return (
        _Task(
            "the convolution", conv,
            lambda layer, x: kernels.convolved(x.float(), layer, layer.bias),
            lambda layer, x: layer(x), ROUNDED,
        ),
        _Task(
            "group norm", group,
            lambda layer, x: kernels.normalised(x, layer.before, layer, SLOPE),
            lambda layer, x: F.leaky_relu(layer(x + layer.before[:, None, None]), SLOPE), most,
        ),
        *(
            _Task(
                name, layer,
                lambda layer, x: kernels.normalised(x, None, layer, SLOPE),
                lambda layer, x: F.leaky_relu(layer(x), SLOPE), most,
            )
            for name, layer in (("batch norm", batch), ("batch norm in evaluation", settled))
        ),
        _Task(
            "halving", nn.Identity(),
            lambda layer, x: kernels.halved(x), lambda layer, x: F.max_pool2d(x, 2), most,
        ),
        _Task(
            "joining", nn.Identity(),
            lambda layer, skip, below: kernels.joined(skip, below), _joined, most, (LARGE, SMALL),
        ),
    )  # fmt: skip


def _joined(layer: nn.Module, skip: Tensor, below: Tensor) -> Tensor:
    below = F.interpolate(below, size=skip.shape[-2:], mode="bilinear", align_corners=True)
    return torch.cat((skip, below), 1)


def _drawn(size: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Return random numbers that every type of number holds exactly."""
    return torch.randn(size, generator=draw).bfloat16().float()


def _distance(task: _Task, device: torch.device, dtype: torch.dtype) -> float:
    """Return how far results, gradients and statistics are from PyTorch's: the farthest of them."""
    found = _computed(task.own, task, device, dtype)
    wanted = _computed(task.plain, task, torch.device("cpu"), torch.float64)
    apart = [
        (own - plain).norm() / plain.norm().clamp(min=1e-12)
        for own, plain in zip(found, wanted, strict=True)
    ]
    return float(torch.stack(apart).max())


def _computed(
    compute: Callable[..., Tensor], task: _Task, device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    """Return, in double precision, what is computed, the gradients of all that goes in, and statistics."""
    draw = torch.Generator().manual_seed(1)
    layer = copy.deepcopy(task.layer).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch
    if dtype == torch.float64:
        layer = layer.double()
    maps = [
        _drawn(size, draw)
        .to(device, dtype, memory_format=torch.channels_last)
        .requires_grad_(layer.training)
        for size in task.sizes
    ]
    with torch.set_grad_enabled(layer.training):
        y = compute(layer, *maps)
    out = [y, *layer.buffers()]
    if layer.training:
        slope = _drawn(y.shape, draw).to(y)
        out += torch.autograd.grad(y, (*maps, *layer.parameters()), slope)
    return [each.detach().cpu().double() for each in out]
