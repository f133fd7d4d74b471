"""Networks for image-level labels: DenseNet-121 as MONAI builds it, and a small one for laptops."""

from __future__ import annotations

from torch import Tensor, nn


class DenseNet121(nn.Module):
    """MONAI's DenseNet-121 with the last linear layer apart, as `head`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        from monai.networks.nets import DenseNet121 as MonaiDenseNet121

        body = MonaiDenseNet121(spatial_dims=2, in_channels=inputs, out_channels=outputs)
        width = body.class_layers.out.in_features
        body.class_layers.out = nn.Identity()
        self.body = body
        self.head = nn.Linear(width, outputs)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled feature vector of each image."""
        return self.body(x)  # type: ignore[no-any-return]  # nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per label, before softmax or sigmoid."""
        return self.head(self.features(x))  # type: ignore[no-any-return]  # nn.Module


class SmallCNN(nn.Module):
    """Four convolutions that halve the image, then the mean over positions: seconds on a laptop."""

    def __init__(
        self, inputs: int, outputs: int, widths: tuple[int, ...] = (16, 32, 64, 128)
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in zip((inputs, *widths[:-1]), widths, strict=True):
            layers += [
                nn.Conv2d(a, b, 3, padding=1, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2),
            ]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(widths[-1], outputs)

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled feature vector of each image."""
        return self.body(x)  # type: ignore[no-any-return]  # nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per label, before softmax or sigmoid."""
        return self.head(self.features(x))  # type: ignore[no-any-return]  # nn.Module


class Projected(nn.Module):
    """A classifier whose head reads a projection of its features, as MOON's networks do.

    Attributes:
        projection: Two linear layers, the first as wide as the features, with a ReLU between them.
    """

    def __init__(self, classifier: DenseNet121 | SmallCNN, width: int) -> None:
        super().__init__()
        features, outputs = classifier.head.in_features, classifier.head.out_features
        self.body = classifier.body
        self.projection = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width)
        )
        self.head = nn.Linear(width, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Return the projected feature vector of each image."""
        return self.projection(self.body(x))  # type: ignore[no-any-return]  # nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per label, before softmax or sigmoid."""
        return self.head(self.features(x))  # type: ignore[no-any-return]  # nn.Module
