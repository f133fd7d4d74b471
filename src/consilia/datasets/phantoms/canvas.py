"""What every drawing is made of: coordinates, textures, irregular blobs and soft paint.

Lengths are in half image widths and positions run from -1 (top, left) to 1 (bottom, right), so that
a drawing has the same anatomy at every size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, UInt8
from numpy.random import Generator
from scipy import ndimage

Plane = Float[np.ndarray, "h w"]
Scene = Float[np.ndarray, "c h w"]
Curve = Float[np.ndarray, " w"]

#: Slowest to fastest wobble of a contour; more would be finer than a pixel at 64 px.
LOBES = np.arange(2, 7)
#: Distance between the points of a vessel; shorter than the thinnest one is wide.
STEP = 0.02


@dataclass(frozen=True)
class Examination:
    """The images one patient contributes, with their truth."""

    image: UInt8[np.ndarray, "n c h w"]
    truth: UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n k"]


@lru_cache(maxsize=16)
def axes(size: int) -> tuple[Plane, Plane]:
    """Return the vertical and the horizontal coordinate of every pixel."""
    line = (np.arange(size) + 0.5) / size * 2 - 1
    down, across = np.meshgrid(line, line, indexing="ij")
    down.flags.writeable = across.flags.writeable = False
    return down, across


def texture(rng: Generator, size: int, grain: float, stretch: float = 1.0) -> Plane:
    """Return smooth noise of mean 0 and deviation 1; `stretch` > 1 draws it out horizontally."""
    spectrum = np.fft.rfft2(rng.standard_normal((size, size)))
    noise = np.fft.irfft2(
        spectrum * _smoothing(size, grain / stretch, grain * stretch), (size, size)
    )
    return np.asarray(noise / (noise.std() + 1e-9))


@lru_cache(maxsize=128)
def _smoothing(size: int, vertical: float, horizontal: float) -> Plane:
    """Return a Gaussian filter in the frequency domain, without the mean."""
    down = np.fft.fftfreq(size)[:, None] * vertical * size / 2
    across = np.fft.rfftfreq(size) * horizontal * size / 2
    gain = np.exp(-2 * np.pi**2 * (down**2 + across**2))
    gain[0, 0] = 0
    return np.asarray(gain)


def wave(rng: Generator, size: int, grain: float = 0.5) -> Curve:
    """Return a smooth curve over the columns, of mean 0 and deviation 1."""
    noise = ndimage.gaussian_filter1d(rng.standard_normal(size), grain * size / 2, mode="reflect")
    return np.asarray((noise - noise.mean()) / (noise.std() + 1e-9))


def cover(depth: Plane, edge: float) -> Plane:
    """Return how much of each pixel lies inside (0 to 1), where `depth` > 0 is inside."""
    return np.asarray(1 / (1 + np.exp(-np.clip(depth / edge, -30, 30))))


def blend(scene: np.ndarray, paint: np.ndarray | float, opacity: np.ndarray) -> np.ndarray:
    """Return the scene with paint laid over it."""
    return np.asarray(scene + (paint - scene) * opacity)


def tinted(color: tuple[float, float, float]) -> Float[np.ndarray, "3 1 1"]:
    """Return a color that broadcasts over a scene."""
    return np.array(color)[:, None, None]


@dataclass(frozen=True)
class Blob:
    """An ellipse with a wobbling contour."""

    y: float
    x: float
    radius: float
    aspect: float = 1.0
    angle: float = 0.0
    wobble: tuple[tuple[float, float], ...] = ()

    def depth(self, size: int) -> Plane:
        """Return 1 at the center, 0 on the contour and less outside."""
        away, reach = _contour(self.y, self.x, self.aspect, self.angle, self.wobble, size)
        return np.asarray(1 - away / (self.radius * reach))


@lru_cache(maxsize=24)  # slices of a volume draw the same few blobs, each with a radius of its own
def _contour(
    y: float,
    x: float,
    aspect: float,
    angle: float,
    wobble: tuple[tuple[float, float], ...],
    size: int,
) -> tuple[Plane, Plane]:
    """Return each pixel's distance from a blob's center, and how far its contour reaches there."""
    down, across = axes(size)
    dy, dx = down - y, across - x
    cos, sin = np.cos(angle), np.sin(angle)
    along, aside = dx * cos + dy * sin, dy * cos - dx * sin
    stretch = np.sqrt(aspect)
    along, aside = along / stretch, aside * stretch
    away = np.hypot(along, aside)
    direction = (along + 1j * aside) / np.maximum(away, 1e-9)
    turns = direction ** LOBES[0]
    reach = np.ones_like(away)
    for strength, phase in wobble:
        reach += strength * (turns * np.exp(1j * phase)).real  # strength · cos(lobe · θ + phase)
        turns *= direction
    reach = np.maximum(reach, 0.1)
    away.flags.writeable = reach.flags.writeable = False
    return away, reach


def draw_blob(
    rng: Generator,
    y: float,
    x: float,
    radius: float,
    *,
    aspect: float = 1.0,
    angle: float = 0.0,
    roughness: float = 0.0,
) -> Blob:
    """Return a blob whose contour wobbles at random by about `roughness` of its radius."""
    strengths = rng.normal(0, roughness, len(LOBES)) * 2 / LOBES
    phases = rng.uniform(0, 2 * np.pi, len(LOBES))
    wobble = tuple(zip(strengths.tolist(), phases.tolist(), strict=True))
    return Blob(y, x, radius, aspect, angle, wobble)


def vessels(
    rng: Generator, size: int, roots: list[tuple[float, float]], width: float, length: float = 1.8
) -> Plane:
    """Return the cover of curved, tapering lines that lead away from the middle of their roots."""
    line = axes(size)[1][0]
    center = np.mean(roots, axis=0)
    steps = round(length / STEP)
    thickness = np.zeros((size, size))
    for y, x in roots:
        heading = np.arctan2(y - center[0], x - center[1])
        bends = heading + np.cumsum(rng.normal(0, 0.06, steps))
        ys, xs = y + np.cumsum(np.sin(bends)) * STEP, x + np.cumsum(np.cos(bends)) * STEP
        sigma = width * np.linspace(1, 0.4, steps)[:, None]
        rows = np.exp(-(((line - ys[:, None]) / sigma) ** 2) / 2)  # (steps, h)
        columns = np.exp(-(((line - xs[:, None]) / sigma) ** 2) / 2)  # (steps, w)
        overlap = sigma * np.sqrt(2 * np.pi) / STEP  # of the points along a straight line
        np.maximum(thickness, ((rows / overlap).T @ columns).clip(0, 1), out=thickness)
    return thickness


def star(
    rng: Generator, center: tuple[float, float], bearings: Curve | int
) -> list[tuple[float, float]]:
    """Return roots close around a center, in the given directions or in so many random ones."""
    if isinstance(bearings, int):
        bearings = rng.uniform(0, 2 * np.pi, bearings)
    y, x = center
    return [(y + 0.02 * np.sin(b), x + 0.02 * np.cos(b)) for b in bearings.tolist()]
