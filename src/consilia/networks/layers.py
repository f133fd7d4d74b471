"""Layers that can run on kernels of our own; with `fused` off they are PyTorch's, to the bit."""

from __future__ import annotations

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


def fuse(network: nn.Module) -> nn.Module:
    """Let a network's layers run fused."""
    for module in network.modules():
        if isinstance(module, Convolution | Chain):
            module.fused = True
    return network


def _slope(active: nn.Module) -> float | None:
    if isinstance(active, nn.LeakyReLU):
        return float(active.negative_slope)
    return 0.0 if isinstance(active, nn.ReLU) else None


def _listened(layers: list[nn.Module]) -> bool:
    """Return whether somebody wants to see what passes between layers (`training/taps.py`)."""
    return any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
