"""FedLPPA's network: a U-Net whose bottleneck learns from prompts, and which has two decoders."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from consilia.networks.dual import Branch
from consilia.networks.layers import Chain, Convolution
from consilia.networks.unet import ConvBlock, UNet, UNetShape, normalisation

Attention = Literal["dual", "spatial", "channel", "none"]
LEVELS = 3  # of sparsity: sparse, medium, dense


@dataclass(frozen=True)
class Parts:
    """Which parts of the network there are; the paper's ablations leave some out.

    Attributes:
        fusion: The tri-prompt dual-attention fusion (TDF) with its MLP.
        auxiliary: The second decoder.
        universal: The universal knowledge prompt (UKP).
        distribution: The data distribution prompt (DDP).
        sparsity: The annotation sparsity prompt (ASP).
        attention: Which attention enhances the fused features.
    """

    fusion: bool = True
    auxiliary: bool = True
    universal: bool = True
    distribution: bool = True
    sparsity: bool = True
    attention: Attention = "dual"


class Prompts(nn.Module):
    """What the features are told about the site they come from.

    Whose row and which sparsity apply is set by `place`. Both are kept as shares, so that an image of
    no known site gets the mean over the sites, and no number leaves the device.
    """

    universal: nn.Parameter | None
    distribution: nn.Parameter | None
    rows: Tensor
    levels: Tensor

    def __init__(self, sites: int, size: tuple[int, int], parts: Parts) -> None:
        super().__init__()
        self.universal = nn.Parameter(torch.rand(1, *size)) if parts.universal else None
        self.distribution = nn.Parameter(torch.rand(sites, *size)) if parts.distribution else None
        self.size = size
        self.channels = parts.universal + parts.distribution + LEVELS * parts.sparsity
        self.sparsity = parts.sparsity
        self.register_buffer("rows", torch.full((sites,), 1 / sites), persistent=False)
        self.register_buffer("levels", torch.full((LEVELS,), 1 / LEVELS), persistent=False)

    def place(self, rows: Tensor, levels: Tensor) -> None:
        """Choose the row of the distribution prompt and the sparsity, as shares that sum to one."""
        self.rows.copy_(rows)
        self.levels.copy_(levels)

    def forward(self) -> Tensor:
        """Return the local prompt p_i, `(channels, h, w)`."""
        planes = [self.rows.new_empty(0, *self.size)]
        if self.universal is not None:
            planes.append(self.universal)
        if self.distribution is not None:
            planes.append((self.rows[:, None, None] * self.distribution).sum(0, keepdim=True))
        if self.sparsity:
            planes.append(self.levels[:, None, None].expand(-1, *self.size))
        return torch.cat(planes)


class SpatialAttention(nn.Module):
    """Each position reads from the positions that resemble it (Eq. 3)."""

    def __init__(self, width: int, shape: UNetShape) -> None:
        super().__init__()
        narrow = max(1, width // 8)

        def look(kernel: tuple[int, int]) -> Chain:
            margin = (kernel[0] // 2, kernel[1] // 2)
            return Chain(
                Convolution(width, narrow, kernel, padding=margin),
                normalisation(narrow, shape),
                nn.ReLU(inplace=True),
            )

        self.query, self.key = look((1, 3)), look((3, 1))
        self.value = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features that each position gathers, of the shape of `x`."""
        query, key, value = (
            self.query(x).flatten(2),
            self.key(x).flatten(2),
            self.value(x).flatten(2),
        )
        share: Tensor = (query.transpose(1, 2) @ key).softmax(-1)  # (b, positions, keys)
        gathered: Tensor = value @ share.transpose(1, 2)
        return gathered.view_as(x)


def channel_attention(x: Tensor) -> Tensor:
    """Return what each channel gathers from those *unlike* it: the authors' code, not Eq. 4."""
    flat = x.flatten(2)  # (b, channels, positions)
    alike = flat @ flat.transpose(1, 2)
    share = (alike.amax(-1, keepdim=True) - alike).softmax(-1)
    return (share @ flat).view_as(x)


class Fusion(nn.Module):
    """Tri-prompt dual-attention fusion (TDF): prompts and features become context (Eqs. 3-6)."""

    def __init__(
        self, sites: int, size: tuple[int, int], shape: UNetShape, parts: Parts, dropout: float
    ) -> None:
        super().__init__()
        bottom = shape.channels[-1]
        width = bottom // 4
        self.prompts = Prompts(sites, size, parts)
        self.fuse = ConvBlock(
            bottom + self.prompts.channels, bottom // 2, width, shape, dropout=dropout
        )
        both = parts.attention == "dual"
        self.spatial = (
            SpatialAttention(width, shape) if both or parts.attention == "spatial" else None
        )
        self.of_space = nn.Parameter(torch.zeros(())) if self.spatial is not None else None
        channel = both or parts.attention == "channel"
        self.of_channels = nn.Parameter(torch.zeros(())) if channel else None
        self.channels = bottom + width

    def forward(self, features: Tensor) -> Tensor:
        """Return the features with their context beside them: F and then F-tilde."""
        prompt = self.prompts().expand(len(features), -1, -1, -1)
        fused = self.fuse(torch.cat((features, prompt), 1))
        enhanced = []
        if self.spatial is not None and self.of_space is not None:
            enhanced.append(self.of_space * self.spatial(fused) + fused)
        if self.of_channels is not None:
            enhanced.append(self.of_channels * channel_attention(fused) + fused)
        context = sum(enhanced) if enhanced else fused
        return torch.cat((features, context), 1)


class Modulation(Chain):
    """The MLP on each position, then the mean over positions: one factor per feature map."""

    def __init__(self, inside: int, out: int, shape: UNetShape) -> None:
        bottom = shape.channels[-1]
        layers: list[nn.Module] = []
        widths = (inside, bottom // 2, bottom // 4)
        for a, b in pairwise(widths):
            layers += [Convolution(a, b, 1), normalisation(b, shape), nn.LeakyReLU(inplace=True)]
        super().__init__(*layers, nn.Conv2d(widths[-1], out, 1), nn.AdaptiveAvgPool2d(1))


class FedLPPANet(UNet):
    """Encoder, fusion with prompts, a main decoder that the context modulates, and a second decoder.

    With no part at all it is the plain U-Net, tensor for tensor.

    Args:
        shape: Widths and layers of the U-Net around it.
        inputs: Channels of an image.
        outputs: Classes, background among them.
        sites: Rows of the distribution prompt.
        size: Height and width of the images.
        parts: Which parts there are.
        dropout: Rate inside the fusion.
    """

    def __init__(
        self,
        shape: UNetShape,
        inputs: int,
        outputs: int,
        sites: int,
        size: tuple[int, int],
        parts: Parts,
        dropout: float = 0.5,
    ) -> None:
        bottom = shape.channels[-1]
        wide = bottom + bottom // 4 if parts.fusion else bottom
        super().__init__(shape, inputs, outputs, wide)
        halvings = len(shape.channels) - 1
        small = (size[0] >> halvings, size[1] >> halvings)
        self.fusion = Fusion(sites, small, shape, parts, dropout) if parts.fusion else None
        self.mlp = Modulation(wide, self.decoder.width, shape) if parts.fusion else None
        self.aux = Branch(shape, outputs, wide) if parts.auxiliary else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the main decoder's scores."""
        return self._main(self.context(x))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the scores of the main and of the auxiliary decoder, where there is one."""
        features = self.context(x)
        return self._main(features), None if self.aux is None else self.aux(features)

    def context(self, x: Tensor) -> list[Tensor]:
        """Return the features of each level, the last one with the context beside it."""
        features: list[Tensor] = self.encoder(x)
        if self.fusion is not None:
            features[-1] = self.fusion(features[-1])
        return features

    def _main(self, features: list[Tensor]) -> Tensor:
        last = self.decoder(features)
        if self.mlp is not None:
            last = last * self.mlp(features[-1])
        return self.head(last)  # type: ignore[no-any-return]  # nn.Module
