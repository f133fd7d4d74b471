"""phantom-lesions: many small lesions in small brain-like volumes, dealt to the sites at random.

Patients come from one pool and from several scanners, so that the shift is between patients and not
between sites. Lesions are bright, near the ventricles and 1 to 4 slices thick; cortex that is as
bright and lone bright dots outside the white matter are not lesions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from consilia.datasets.phantoms.canvas import (
    Blob,
    Examination,
    Plane,
    blend,
    cover,
    draw_blob,
    texture,
)
from consilia.datasets.phantoms.scanner import Scanner
from consilia.datasets.phantoms.study import (
    Diagnosis,
    Phantom,
    Site,
    drawn_card,
    everyone_has_everything,
)

SLICES = 8
SCANNERS = (
    Scanner(blur=(0.015, 0.015), noise=0.025, drift=0.2),
    Scanner(blur=(0.025, 0.025), bias=0.2, gamma=0.75, noise=0.04, drift=0.2),
    Scanner(blur=(0.02, 0.02), contrast=1.3, gamma=1.3, bias=0.1, noise=0.03, drift=0.2),
    Scanner(blur=(0.02, 0.035), contrast=0.75, level=0.05, lines=0.02, noise=0.03, drift=0.2),
)
#: The scanner of a site is never used: patients bring the one they were examined with.
SITES = {site: Site(8, 6, SCANNERS[0]) for site in ("graz", "hanoi", "izmir", "jaipur")}


@dataclass(frozen=True)
class Ball:
    """A blob in space: largest section, middle slice, half its height in slices, brightness."""

    section: Blob
    z: float
    half_height: float
    glow: float

    def depth(self, z: int, size: int) -> Plane | None:
        """Return the depth of its section with a slice, or `None` where it does not reach."""
        part = 1 - ((z - self.z) / self.half_height) ** 2
        if part <= 0.05:
            return None
        return replace(self.section, radius=self.section.radius * np.sqrt(part)).depth(size)


@dataclass(frozen=True)
class Head:
    """What all slices of one patient share."""

    brain: Blob
    ventricles: tuple[Blob, Blob]
    lesions: tuple[Ball, ...]
    dots: tuple[Ball, ...]
    folds: Float[np.ndarray, "h w"]


def draw(rng: Generator, diagnosis: Diagnosis, site: Site, views: int, size: int) -> Examination:
    """Return the slices of one patient's volume that meet a lesion."""
    del diagnosis, site
    machine = SCANNERS[rng.integers(len(SCANNERS))].drifted(rng)
    head = _head(rng, size)
    images, truths = [], []
    for z in range(views):
        scene, truth = _slice(rng, head, z, size)
        if truth.any():
            images.append(machine.acquire(scene[None], rng))
            truths.append(truth)
    return Examination(np.stack(images), np.stack(truths))


def _head(rng: Generator, size: int) -> Head:
    brain = draw_blob(
        rng, 0.0, 0.0, rng.uniform(0.72, 0.85), aspect=rng.uniform(0.75, 0.9), roughness=0.02
    )
    reach, slant = rng.uniform(0.14, 0.22), rng.uniform(0.15, 0.35)
    left, right = (
        draw_blob(rng, -0.02, side * 0.15, reach, aspect=0.35, angle=-side * slant, roughness=0.05)
        for side in (-1, 1)
    )
    lesions = [
        _lesion(rng, left if rng.random() < 0.5 else right) for _ in range(rng.integers(5, 13))
    ]
    # The first is large, in the middle and clear of the ventricles: no patient is left without
    # a slice, at any size.
    beside = float(np.copysign(0.36, lesions[0].section.x))
    section = replace(lesions[0].section, x=beside, radius=max(0.13, lesions[0].section.radius))
    lesions[0] = replace(lesions[0], section=section, z=(SLICES - 1) / 2, half_height=1.5)
    dots = [_dot(rng, brain) for _ in range(rng.integers(3, 9))]
    folds = texture(rng, size, 0.06)
    return Head(brain, (left, right), tuple(lesions), tuple(dots), folds)


def _lesion(rng: Generator, ventricle: Blob) -> Ball:
    bearing, away = rng.uniform(0, 2 * np.pi), rng.uniform(0.12, 0.34)
    section = draw_blob(
        rng,
        ventricle.y + 1.3 * away * np.sin(bearing),
        ventricle.x + away * np.cos(bearing),
        np.exp(rng.uniform(np.log(0.045), np.log(0.13))),
        aspect=rng.uniform(1, 1.8),
        angle=rng.uniform(0, np.pi),
        roughness=0.12,
    )
    return Ball(section, rng.uniform(0, SLICES - 1), rng.uniform(0.6, 2.0), rng.uniform(0.14, 0.34))


def _dot(rng: Generator, brain: Blob) -> Ball:
    """Return a bright dot near the cortex, where no lesion is."""
    bearing, away = rng.uniform(0, 2 * np.pi), brain.radius * rng.uniform(0.78, 0.95)
    place = (1.1 * away * np.sin(bearing), 0.9 * away * np.cos(bearing))
    section = draw_blob(rng, *place, rng.uniform(0.04, 0.09), aspect=1.5, angle=bearing)
    return Ball(section, rng.uniform(0, SLICES - 1), rng.uniform(0.6, 2.0), rng.uniform(0.14, 0.34))


def _slice(rng: Generator, head: Head, z: int, size: int) -> tuple[Plane, np.ndarray]:
    inside = head.brain.depth(size)
    taper = 1 - 0.03 * (z - SLICES / 2) ** 2 / 4
    cortex = 0.16 + 0.05 * head.folds
    scene = np.full((size, size), 0.03)
    scene = blend(scene, 0.62, np.exp(-(((inside + 0.13) / 0.04) ** 2)))  # skull
    scene = blend(scene, 0.52 + 0.03 * texture(rng, size, 0.05), cover(inside, 0.02))
    white = 0.42 + 0.02 * texture(rng, size, 0.1)
    scene = blend(scene, white, cover(inside - cortex, 0.04))
    ventricles = np.maximum(
        *(
            replace(ventricle, radius=ventricle.radius * taper).depth(size)
            for ventricle in head.ventricles
        )
    )
    caps = 0.5 * np.exp(-(((ventricles + 0.12) / 0.1) ** 2))
    scene = blend(scene, 0.58, caps)
    truth = np.zeros((size, size), dtype=np.uint8)
    for dot, depth in _met(head.dots, z, size):
        scene = blend(scene, 0.48 + dot.glow, cover(depth, 0.15))
    for lesion, depth in _met(head.lesions, z, size):
        scene = blend(scene, 0.48 + lesion.glow, cover(depth, 0.15))
        truth[depth > 0] = 1
    truth[ventricles > 0] = 0
    scene = blend(scene, 0.1, cover(ventricles, 0.08))
    return np.asarray(scene), truth


def _met(balls: tuple[Ball, ...], z: int, size: int) -> Iterator[tuple[Ball, Plane]]:
    """Yield the balls that a slice meets, with their depth in it."""
    for ball in balls:
        depth = ball.depth(z, size)
        if depth is not None:
            yield ball, depth


LABELS = ("lesion",)
LESIONS = Phantom(
    drawn_card(
        "phantom-lesions", "Many small lesions in brain-like volumes", "segmentation", LABELS, SITES
    ),
    "segmentation",
    SITES,
    everyone_has_everything,
    draw,
    slices=SLICES,
    shared_pool=True,
)
