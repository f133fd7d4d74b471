"""GPU kernels of our own, for what PyTorch and cuDNN compute slowly in small networks.

Triton, which comes with PyTorch for NVIDIA cards, compiles them when they are first used. Everything here
has a plain equivalent in PyTorch, which runs wherever a kernel does not fit; that is the reference.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: What a kernel looks at together is a power of two of channels, and groups must not cross its bounds.
TOGETHER = 16
#: Offsets into a tensor are 32-bit numbers in all kernels but the norm's.
MOST = 2**31
#: Compute capability of the cards on which they were measured: Hopper.
MEASURED = 9
#: What the largest kernel asks of a processor's shared memory, in bytes; `tests/kernels/hopper.py` tells.
SHARED = 106_496


def available() -> bool:
    """Whether there is a compiler for the kernels."""
    return find_spec("triton") is not None


def measured_on(device: torch.device) -> bool:
    """Whether a card is of the kind on which the kernels were measured."""
    return torch.cuda.get_device_capability(device)[0] == MEASURED


def fit_on(device: torch.device) -> bool:
    """Whether a card has the shared memory that the kernels need."""
    card: Any = torch.cuda.get_device_properties(device)
    return bool(card.shared_memory_per_block_optin >= SHARED)


def _reached(x: Tensor, channels: int) -> bool:
    """Whether 32-bit offsets reach every number of a feature map of this size with so many channels."""
    images, _, height, width = x.shape
    return images * height * width * channels < MOST


def fits_norm(x: Tensor, norm: nn.Module) -> bool:
    """Whether bias, normalisation and activation of this feature map can be one function."""
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if x.dtype not in (torch.float32, torch.bfloat16) or x.numel() == 0:
        return False
    if isinstance(norm, nn.GroupNorm):
        return norm.affine and TOGETHER % (norm.num_channels // norm.num_groups) == 0
    if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None or not norm.affine:
        return False
    return norm.momentum is not None if norm.training else not torch.is_grad_enabled()


def normalised(x: Tensor, bias: Tensor | None, norm: nn.Module, slope: float) -> Tensor:
    """Return `leaky_relu(norm(x + bias), slope)`; batch norm's running statistics move on, too.

    The gradient of a bias before batch norm is exactly zero here, as in theory, and not a rounding error.
    """
    from consilia.kernels.norm import Normalised, scaled  # compiles nothing, but wants Triton

    if isinstance(norm, nn.BatchNorm2d) and not norm.training:
        return scaled(x, bias, norm, slope)
    running, groups, momentum = None, 0, 0.0
    if isinstance(norm, nn.GroupNorm):
        groups = norm.num_groups
    elif isinstance(norm, nn.BatchNorm2d):
        running, momentum = (norm.running_mean, norm.running_var), norm.momentum or 0.0
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
    y: Tensor = Normalised.apply(  # type: ignore[no-untyped-call]  # torch
        x, bias, norm.weight, norm.bias, running, momentum, norm.eps, groups, slope
    )[0]
    return y


def fits_convolution(x: Tensor, layer: nn.Conv2d) -> bool:
    """Whether a convolution has so few channels at so high a resolution that our kernels are faster."""
    from consilia.kernels.conv import FEW

    return (
        layer.kernel_size == (3, 3)
        and layer.padding == (1, 1)
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and max(layer.in_channels, layer.out_channels) <= FEW
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled(x.device.type)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > 0
        and _reached(x, max(layer.in_channels, layer.out_channels))
    )


def convolved(x: Tensor, layer: nn.Conv2d, bias: Tensor | None) -> Tensor:
    """Return what a layer's weights make of a feature map, with this bias or none."""
    if not fits_convolution(x, layer):
        return F.conv2d(
            x, layer.weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups
        )
    from consilia.kernels.conv import Convolved

    y: Tensor = Convolved.apply(x, layer.weight, bias)  # type: ignore[no-untyped-call]  # torch
    return y


def _fits_sampling(*maps: Tensor) -> bool:
    """Whether feature maps lie as the kernels between levels read them."""
    return all(
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.dtype == maps[0].dtype
        and x.numel() > 0
        for x in maps
    )


def halved(x: Tensor) -> Tensor:
    """Return the largest of each two by two pixels."""
    even = not any(side % 2 for side in x.shape[-2:])
    if not even or not _fits_sampling(x) or not _reached(x, x.shape[1]):
        return F.max_pool2d(x, 2)
    from consilia.kernels.sample import Halved

    y: Tensor = Halved.apply(x)  # type: ignore[no-untyped-call]  # torch
    return y


def joined(skip: Tensor, below: Tensor) -> Tensor:
    """Return a feature map, and beside it a smaller one enlarged to its size."""
    small, large = below.shape[-2:], skip.shape[-2:]
    doubled = all(b == 2 * a and a > 1 for a, b in zip(small, large, strict=True))
    fit = doubled and _fits_sampling(skip, below)
    if not fit or not _reached(skip, skip.shape[1] + below.shape[1]):
        below = F.interpolate(below, size=large, mode="bilinear", align_corners=True)
        return torch.cat((skip, below), 1)
    from consilia.kernels.sample import Joined

    y: Tensor = Joined.apply(skip, below)  # type: ignore[no-untyped-call]  # torch
    return y
