"""What a site's machine does to a scene: the shift between sites that is not anatomy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import UInt8
from numpy.random import Generator
from scipy import ndimage

from consilia.datasets.phantoms.canvas import Scene, axes, texture


@dataclass(frozen=True)
class Scanner:
    """The settings of one machine, in the order in which they act on a scene.

    Attributes:
        speckle: Deviation of multiplicative, coherent noise; the blur gives it its grain.
        blur: Point spread, vertical and horizontal, in half image widths.
        bias: Strength of a slow multiplicative unevenness.
        vignette: How much darker the corners are.
        contrast: Slope around mid-gray.
        level: Brightness added.
        gamma: Exponent of the display curve; below 1 lightens the dark parts.
        tint: Gain per channel of a color image.
        inverted: Whether bright is shown dark, as old radiographs are.
        fan: How much of the lower corners a curved probe leaves black.
        lines: Strength of horizontal line artefacts.
        noise: Deviation of additive noise.
        drift: How much the settings change from one examination to the next (relative).
    """

    speckle: float = 0.0
    blur: tuple[float, float] = (0.0, 0.0)
    bias: float = 0.0
    vignette: float = 0.0
    contrast: float = 1.0
    level: float = 0.0
    gamma: float = 1.0
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    inverted: bool = False
    fan: float = 0.0
    lines: float = 0.0
    noise: float = 0.02
    drift: float = 0.12

    def drifted(self, rng: Generator) -> Scanner:
        """Return the scanner as it stands on the day of one examination."""
        wobble = np.exp(rng.normal(0, self.drift, 5))
        tint = np.asarray(self.tint) * np.exp(rng.normal(0, self.drift / 3, 3))
        return replace(
            self,
            speckle=self.speckle * float(wobble[0]),
            blur=(self.blur[0] * float(wobble[1]), self.blur[1] * float(wobble[1])),
            contrast=self.contrast * float(wobble[2]),
            gamma=self.gamma * float(wobble[3]),
            noise=self.noise * float(wobble[4]),
            level=self.level + float(rng.normal(0, self.drift / 3)),
            tint=(float(tint[0]), float(tint[1]), float(tint[2])),
        )

    def acquire(self, scene: Scene, rng: Generator) -> UInt8[np.ndarray, "c h w"]:
        """Return the picture this scanner takes of a scene with values around 0 to 1."""
        size = scene.shape[-1]
        image = scene.clip(0, 1.2)
        if self.speckle:
            image = image * rng.gamma(self.speckle**-2, self.speckle**2, (size, size))
        sigmas = [0.0, *(sigma * size / 2 for sigma in self.blur)]
        image = ndimage.gaussian_filter(image, sigmas, mode="nearest")
        image = image * self._shading(rng, size)
        image = (image - 0.5) * self.contrast + 0.5 + self.level
        image = image.clip(0, 1) ** self.gamma
        if len(image) == 3:
            image = image * np.asarray(self.tint)[:, None, None]
        if self.inverted:
            image = 1 - image
        image = image + self.lines * rng.standard_normal((size, 1))
        image = image + self.noise * rng.standard_normal(image.shape)
        if self.fan:
            image = image * _fan(size, self.fan)
        return np.asarray((image * 255).clip(0, 255).round().astype(np.uint8))

    def _shading(self, rng: Generator, size: int) -> np.ndarray:
        down, across = axes(size)
        uneven = np.exp(self.bias * texture(rng, size, grain=0.7))
        return np.asarray(uneven * (1 - self.vignette * (down**2 + across**2) / 2))


def _fan(size: int, opening: float) -> np.ndarray:
    """Return 1 inside the field of a curved probe above the image and 0 beside it."""
    down, across = axes(size)
    height = 3.2 - 2 * opening
    away = np.hypot(across, down + height)
    beside = np.abs(np.arctan2(across, down + height))
    return np.asarray((beside < np.arctan2(1.0, height - 0.35)) & (away < height + 1.0)).astype(
        float
    )
