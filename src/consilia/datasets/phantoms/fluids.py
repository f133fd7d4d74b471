"""phantom-fluids: three kinds of fluid in one OCT-like image.

Intraretinal fluid (irf) lies as dark cysts inside the retina, subretinal fluid (srf) as a dark lens
on the pigment layer, and a pigment epithelial detachment (ped) lifts that layer up. Shadows of
vessels and the dark nuclear layers are not fluid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from consilia.datasets.phantoms.canvas import (
    Blob,
    Curve,
    Examination,
    Plane,
    axes,
    blend,
    cover,
    draw_blob,
    texture,
    wave,
)
from consilia.datasets.phantoms.scanner import Scanner
from consilia.datasets.phantoms.study import Diagnosis, Phantom, Site, co_occurring, drawn_card

IRF, SRF, PED = 1, 2, 3

SITES = {
    "tartu": Site(
        48,
        20,
        Scanner(speckle=0.4, blur=(0.015, 0.02), noise=0.02),
        habit=0.3,
        prevalence=(0.65, 0.5, 0.45),
    ),
    "utrecht": Site(
        48,
        20,
        Scanner(speckle=0.6, blur=(0.02, 0.04), gamma=0.85, level=0.04, noise=0.045),
        zoom=1.15,
        habit=0.6,
        prevalence=(0.55, 0.6, 0.4),
    ),
    "vaasa": Site(
        24,
        20,
        Scanner(speckle=0.5, blur=(0.03, 0.02), bias=0.12, contrast=1.25, lines=0.02, noise=0.03),
        zoom=0.9,
        habit=0.9,
        prevalence=(0.6, 0.5, 0.6),
    ),
}


@dataclass(frozen=True)
class Dome:
    """A bump along the columns."""

    x: float
    half_width: float
    height: float

    def over(self, across: Curve) -> Curve:
        """Return its height at every column."""
        part = 1 - ((across - self.x) / self.half_width) ** 2
        return np.asarray(self.height * np.maximum(part, 0))


def draw(rng: Generator, diagnosis: Diagnosis, site: Site, views: int, size: int) -> Examination:
    """Return one scan per view through an eye with the diagnosed kinds of fluid."""
    found = diagnosis if diagnosis.any() else np.arange(len(diagnosis)) == rng.integers(3)
    drawn = [_scan(rng, found, site, size) for _ in range(views)]
    return Examination(np.stack([image for image, _ in drawn]), np.stack([t for _, t in drawn]))


def _scan(rng: Generator, found: Diagnosis, site: Site, size: int) -> tuple[np.ndarray, np.ndarray]:
    has_irf, has_srf, has_ped = (bool(has) for has in found)
    down, _ = axes(size)
    across = axes(size)[1][0]
    floor = 0.42 + 0.04 * wave(rng, size) + rng.normal(0, 0.06) + 0.15 * rng.normal() * across
    ped = _dome(rng, site, 0.34).over(across) if has_ped else np.zeros(size)
    srf = _dome(rng, site, 0.3).over(across) if has_srf else np.zeros(size)
    pigment = floor - ped
    outer = pigment - srf
    pit = 0.12 * np.exp(-(((across - rng.normal(0, 0.2)) / 0.25) ** 2))
    inner = outer - site.zoom * rng.uniform(0.5, 0.7) + pit + 0.02 * wave(rng, size)

    scene = _tissue(rng, size, inner, outer, pigment)
    scene = blend(
        scene, 0.2 + 0.04 * texture(rng, size, 0.05), _between(down, pigment + 0.06, floor)
    )
    scene = blend(scene, 0.1, _between(down, outer + 0.02, pigment - 0.03))
    truth = np.zeros((size, size), dtype=np.uint8)
    truth[(down > pigment + 0.03) & (down < floor)] = PED
    truth[(down > outer) & (down < pigment - 0.02)] = SRF
    if has_irf:
        scene = _paint_cysts(rng, scene, truth, inner, outer, site)
    for _ in range(rng.integers(0, 4)):
        scene = _paint_shadow(rng, scene, inner)
    return site.scanner.drifted(rng).acquire(scene[None], rng), truth


def _dome(rng: Generator, site: Site, tallest: float) -> Dome:
    """Return a bump; `habit` moves from flat and wide to tall and narrow."""
    height = rng.uniform(0.1, tallest) * (0.8 + 0.4 * site.habit)
    return Dome(rng.uniform(-0.6, 0.6), rng.uniform(0.3, 0.65) * (1.2 - 0.4 * site.habit), height)


def _between(down: Plane, top: Curve, bottom: Curve, edge: float = 0.015) -> Plane:
    return np.asarray(cover(down - top, edge) * cover(bottom - down, edge))


def _tissue(rng: Generator, size: int, inner: Curve, outer: Curve, pigment: Curve) -> Plane:
    """Return vitreous, retina with its bright and dark layers, pigment layer and choroid."""
    down, _ = axes(size)
    level = (down - inner) / (outer - inner)  # 0 at the inner, 1 at the outer border
    bands = 0.52 + 0.12 * np.cos(2 * np.pi * 2.2 * level) - 0.12 * level
    retina = bands + 0.04 * texture(rng, size, 0.05, stretch=2.0)
    choroid = (0.55 + 0.12 * texture(rng, size, 0.07)) * np.exp(
        -np.maximum(down - pigment, 0) / 0.45
    )
    scene = blend(np.full((size, size), 0.06), choroid, cover(down - pigment, 0.02))
    scene = blend(scene, retina, _between(down, inner, outer))
    return blend(scene, 0.88, np.exp(-(((down - pigment - 0.02) / 0.03) ** 2)))


def _paint_cysts(
    rng: Generator, scene: Plane, truth: np.ndarray, inner: Curve, outer: Curve, site: Site
) -> Plane:
    """Return the scene with a cluster of cysts, and mark them in the truth."""
    size = scene.shape[-1]
    down, across = axes(size)
    center = rng.uniform(-0.6, 0.6)
    retina = (down > inner + 0.04) & (down < outer - 0.03)
    for _ in range(rng.integers(2, 7)):
        cyst = _cyst(rng, center, inner, outer, across[0], site)
        depth = np.where(retina, cyst.depth(size), -1)
        scene = blend(scene, rng.uniform(0.06, 0.17), cover(depth, 0.1))
        truth[depth > 0] = IRF
    return scene


def _cyst(
    rng: Generator, center: float, inner: Curve, outer: Curve, across: Curve, site: Site
) -> Blob:
    x = float(np.clip(center + rng.normal(0, 0.25), -0.9, 0.9))
    top, bottom = (float(np.interp(x, across, curve)) for curve in (inner, outer))
    y = top + (bottom - top) * rng.uniform(0.25, 0.8)
    radius = site.zoom * np.exp(rng.uniform(np.log(0.08), np.log(0.18)))
    return draw_blob(rng, y, x, radius, aspect=rng.uniform(0.7, 1.5), roughness=0.1)


def _paint_shadow(rng: Generator, scene: Plane, inner: Curve) -> Plane:
    """Return the scene with the shadow of a vessel of the inner retina."""
    down, across = axes(scene.shape[-1])
    beam = np.exp(-(((across - rng.uniform(-0.9, 0.9)) / rng.uniform(0.03, 0.08)) ** 2))
    return np.asarray(scene * (1 - rng.uniform(0.4, 0.7) * beam * cover(down - inner - 0.08, 0.02)))


LABELS = ("irf", "srf", "ped")
FLUIDS = Phantom(
    drawn_card(
        "phantom-fluids", "Three fluids in an OCT-like image", "segmentation", LABELS, SITES
    ),
    "segmentation",
    SITES,
    co_occurring,
    draw,
)
