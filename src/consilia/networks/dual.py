"""A U-Net with a second decoder on the same features (FedLPPA's pseudo labels under other methods)."""

from __future__ import annotations

from torch import Tensor, nn

from consilia.networks.layers import Convolution
from consilia.networks.unet import Decoder, UNet, UNetShape, xavier


class Branch(nn.Module):
    """A decoder with its head."""

    def __init__(self, shape: UNetShape, outputs: int, bottleneck: int | None = None) -> None:
        super().__init__()
        self.decoder = Decoder(shape, bottleneck)
        self.head = Convolution(self.decoder.width, outputs, shape.head, padding=shape.head // 2)
        if shape.xavier:
            self.apply(xavier)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Return scores before softmax."""
        return self.head(self.decoder(features))  # type: ignore[no-any-return]  # nn.Module


class DualUNet(UNet):
    """A U-Net whose auxiliary decoder is drawn apart from the main one; alone, the main one answers."""

    def __init__(self, shape: UNetShape, inputs: int, outputs: int) -> None:
        super().__init__(shape, inputs, outputs)
        self.aux = Branch(shape, outputs)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the main and of the auxiliary decoder."""
        features = self.encoder(x)
        return self.head(self.decoder(features)), self.aux(features)
