"""3x3 convolutions between few channels at high resolution.

cuDNN's kernels are made for many channels: between 16 of them its weight gradients take ten times as long as
their memory traffic. Here the three pixels of a row that a kernel's row covers are one run of memory with
channels last, so a convolution is three products of matrices, one for each row of the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

#: The most channels on either side for which weight gradients pay, and the most weights of a pixel's
#: neighbour for which all pays.
FEW, FEWEST = 64, 16 * 32
#: The most channels of either side that a program sees in a weight gradient.
BLOCK = 32
#: Pixels that a program sees at a time, in a weight gradient fewer; among how many programs that is parted.
PIXELS, FEWER, PARTS, WARPS, STAGES = 64, 32, 264, 4, 3
#: Columns of parts that a program sums.
COLUMNS = 64


@triton.jit
def _convolve(
    x, weight, bias, y, pixels, by_out, by_tap, by_in,
    H, W, CI: tl.constexpr, CO: tl.constexpr,
    FLIP: tl.constexpr, BIASED: tl.constexpr,
    J: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Store the sums over a program's pixels; flipped, with in and out exchanged, it is the gradient."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    row, column = (p // W) % H, p % W
    j, o = tl.arange(0, J), tl.arange(0, BO)
    tap, i = j // CI, j % CI
    across = column[:, None] + tap[None, :] - 1
    inside = (j < 3 * CI)[None, :] & (p < pixels)[:, None] & (across >= 0) & (across < W)
    out = tl.zeros((BP, BO), tl.float32)
    for r in tl.static_range(3):
        there = inside & ((row + r - 1 >= 0) & (row + r - 1 < H))[:, None]
        v = tl.load(x + (p + (r - 1) * W)[:, None] * CI + (j - CI)[None, :], mask=there, other=0.0)
        t = r * 3 + tap
        if FLIP:
            t = 8 - t
        at = weight + o[None, :] * by_out + t[:, None] * by_tap + i[:, None] * by_in
        k = tl.load(at, mask=(j < 3 * CI)[:, None] & (o < CO)[None, :], other=0.0)
        out = tl.dot(v, k, out)
    if BIASED:
        out += tl.load(bias + o, mask=o < CO, other=0.0)[None, :]
    here = (p < pixels)[:, None] & (o < CO)[None, :]
    tl.store(y + p[:, None] * CO + o[None, :], out, mask=here)


@triton.jit
def _weigh(
    x, dy, part, pixels, per, H, W, CI: tl.constexpr, CO: tl.constexpr,
    BI: tl.constexpr, J: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the weights of a block of channels from a program's pixels."""
    blocks = tl.cdiv(CI, BI)
    begin = (tl.program_id(1) % blocks) * BI
    j, o = tl.arange(0, J), (tl.program_id(1) // blocks) * BO + tl.arange(0, BO)
    tap, i = j // BI - 1, begin + j % BI
    mine = (j < 3 * BI) & (i < CI)
    top = tl.zeros((BO, J), tl.float32)
    middle = tl.zeros((BO, J), tl.float32)
    bottom = tl.zeros((BO, J), tl.float32)
    for step in range(per):
        p = (tl.program_id(0) * per + step) * BP + tl.arange(0, BP)
        row, across = (p // W) % H, (p % W)[:, None] + tap[None, :]
        given = (o < CO)[:, None] & (p < pixels)[None, :]
        d = tl.load(dy + p[None, :] * CO + o[:, None], mask=given, other=0.0)
        here = mine[None, :] & (across >= 0) & (across < W) & (p < pixels)[:, None]
        above, below = here & (row > 0)[:, None], here & (row < H - 1)[:, None]
        at = x + p[:, None] * CI + (tap * CI + i)[None, :]
        top = tl.dot(d, tl.load(at - W * CI, mask=above, other=0.0), top)
        middle = tl.dot(d, tl.load(at, mask=here, other=0.0), middle)
        bottom = tl.dot(d, tl.load(at + W * CI, mask=below, other=0.0), bottom)
    at = part + (tl.program_id(0) * CO + o[:, None]) * 9 * CI + ((tap + 1) * CI + i)[None, :]
    kept = (o < CO)[:, None] & mine[None, :]
    tl.store(at, top, mask=kept)
    tl.store(at + 3 * CI, middle, mask=kept)
    tl.store(at + 6 * CI, bottom, mask=kept)


@triton.jit
def _add(part, total, parts, many, PARTS: tl.constexpr, BC: tl.constexpr):
    """Store the sums over parts of a program's columns."""
    c, i = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, PARTS)
    here = (i < parts)[:, None] & (c < many)[None, :]
    v = tl.load(part + i[:, None] * many + c[None, :], mask=here, other=0.0)
    tl.store(total + c, tl.sum(v, 0), mask=c < many)


def _padded(channels: int) -> int:
    return max(16, int(triton.next_power_of_2(channels)))


def convolved(x: Tensor, w: Tensor, bias: Tensor | None, *, flip: bool = False) -> Tensor:
    """Return the convolution, or, flipped, the gradient that comes back through it."""
    if w.shape[0] * w.shape[1] > FEWEST:
        return (F.conv_transpose2d if flip else F.conv2d)(x, w, bias, padding=1)
    images, inside, height, width = x.shape
    o, i = (1, 0) if flip else (0, 1)
    out = w.shape[o]
    y = torch.empty(
        (images, out, height, width),
        dtype=x.dtype, device=x.device, memory_format=torch.channels_last,
    )  # fmt: skip
    pixels = images * height * width
    block = PIXELS if inside > 4 else 2 * PIXELS
    _convolve[(triton.cdiv(pixels, block),)](
        x, w, w if bias is None else bias, y, pixels, w.stride(o), w.stride(3), w.stride(i),
        H=height, W=width, CI=inside, CO=out, FLIP=flip, BIASED=bias is not None,
        J=_padded(3 * inside), BO=_padded(out), BP=block, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return y


def weighed(x: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of the weights."""
    images, inside, height, width = x.shape
    out, pixels = dy.shape[1], images * height * width
    own, their = min(inside, BLOCK), min(_padded(out), BLOCK)
    blocks = triton.cdiv(inside, own) * triton.cdiv(out, their)
    per = triton.cdiv(pixels, triton.cdiv(PARTS, blocks) * FEWER)
    parts = triton.cdiv(pixels, per * FEWER)
    part = x.new_empty(parts, out, 3, 3, inside)
    _weigh[parts, blocks](
        x, dy, part, pixels, per, height, width, CI=inside, CO=out,
        BI=own, J=_padded(3 * own), BO=their, BP=FEWER, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    total, many = part.new_empty(part.shape[1:]), part[0].numel()
    _add[(triton.cdiv(many, COLUMNS),)](
        part, total, parts, many, PARTS=_padded(parts), BC=COLUMNS, num_warps=WARPS
    )
    return total.permute(0, 3, 1, 2)


class Convolved(torch.autograd.Function):
    """A 3x3 convolution with a margin of one, of a feature map with channels last."""

    @staticmethod
    def forward(
        x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i 3 3"], bias: Tensor | None
    ) -> Tensor:
        """Return the sums."""
        return convolved(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the gradients need."""
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that are asked for."""
        x, weight = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        asked = ctx.needs_input_grad
        return (
            convolved(dy, weight, None, flip=True) if asked[0] else None,
            weighed(x, dy) if asked[1] else None,
            dy.sum((0, 2, 3)) if asked[2] else None,
        )
