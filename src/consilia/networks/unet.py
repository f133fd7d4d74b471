"""One U-Net with named shapes: those of FedMix, FedIA and FedLPPA, whose parameter counts it matches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from consilia.networks.layers import Chain, Convolution, Halve, Join


@dataclass(frozen=True)
class UNetShape:
    """Everything in which the papers' U-Nets differ.

    Attributes:
        channels: Width of each level, top to bottom.
        norm: Normalisation after each convolution; group norm has two channels per group.
        bias: Whether 3x3 convolutions have a bias.
        leaky: Leaky instead of plain ReLU.
        dropout: Rate inside each encoder block, top to bottom; empty for none.
        project: Up path: project the lower level to the skip's width before enlarging (FedLPPA);
            else enlarge first and narrow inside the block (FedMix, FedIA).
        head: Kernel size of the last convolution.
        xavier: Xavier-uniform convolutions with zero bias instead of PyTorch's own start.
    """

    channels: tuple[int, ...]
    norm: Literal["group", "batch"]
    bias: bool
    leaky: bool = False
    dropout: tuple[float, ...] = ()
    project: bool = False
    head: Literal[1, 3] = 1
    xavier: bool = False


_WIDE = (64, 128, 256, 512, 512)
_SLIM = (16, 32, 64, 128, 256)

UNETS: dict[str, UNetShape] = {
    "unet-fedmix": UNetShape(_WIDE, "group", bias=True, xavier=True),
    "unet-fedia": UNetShape(_WIDE, "batch", bias=False),
    "unet-fedlppa": UNetShape(
        _SLIM,
        "batch",
        bias=True,
        leaky=True,
        dropout=(0.05, 0.1, 0.2, 0.3, 0.5),
        project=True,
        head=3,
    ),
    # FedMix's recipe at FedLPPA's width: the laptop-sized default of the phantom studies.
    "unet-small": UNetShape(_SLIM, "group", bias=True, xavier=True),
    "unet-tiny": UNetShape((4, 8), "group", bias=True),
}


def normalisation(width: int, shape: UNetShape) -> nn.Module:
    """Return the normalisation layer of a shape, for so many channels (an odd number: one group)."""
    if shape.norm == "batch":
        return nn.BatchNorm2d(width)
    return nn.GroupNorm(1 if width % 2 else width // 2, width)


class ConvBlock(Chain):
    """Two 3x3 convolutions, each with normalisation and activation."""

    def __init__(
        self, inside: int, middle: int, out: int, shape: UNetShape, dropout: float = 0.0
    ) -> None:
        layers: list[nn.Module] = []
        for a, b in ((inside, middle), (middle, out)):
            active = nn.LeakyReLU(inplace=True) if shape.leaky else nn.ReLU(inplace=True)
            convolution = Convolution(a, b, 3, padding=1, bias=shape.bias)
            layers += [convolution, normalisation(b, shape), active]
        if dropout:
            layers.insert(3, nn.Dropout(dropout))
        super().__init__(*layers)


class UpBlock(nn.Module):
    """Enlarge, join the skip connection, convolve."""

    def __init__(self, below: int, skip: int, out: int, shape: UNetShape) -> None:
        super().__init__()
        self.project = nn.Conv2d(below, skip, 1) if shape.project else nn.Identity()
        self.join = Join()
        joined = 2 * skip if shape.project else below + skip
        middle = out if shape.project else joined // 2
        self.block = ConvBlock(joined, middle, out, shape)

    def forward(self, below: Tensor, skip: Tensor) -> Tensor:
        """Return the features at the skip's resolution."""
        return self.block(self.join(skip, self.project(below)))  # type: ignore[no-any-return]  # nn.Module


class Encoder(nn.Module):
    """The way down: features of every level, top to bottom."""

    def __init__(self, inputs: int, shape: UNetShape) -> None:
        super().__init__()
        rates = shape.dropout or (0.0,) * len(shape.channels)
        widths = (inputs, *shape.channels)
        self.halve = Halve()
        self.levels = nn.ModuleList(
            ConvBlock(a, b, b, shape, rate)
            for a, b, rate in zip(widths[:-1], widths[1:], rates, strict=True)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the features of each level."""
        features = []
        for depth, level in enumerate(self.levels):
            x = level(self.halve(x) if depth else x)
            features.append(x)
        return features


class Decoder(nn.Module):
    """The way up, from the bottleneck to full resolution."""

    def __init__(self, shape: UNetShape, bottleneck: int | None = None) -> None:
        super().__init__()
        *skips, bottom = shape.channels
        ups, below = [], bottleneck or bottom
        for depth, skip in enumerate(reversed(skips)):
            top = depth == len(skips) - 1
            out = skip if shape.project or top else skips[-2 - depth]
            ups.append(UpBlock(below, skip, out, shape))
            below = out
        self.ups = nn.ModuleList(ups)
        self.width = below

    def forward(self, features: list[Tensor]) -> Tensor:
        """Return the features before the head."""
        *skips, x = features
        for up, skip in zip(self.ups, reversed(skips), strict=True):
            x = up(x, skip)
        return x


class UNet(nn.Module):
    """Encoder, decoder and head; the output has no activation.

    Args:
        shape: Its widths and layers.
        inputs: Channels of an image.
        outputs: Planes of scores.
        bottleneck: Channels the decoder begins with, where that is not the encoder's last width.
    """

    def __init__(
        self, shape: UNetShape, inputs: int, outputs: int, bottleneck: int | None = None
    ) -> None:
        super().__init__()
        self.encoder = Encoder(inputs, shape)
        self.decoder = Decoder(shape, bottleneck)
        self.head = Convolution(self.decoder.width, outputs, shape.head, padding=shape.head // 2)
        if shape.xavier:
            self.apply(xavier)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores before softmax or sigmoid."""
        return self.head(self.decoder(self.encoder(x)))  # type: ignore[no-any-return]  # nn.Module


def xavier(module: nn.Module) -> None:
    """Draw a convolution's start as Xavier does, with zero bias; leave other layers alone."""
    if isinstance(module, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
