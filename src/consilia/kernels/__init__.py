"""GPU kernels of our own, for what PyTorch and cuDNN compute slowly in small networks.

Triton, which comes with PyTorch for NVIDIA cards, compiles them when they are first used. Everything here
has a plain equivalent in PyTorch, which runs wherever a kernel does not fit; that is the reference.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: What a kernel looks at together is a power of two of channels, and groups must not cross its bounds.
TOGETHER = 16
#: Offsets into a tensor are 32-bit numbers in the convolution's kernels.
MOST = 2**31


def available() -> bool:
    """Whether there is a compiler for the kernels."""
    return find_spec("triton") is not None


def fits_norm(x: Tensor, norm: nn.Module) -> bool:
    """Whether bias, normalisation and activation of this feature map can be one function."""
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if x.dtype not in (torch.float32, torch.bfloat16) or x.numel() == 0:
        return False
    if isinstance(norm, nn.GroupNorm):
        return norm.affine and TOGETHER % (norm.num_channels // norm.num_groups) == 0
    if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None:
        return False
    return norm.training and norm.momentum is not None and norm.affine


def normalised(x: Tensor, bias: Tensor | None, norm: nn.Module, slope: float) -> Tensor:
    """Return `leaky_relu(norm(x + bias), slope)`; batch norm's running statistics move on, too.

    The gradient of a bias before batch norm is exactly zero here, as in theory, and not a rounding error.
    """
    from consilia.kernels.norm import Normalised  # compiles nothing, but wants Triton

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
        and 0 < x.numel() * max(1, layer.out_channels // layer.in_channels) < MOST
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
