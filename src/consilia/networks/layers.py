"""Layers that can run on kernels of our own; with `fused` off they are PyTorch's, to the bit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilia import kernels


class Convolution(nn.Conv2d):
    """A 2D convolution; fused, one between few channels is computed by a kernel made for that."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolved feature map."""
        return kernels.convolved(x, self, self.bias) if self.fused else super().forward(x)


class Chain(nn.Sequential):
    """Layers in a row; fused, a convolution's bias, its normalisation and a ReLU are one function."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out at the end."""
        if not self.fused:
            return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]  # nn.Module
        layers = list(self)
        while layers:
            layer = layers.pop(0)
            if (
                isinstance(layer, Convolution)
                and len(layers) > 1
                and not _listened([layer, *layers[:2]])
            ):
                norm, active = layers[:2]
                slope = _slope(active)
                x = kernels.convolved(x, layer, None)
                if slope is not None and kernels.fits_norm(x, norm):
                    x = kernels.normalised(x, layer.bias, norm, slope)
                    del layers[:2]
                elif layer.bias is not None:
                    x = x + layer.bias[:, None, None]
            else:
                x = layer(x)
        return x


class Halve(nn.Module):
    """The largest of each two by two pixels."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the smaller feature map."""
        return kernels.halved(x) if self.fused else F.max_pool2d(x, 2)


class Join(nn.Module):
    """A feature map, and beside it a smaller one enlarged to its size, bilinearly from corner to corner."""

    fused = False

    def forward(self, skip: Tensor, below: Tensor) -> Tensor:
        """Return both in one feature map."""
        if self.fused:
            return kernels.joined(skip, below)
        size = skip.shape[-2:]
        below = F.interpolate(below, size=size, mode="bilinear", align_corners=True)
        return torch.cat((skip, below), 1)


_Fusing = Convolution | Chain | Halve | Join


def can_fuse(network: nn.Module) -> bool:
    """Return whether a network has layers that can run fused."""
    return any(isinstance(module, _Fusing) for module in network.modules())


def fuse(network: nn.Module) -> nn.Module:
    """Let a network's layers run fused."""
    for module in network.modules():
        if isinstance(module, _Fusing):
            module.fused = True
    return network


def _slope(active: nn.Module) -> float | None:
    if isinstance(active, nn.LeakyReLU):
        return float(active.negative_slope)
    return 0.0 if isinstance(active, nn.ReLU) else None


def _listened(layers: list[nn.Module]) -> bool:
    """Return whether somebody wants to see what passes between layers (`training/taps.py`)."""
    return any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
