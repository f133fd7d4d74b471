"""Normalisation with what stands around it, in two passes over a feature map each way.

A convolution's bias, group or batch norm and a (leaky) ReLU are one function of the convolution's output:
PyTorch makes it in three kernels and as many gradients, and copies between layouts for group norm. Here one
pass sums and one writes. A feature map lies with channels last and is seen as images of rows of channels;
to batch norm all images are one, and each channel is a group.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: Channels that a program sees at a time, of few and of many, and from how many on they are many.
NARROW, WIDE, MANY = 16, 32, 64
#: Rows that a program sees at a time, and how many programs fill a card.
ROWS, PROGRAMS, WARPS = 256, 528, 4


@triton.jit
def _sum_squares(x, part, rows, per, C, BP: tl.constexpr, BC: tl.constexpr):
    """Store mean and squared deviations of a program's rows, for each channel."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    base = image.to(tl.int64) * rows
    count, mean, square = 0.0, tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for start in range(0, per, BP):
        row = chunk * per + start + tl.arange(0, BP)
        here = (row < rows)[:, None] & (c < C)[None, :]
        v = tl.load(x + (base + row)[:, None] * C + c[None, :], mask=here, other=0.0)
        v = v.to(tl.float32)
        n = tl.maximum(tl.minimum(rows - chunk * per - start, BP), 0).to(tl.float32)
        own = tl.sum(v, 0) / tl.maximum(n, 1.0)
        off = tl.where(here, v - own[None, :], 0.0)
        both = tl.maximum(count + n, 1.0)
        apart = own - mean
        square += tl.sum(off * off, 0) + apart * apart * (count * n / both)
        mean += apart * (n / both)
        count += n
    at = part + (image * tl.num_programs(1) + chunk) * 2 * C + c
    tl.store(at, mean, mask=c < C)
    tl.store(at + C, square, mask=c < C)


@triton.jit
def _over_group(v, BC: tl.constexpr, SIZE: tl.constexpr):
    """Return the sum over each channel's group, for each channel."""
    if SIZE == 1:
        return v
    summed = tl.sum(tl.reshape(v, (BC // SIZE, SIZE)), 1)
    return tl.reshape(tl.broadcast_to(summed[:, None], (BC // SIZE, SIZE)), (BC,))


@triton.jit
def _apply(
    x, part, bias, weight, shift, y, table, running_mean, running_var, rows, per, chunks,
    momentum, eps, slope,
    C, SIZE: tl.constexpr, BIASED: tl.constexpr, RUNNING: tl.constexpr,
    CHUNKS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Normalise, scale, shift and rectify a program's rows."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    known = c < C
    i = tl.arange(0, CHUNKS)
    n = tl.maximum(tl.minimum(rows - i * per, per), 0).to(tl.float32)[:, None]
    at = part + (image * chunks + i)[:, None] * 2 * C + c[None, :]
    there = (i < chunks)[:, None] & known[None, :]
    means = tl.load(at, mask=there, other=0.0)
    squares = tl.load(at + C, mask=there, other=0.0)
    total = tl.full((), rows, tl.float32)  # a single row is a constant to Triton
    mean = tl.sum(means * n, 0) / total
    apart = means - mean[None, :]
    square = tl.sum(squares + n * apart * apart, 0)
    added = tl.zeros((BC,), tl.float32)
    if BIASED:
        added = tl.load(bias + c, mask=known, other=0.0)
    mean += added
    middle = _over_group(mean, BC, SIZE) / SIZE
    square = _over_group(square + total * (mean - middle) * (mean - middle), BC, SIZE)
    scale = tl.rsqrt(square / (total * SIZE) + eps)
    offset = (added - middle) * scale
    if chunk == 0:
        own = table + image * 3 * C + c
        tl.store(own, scale, mask=known)
        tl.store(own + C, offset, mask=known)
        tl.store(own + 2 * C, (mean - middle) * scale * total, mask=known)
        if RUNNING:
            old_mean = tl.load(running_mean + c, mask=known, other=0.0)
            old_var = tl.load(running_var + c, mask=known, other=0.0)
            var = square / tl.maximum(total - 1.0, 1.0)
            tl.store(running_mean + c, (1 - momentum) * old_mean + momentum * middle, mask=known)
            tl.store(running_var + c, (1 - momentum) * old_var + momentum * var, mask=known)
    gain = tl.load(weight + c, mask=known, other=0.0)
    a = gain * scale
    b = gain * offset + tl.load(shift + c, mask=known, other=0.0)
    base = image.to(tl.int64) * rows
    for start in range(0, per, BP):
        row = chunk * per + start + tl.arange(0, BP)
        here = (row < rows)[:, None] & known[None, :]
        where = (base + row)[:, None] * C + c[None, :]
        v = tl.load(x + where, mask=here, other=0.0).to(tl.float32) * a[None, :] + b[None, :]
        tl.store(y + where, tl.where(v > 0, v, v * slope), mask=here)


@triton.jit
def _sum_gradients(
    x, dy, weight, shift, table, part, rows, per, slope,
    C, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Store the sums of a program's gradients, and of these times what was normalised."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    known = c < C
    scale = tl.load(table + image * 3 * C + c, mask=known, other=0.0)
    offset = tl.load(table + image * 3 * C + C + c, mask=known, other=0.0)
    gain = tl.load(weight + c, mask=known, other=0.0)
    a, b = gain * scale, gain * offset + tl.load(shift + c, mask=known, other=0.0)
    base = image.to(tl.int64) * rows
    plain, times = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for start in range(0, per, BP):
        row = chunk * per + start + tl.arange(0, BP)
        here = (row < rows)[:, None] & known[None, :]
        where = (base + row)[:, None] * C + c[None, :]
        v = tl.load(x + where, mask=here, other=0.0).to(tl.float32)
        d = tl.load(dy + where, mask=here, other=0.0).to(tl.float32)
        d = tl.where(v * a[None, :] + b[None, :] > 0, d, d * slope)
        plain += tl.sum(d, 0)
        times += tl.sum(d * (v * scale[None, :] + offset[None, :]), 0)
    at = part + (image * tl.num_programs(1) + chunk) * 2 * C + c
    tl.store(at, plain, mask=known)
    tl.store(at + C, times, mask=known)


@triton.jit
def _gradients(
    x, dy, weight, shift, table, part, dx, learned, rows, per, chunks, slope,
    C, SIZE: tl.constexpr, CHUNKS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a program's rows, and once an image those of weight, shift and bias."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    known = c < C
    i = tl.arange(0, CHUNKS)
    at = part + (image * chunks + i)[:, None] * 2 * C + c[None, :]
    there = (i < chunks)[:, None] & known[None, :]
    plain = tl.sum(tl.load(at, mask=there, other=0.0), 0)
    times = tl.sum(tl.load(at + C, mask=there, other=0.0), 0)
    scale = tl.load(table + image * 3 * C + c, mask=known, other=0.0)
    offset = tl.load(table + image * 3 * C + C + c, mask=known, other=0.0)
    gain = tl.load(weight + c, mask=known, other=0.0)
    total = tl.full((), rows, tl.float32)  # a single row is a constant to Triton
    one = _over_group(gain * plain, BC, SIZE) / (total * SIZE)
    two = _over_group(gain * times, BC, SIZE) / (total * SIZE)
    if chunk == 0:
        own = learned + image * 3 * C + c
        tl.store(own, times, mask=known)
        tl.store(own + C, plain, mask=known)
        added = tl.zeros((BC,), tl.float32)
        if SIZE > 1:  # alone in its group a channel's mean takes its bias away
            summed = tl.load(table + image * 3 * C + 2 * C + c, mask=known, other=0.0)
            added = scale * (gain * plain - total * one - two * summed)
        tl.store(own + 2 * C, added, mask=known)
    a, b = gain * scale, gain * offset + tl.load(shift + c, mask=known, other=0.0)
    base = image.to(tl.int64) * rows
    for start in range(0, per, BP):
        row = chunk * per + start + tl.arange(0, BP)
        here = (row < rows)[:, None] & known[None, :]
        where = (base + row)[:, None] * C + c[None, :]
        v = tl.load(x + where, mask=here, other=0.0).to(tl.float32)
        d = tl.load(dy + where, mask=here, other=0.0).to(tl.float32)
        d = tl.where(v * a[None, :] + b[None, :] > 0, d, d * slope)
        v = v * scale[None, :] + offset[None, :]
        d = a[None, :] * d - scale[None, :] * (one[None, :] + two[None, :] * v)
        tl.store(dx + where, d, mask=here)


@triton.jit
def _scale(
    x, mean, var, bias, weight, shift, y, rows, eps, slope,
    C, BIASED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Normalise by statistics that are given, scale, shift and rectify a program's rows."""
    row = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    middle = tl.load(mean + c, mask=known, other=0.0)
    if BIASED:
        middle -= tl.load(bias + c, mask=known, other=0.0)
    a = tl.rsqrt(tl.load(var + c, mask=known, other=1.0) + eps)
    a *= tl.load(weight + c, mask=known, other=0.0)
    b = tl.load(shift + c, mask=known, other=0.0) - middle * a
    here = (row < rows)[:, None] & known[None, :]
    where = row[:, None] * C + c[None, :]
    v = tl.load(x + where, mask=here, other=0.0).to(tl.float32) * a[None, :] + b[None, :]
    tl.store(y + where, tl.where(v > 0, v, v * slope), mask=here)


def scaled(x: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d, slope: float) -> Tensor:
    """Return `leaky_relu(norm(x + bias), slope)` by the norm's running statistics; no gradients."""
    grid, y = _Grid(x, 1, batch=True), torch.empty_like(x)
    programs = (triton.cdiv(grid.rows, ROWS), grid.programs[2])
    _scale[programs](
        x, norm.running_mean, norm.running_var, y if bias is None else bias, norm.weight,
        norm.bias, y, grid.rows, norm.eps, slope, BIASED=bias is not None, **grid.fixed,
    )  # fmt: skip
    return y


class _Grid:
    """How a feature map is parted among programs."""

    def __init__(self, x: Tensor, size: int, batch: bool) -> None:
        images, self.channels, height, width = x.shape
        self.images = 1 if batch else images
        self.rows = x.numel() // (self.images * self.channels)
        together = NARROW if self.channels < MANY else WIDE
        columns = triton.cdiv(self.channels, together)
        wanted = max(1, PROGRAMS // (self.images * columns))
        self.per = triton.cdiv(triton.cdiv(self.rows, min(wanted, 256)), ROWS) * ROWS
        self.chunks = triton.cdiv(self.rows, self.per)
        self.programs = (self.images, self.chunks, columns)
        self.fixed = {"C": self.channels, "BP": ROWS, "BC": together, "num_warps": WARPS}
        self.merged = {"SIZE": size, "CHUNKS": 16 if self.chunks <= 16 else 256}

    def sums(self, x: Tensor) -> Tensor:
        """Return room for two sums of each channel in each chunk."""
        return x.new_empty(self.images, self.chunks, 2, self.channels, dtype=torch.float32)

    def table(self, x: Tensor) -> Tensor:
        """Return room for three numbers of each channel in each image."""
        return x.new_empty(self.images, 3, self.channels, dtype=torch.float32)


class Normalised(torch.autograd.Function):
    """`act(norm(x + bias))` of a feature map with channels last; `groups = 0` is batch norm."""

    @staticmethod
    def forward(
        x: Float[Tensor, "b c h w"],
        bias: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        running: tuple[Tensor, Tensor] | None,
        momentum: float,
        eps: float,
        groups: int,
        slope: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the result, and for each image and channel scale, offset and sum of what was normalised."""
        size = x.shape[1] // groups if groups else 1
        grid = _Grid(x, size, batch=not groups)
        part, table, y = grid.sums(x), grid.table(x), torch.empty_like(x)
        _sum_squares[grid.programs](x, part, grid.rows, grid.per, **grid.fixed)
        mean, var = running or (table, table)
        _apply[grid.programs](
            x, part, table if bias is None else bias, weight, shift, y, table, mean, var,
            grid.rows, grid.per, grid.chunks, momentum, eps, slope,
            BIASED=bias is not None, RUNNING=running is not None, **grid.fixed, **grid.merged,
        )  # fmt: skip
        return y, table

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the input: what was normalised is computed again from it, so that nothing else is kept."""
        x, bias, weight, shift, *_, groups, slope = inputs
        ctx.save_for_backward(x, weight, shift, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # else each step fills the table's gradient with zeros
        ctx.biased, ctx.groups, ctx.slope = bias is not None, groups, slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of `x`, bias, weight and shift; none where the result's is none."""
        if gradients[0] is None:
            return (None,) * 9
        x, weight, shift, table = ctx.saved_tensors
        size = x.shape[1] // ctx.groups if ctx.groups else 1
        grid = _Grid(x, size, batch=not ctx.groups)
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        part, learned, dx = grid.sums(x), grid.table(x), torch.empty_like(x)
        _sum_gradients[grid.programs](
            x, dy, weight, shift, table, part, grid.rows, grid.per, ctx.slope, **grid.fixed
        )
        _gradients[grid.programs](
            x, dy, weight, shift, table, part, dx, learned, grid.rows, grid.per, grid.chunks,
            ctx.slope, **grid.fixed, **grid.merged,
        )  # fmt: skip
        dweight, dshift, dbias = learned.sum(0) if ctx.groups else learned[0]
        return dx, dbias if ctx.biased else None, dweight, dshift, None, None, None, None, None
