"""Between the levels of a U-Net: the largest of four pixels going down, bilinear enlargement going up.

PyTorch enlarges, copies what it has enlarged beside the other map, and adds gradients up atomically. Here the
enlarged map is written where it belongs, and gradients are gathered, so that they are the same in every run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Numbers that a program sees at a time, and the most channels among them.
NUMBERS, CHANNELS, WARPS = 2048, 64, 4
#: So many pixels of an enlarged row can reach one of the small row, at most (doubled, three rows or more).
REACH = 5


@triton.jit
def _largest(x, y, pixels, h, w, C, BP: tl.constexpr, BC: tl.constexpr):
    """Store the largest of each two by two pixels; what is not a number wins."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    here = (p < pixels)[:, None] & (c < C)[None, :]
    corner = (p // w) * 4 * w + 2 * (p % w)
    at = x + corner[:, None] * C + c[None, :]
    best = tl.load(at, mask=here, other=0.0).to(tl.float32)
    for step in tl.static_range(1, 4):
        v = tl.load(at + ((step // 2) * 2 * w + step % 2) * C, mask=here, other=0.0).to(tl.float32)
        best = tl.where((v > best) | (v != v), v, best)
    tl.store(y + p[:, None] * C + c[None, :], best, mask=here)


@triton.jit
def _to_largest(x, dy, dx, pixels, h, w, C, BP: tl.constexpr, BC: tl.constexpr):
    """Store each gradient where the largest was, and zero beside it; the first one wins a tie."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    here = (p < pixels)[:, None] & (c < C)[None, :]
    corner = ((p // w) * 4 * w + 2 * (p % w))[:, None] * C + c[None, :]
    best = tl.load(x + corner, mask=here, other=0.0).to(tl.float32)
    winner = tl.zeros((BP, BC), tl.int32)
    for step in tl.static_range(1, 4):
        v = tl.load(x + corner + ((step // 2) * 2 * w + step % 2) * C, mask=here, other=0.0)
        v = v.to(tl.float32)
        wins = (v > best) | (v != v)
        best = tl.where(wins, v, best)
        winner = tl.where(wins, step, winner)
    d = tl.load(dy + p[:, None] * C + c[None, :], mask=here, other=0.0)
    for step in tl.static_range(4):
        at = dx + corner + ((step // 2) * 2 * w + step % 2) * C
        tl.store(at, tl.where(winner == step, d, 0.0), mask=here)


@triton.jit
def _join(
    skip, below, y, pixels, H, W, h, w, down, across, S, B,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Store a program's pixels of `skip`, or of `below` enlarged, where they lie in the joined map."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = p < pixels
    skips = tl.cdiv(S, BC)
    if tl.program_id(1) < skips:
        here = known[:, None] & (c < S)[None, :]
        kept = tl.load(skip + p[:, None] * S + c[None, :], mask=here, other=0.0)
        tl.store(y + p[:, None] * (S + B) + c[None, :], kept, mask=here)
    else:
        c = c - skips * BC
        here = known[:, None] & (c < B)[None, :]
        image = p // (H * W)
        r, q = ((p // W) % H).to(tl.float32) * down, (p % W).to(tl.float32) * across
        top, left = r.to(tl.int32), q.to(tl.int32)
        low, right = r - top.to(tl.float32), q - left.to(tl.float32)
        bottom, next_ = tl.minimum(top + 1, h - 1), tl.minimum(left + 1, w - 1)
        upper, lower = (image * h + top) * w, (image * h + bottom) * w
        a = tl.load(below + (upper + left)[:, None] * B + c[None, :], mask=here, other=0.0)
        b = tl.load(below + (upper + next_)[:, None] * B + c[None, :], mask=here, other=0.0)
        above = a.to(tl.float32) * (1 - right)[:, None] + b.to(tl.float32) * right[:, None]
        a = tl.load(below + (lower + left)[:, None] * B + c[None, :], mask=here, other=0.0)
        b = tl.load(below + (lower + next_)[:, None] * B + c[None, :], mask=here, other=0.0)
        under = a.to(tl.float32) * (1 - right)[:, None] + b.to(tl.float32) * right[:, None]
        v = above * (1 - low)[:, None] + under * low[:, None]
        tl.store(y + p[:, None] * (S + B) + (S + c)[None, :], v, mask=here)


@triton.jit
def _first(i, many, few):
    """Return the first pixel of the enlarged row that lies after pixel `i - 1` of the small one."""
    return tl.where(i > 0, (tl.maximum(i - 1, 0) * (many - 1)) // (few - 1) + 1, 0)


@triton.jit
def _share(o, i, many, few, scale):
    """Return how much of pixel `i` of the small row is in pixel `o` of the enlarged one."""
    at = o.to(tl.float32) * scale
    start = at.to(tl.int32)
    rest = at - start.to(tl.float32)
    share = tl.where(start == i, 1 - rest, 0.0)
    share += tl.where(tl.minimum(start + 1, few - 1) == i, rest, 0.0)
    return tl.where(o < many, share, 0.0)


@triton.jit
def _part(
    dy, dbelow, pixels, H, W, h, w, down, across, S, B,
    REACH: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gather the gradient of `below` from the joined map's."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = p < pixels
    image, i, j = p // (h * w), (p // w) % h, p % w
    first_row, first_column = _first(i, H, h), _first(j, W, w)
    total = tl.zeros((BP, BC), tl.float32)
    for a in tl.static_range(REACH):
        row = first_row + a
        of_row = _share(row, i, H, h, down)
        for b in tl.static_range(REACH):
            column = first_column + b
            share = of_row * _share(column, j, W, w, across)
            here = (known & (share > 0))[:, None] & (c < B)[None, :]
            at = dy + ((image * H + row) * W + column)[:, None] * (S + B) + (S + c)[None, :]
            total += share[:, None] * tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(dbelow + p[:, None] * B + c[None, :], total, mask=known[:, None] & (c < B)[None, :])


def _block(channels: int) -> dict[str, int]:
    """Return how many pixels and channels a program sees."""
    columns = min(CHANNELS, int(triton.next_power_of_2(channels)))
    return {"BP": NUMBERS // columns, "BC": columns, "num_warps": WARPS}


def _empty(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    return torch.empty(
        (len(like), channels, height, width),
        dtype=like.dtype, device=like.device, memory_format=torch.channels_last,
    )  # fmt: skip


class Halved(torch.autograd.Function):
    """The largest of each two by two pixels of a feature map with channels last and even sides."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return the smaller map."""
        images, channels, height, width = x.shape
        y, block = _empty(x, channels, height // 2, width // 2), _block(channels)
        pixels = y.numel() // channels
        grid = (triton.cdiv(pixels, block["BP"]), triton.cdiv(channels, block["BC"]))
        _largest[grid](x, y, pixels, height // 2, width // 2, channels, **block)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep the map."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient of the map."""
        (x,) = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        images, channels, height, width = dy.shape
        dx, block, pixels = torch.empty_like(x), _block(channels), dy.numel() // channels
        grid = (triton.cdiv(pixels, block["BP"]), triton.cdiv(channels, block["BC"]))
        _to_largest[grid](x, dy, dx, pixels, height, width, channels, **block)
        return dx


class Joined(torch.autograd.Function):
    """A map, and beside it a smaller one enlarged to its size; both with channels last."""

    @staticmethod
    def forward(skip: Tensor, below: Tensor) -> Tensor:
        """Return both in one map."""
        (height, width), (h, w) = skip.shape[-2:], below.shape[-2:]
        s, b = skip.shape[1], below.shape[1]
        y, block = _empty(skip, s + b, height, width), _block(max(s, b))
        pixels = len(skip) * height * width
        columns = sum(triton.cdiv(each, block["BC"]) for each in (s, b))
        scales = (h - 1) / (height - 1), (w - 1) / (width - 1)
        _join[triton.cdiv(pixels, block["BP"]), columns](
            skip, below, y, pixels, height, width, h, w, *scales, s, b, **block
        )
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the sizes."""
        ctx.skip, ctx.below = (each.shape for each in inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of both."""
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        _, s, height, width = ctx.skip
        images, b, h, w = ctx.below
        dbelow = None
        if ctx.needs_input_grad[1]:
            dbelow, block, pixels = _empty(dy, b, h, w), _block(b), images * h * w
            scales = (h - 1) / (height - 1), (w - 1) / (width - 1)
            _part[triton.cdiv(pixels, block["BP"]), triton.cdiv(b, block["BC"])](
                dy, dbelow, pixels, height, width, h, w, *scales, s, b, REACH=REACH, **block
            )
        return dy[:, :s] if ctx.needs_input_grad[0] else None, dbelow
