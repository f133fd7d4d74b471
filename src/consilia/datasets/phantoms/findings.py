"""phantom-findings: six findings that may occur together on chest-like radiographs.

Each finding is faint and has a double that is none: ribs crossing look like nodules, breast shadows
like effusions, vessels like bands of atelectasis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import UInt8
from numpy.random import Generator

from consilia.datasets.phantoms.canvas import (
    Blob,
    Examination,
    Plane,
    axes,
    blend,
    cover,
    draw_blob,
    star,
    texture,
    vessels,
    wave,
)
from consilia.datasets.phantoms.scanner import Scanner
from consilia.datasets.phantoms.study import (
    Diagnosis,
    Phantom,
    Site,
    classified,
    co_occurring,
    drawn_card,
)

SITES = {
    "kyoto": Site(
        120,
        40,
        Scanner(blur=(0.015, 0.015), noise=0.02),
        habit=0.3,
        prevalence=(0.35, 0.25, 0.2, 0.2, 0.15, 0.12),
    ),
    "lagos": Site(
        120,
        40,
        Scanner(blur=(0.03, 0.03), contrast=0.75, gamma=0.8, bias=0.12, noise=0.03),
        zoom=1.1,
        habit=0.7,
        prevalence=(0.3, 0.3, 0.25, 0.15, 0.25, 0.15),
    ),
    "malmo": Site(
        120,
        40,
        Scanner(blur=(0.01, 0.01), contrast=1.3, gamma=1.2, lines=0.015, noise=0.03),
        zoom=0.95,
        habit=0.5,
        prevalence=(0.2, 0.2, 0.3, 0.3, 0.12, 0.2),
    ),
    "natal": Site(
        120,
        40,
        Scanner(blur=(0.025, 0.02), inverted=True, bias=0.15, vignette=0.2, noise=0.04),
        zoom=0.9,
        habit=0.9,
        prevalence=(0.25, 0.35, 0.15, 0.25, 0.2, 0.1),
    ),
}

#: How strongly the diaphragm is vaulted.
ARCH = 1.1


@dataclass(frozen=True)
class Lung:
    """One lung as a finding sees it.

    Attributes:
        side: -1 for the lung at the left edge of the film, 1 for the other.
        blob: Its outline above the diaphragm.
        inside: How much of each pixel belongs to it.
        base: Height of the diaphragm.
    """

    side: int
    blob: Blob
    inside: Plane
    base: float


Paint = Callable[[Generator, Plane, Lung], Plane]


def draw(
    findings: Mapping[str, Paint],
    rng: Generator,
    diagnosis: Diagnosis,
    site: Site,
    views: int,
    size: int,
) -> Examination:
    """Return the radiographs of one patient, each with every finding of the diagnosis."""
    films = [_film(findings, rng, diagnosis, site, size) for _ in range(views)]
    return classified(films, diagnosis)


def _film(
    findings: Mapping[str, Paint], rng: Generator, diagnosis: Diagnosis, site: Site, size: int
) -> UInt8[np.ndarray, "1 h w"]:
    lungs = _lungs(rng, site, size)
    scene = _thorax(rng, lungs, site, size)
    for paint, has in zip(findings.values(), diagnosis, strict=True):
        if has:
            scene = paint(rng, scene, lungs[rng.integers(2)])
    return site.scanner.drifted(rng).acquire(scene[None], rng)


def _lungs(rng: Generator, site: Site, size: int) -> tuple[Lung, Lung]:
    down, across = axes(size)
    tilt, shift = rng.normal(0, 0.05), rng.normal(0, 0.04, 2)
    left, right = (
        draw_blob(
            rng,
            shift[0],
            shift[1] + side * site.zoom * rng.uniform(0.4, 0.46),
            site.zoom * rng.uniform(0.5, 0.56),
            aspect=rng.uniform(0.42, 0.5),
            angle=tilt - side * 0.08,
            roughness=0.02,
        )
        for side in (-1, 1)
    )
    lungs = []
    for side, blob in ((-1, left), (1, right)):
        base = 0.5 * site.zoom + rng.normal(0, 0.05) - 0.04 * (side < 0)
        dome = base - 0.06 + ARCH * (across - blob.x) ** 2
        inside = cover(blob.depth(size), 0.04) * cover(dome - down, 0.03)
        lungs.append(Lung(side, blob, inside, base))
    return lungs[0], lungs[1]


def _thorax(rng: Generator, lungs: tuple[Lung, Lung], site: Site, size: int) -> Plane:
    """Return the chest of a healthy patient; `habit` moves from slim to stout."""
    down, across = axes(size)
    body = 0.62 + 0.12 * site.habit - 0.12 * np.abs(across) + 0.02 * texture(rng, size, 0.2)
    scene = blend(body, 0.85, 0.6 * np.exp(-((across / 0.12) ** 2)))  # spine
    air = 0.24 + 0.06 * site.habit + 0.03 * texture(rng, size, 0.15)
    for lung in lungs:
        scene = blend(scene, air, lung.inside)
        hilum = (lung.blob.y - 0.02, lung.blob.x - lung.side * 0.22)
        outwards = rng.uniform(-1, 1, 5) + (np.pi if lung.side < 0 else 0)
        bronchi = vessels(rng, size, star(rng, hilum, outwards), 0.03, length=0.5)
        scene = scene + 0.12 * lung.inside * bronchi
        scene = scene + rng.uniform(0, 0.1) * lung.inside * cover(down - 0.15, 0.12)  # breast
    heart = draw_blob(
        rng,
        0.3 * site.zoom,
        0.1 * site.zoom,
        rng.uniform(0.26, 0.36) * site.zoom,
        aspect=1.35,
        angle=0.6,
        roughness=0.06,
    )
    scene = blend(scene, 0.72, 0.9 * cover(heart.depth(size), 0.07))
    return np.asarray(scene + _ribs(rng, size, site.zoom))


def _ribs(rng: Generator, size: int, zoom: float) -> Plane:
    down, across = axes(size)
    pitch, phase = 0.2 * zoom, rng.uniform(0, 1)
    arch = down + 0.35 * np.abs(across) - 0.5 * across**2
    ridge = np.cos(2 * np.pi * (arch / pitch + phase))
    strength = rng.uniform(0.03, 0.07)
    return np.asarray(strength * np.maximum(ridge, 0) * cover(0.9 * zoom - np.abs(across), 0.05))


def somewhere(rng: Generator, lung: Lung, reach: float = 0.6) -> tuple[float, float]:
    """Return a place in the lung, away from its border."""
    return (
        lung.blob.y + reach * 0.6 * rng.uniform(-1, 0.8),
        lung.blob.x + reach * 0.3 * rng.uniform(-1, 1),
    )


def _infiltration(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    size = scene.shape[-1]
    area = draw_blob(rng, *somewhere(rng, lung), rng.uniform(0.25, 0.4), roughness=0.1)
    patches = cover(texture(rng, size, 0.06), 0.6) * cover(area.depth(size), 0.2)
    return np.asarray(scene + rng.uniform(0.14, 0.3) * patches * lung.inside)


def _effusion(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    down, across = axes(scene.shape[-1])
    outwards = lung.side * (across - lung.blob.x)
    surface = lung.base - rng.uniform(0.02, 0.2) - 0.45 * np.maximum(outwards, 0)
    return blend(scene, 0.68, rng.uniform(0.6, 0.9) * cover(down - surface, 0.03) * lung.inside)


def _atelectasis(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    down, across = axes(scene.shape[-1])
    y, x = somewhere(rng, lung)
    slope = rng.normal(0, 0.35)
    for step in range(rng.integers(1, 4)):
        away = down - (y + 0.11 * step + 0.15) - slope * (across - x)
        band = np.exp(-((away / 0.03) ** 2)) * np.exp(-(((across - x) / 0.25) ** 2))
        scene = scene + rng.uniform(0.12, 0.25) * band * lung.inside
    raised = lung.base - rng.uniform(0.08, 0.2) + ARCH * (across - lung.blob.x) ** 2
    return blend(scene, 0.66, cover(down - raised, 0.03) * lung.inside)


def _nodule(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    for _ in range(rng.integers(1, 4)):
        place = somewhere(rng, lung, reach=0.8)
        nodule = draw_blob(rng, *place, rng.uniform(0.05, 0.1), roughness=0.08)
        opacity = cover(nodule.depth(scene.shape[-1]), 0.15)
        scene = scene + rng.uniform(0.14, 0.28) * opacity * (0.3 + 0.7 * lung.inside)
    return scene


def _consolidation(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    size = scene.shape[-1]
    place = somewhere(rng, lung)
    lobe = draw_blob(
        rng, *place, rng.uniform(0.16, 0.3), aspect=rng.uniform(0.8, 1.6), roughness=0.12
    )
    bronchi = vessels(rng, size, star(rng, place, 3), 0.025, length=0.25)
    density = rng.uniform(0.2, 0.36) * (1 - 0.7 * bronchi)
    return np.asarray(scene + density * cover(lobe.depth(size), 0.08) * lung.inside)


def _pneumothorax(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    size = scene.shape[-1]
    down, across = axes(size)
    outwards = lung.side * (across - lung.blob.x)
    edge = outwards - 0.5 * (down - lung.blob.y) - rng.uniform(0.2, 0.34) + 0.015 * wave(rng, size)
    free = cover(edge, 0.02) * lung.inside
    scene = blend(scene, scene.min() + 0.03, rng.uniform(0.35, 0.7) * free)
    return np.asarray(scene + rng.uniform(0.08, 0.18) * np.exp(-((edge / 0.02) ** 2)) * lung.inside)


FINDINGS: dict[str, Paint] = {
    "infiltration": _infiltration,
    "effusion": _effusion,
    "atelectasis": _atelectasis,
    "nodule": _nodule,
    "consolidation": _consolidation,
    "pneumothorax": _pneumothorax,
}

FINDINGS_PHANTOM = Phantom(
    drawn_card(
        "phantom-findings",
        "Six findings on chest-like radiographs",
        "classification",
        tuple(FINDINGS),
        SITES,
    ),
    "classification",
    SITES,
    co_occurring,
    partial(draw, FINDINGS),
    exclusive=False,
    common_test=160,
    returning=True,
)
