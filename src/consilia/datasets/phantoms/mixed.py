"""phantom-mixed: one lesion per ultrasound-like image, and healthy images beside them.

A lesion is dark, irregular, rather tall than wide and casts a shadow. Around it lie its doubles:
cysts (black, smooth, bright below), fat lobules (as dark, flat, with a bright capsule) and shadows
without any lesion.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from consilia.datasets.phantoms.canvas import (
    Blob,
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
from consilia.datasets.phantoms.study import (
    Diagnosis,
    Phantom,
    Site,
    drawn_card,
    everyone_has_everything,
)

SITES = {
    "ashford": Site(
        48,
        48,
        Scanner(speckle=0.3, blur=(0.014, 0.022), noise=0.02, drift=0.18),
        habit=0.2,
        healthy=0.15,
    ),
    "bergen": Site(
        48,
        48,
        Scanner(speckle=0.65, blur=(0.022, 0.04), gamma=0.85, bias=0.1, noise=0.02, drift=0.18),
        zoom=1.1,
        habit=0.6,
        healthy=0.15,
    ),
    "cusco": Site(
        24,
        48,
        Scanner(
            speckle=0.4,
            blur=(0.02, 0.03),
            bias=0.12,
            contrast=1.1,
            gamma=1.15,
            fan=0.3,
            lines=0.02,
            noise=0.03,
            drift=0.18,
        ),
        zoom=0.9,
        habit=0.9,
    ),
}


def draw(rng: Generator, diagnosis: Diagnosis, site: Site, views: int, size: int) -> Examination:
    """Return one patient's breast, each view cut a little differently."""
    lesion = _lesion(rng, site) if diagnosis.any() else None
    doubles = [_double(rng, site) for _ in range(rng.integers(1, 5))]
    echo = rng.uniform(0.14, 0.26)
    drawn = [_view(rng, lesion, doubles, echo, site, size) for _ in range(views)]
    return Examination(np.stack([image for image, _ in drawn]), np.stack([t for _, t in drawn]))


def _lesion(rng: Generator, site: Site) -> Blob:
    radius = site.zoom * np.exp(rng.uniform(np.log(0.16), np.log(0.38)))
    return draw_blob(
        rng,
        rng.uniform(-0.3, 0.4),
        rng.uniform(-0.55, 0.55),
        radius,
        aspect=rng.uniform(0.6, 1.3),
        angle=rng.normal(0, 0.3),
        roughness=rng.uniform(0.05, 0.16),
    )


def _double(rng: Generator, site: Site) -> tuple[str, Blob]:
    kind = str(rng.choice(["cyst", "lobule", "shadow"], p=[0.3, 0.5, 0.2]))
    radius = site.zoom * np.exp(rng.uniform(np.log(0.1), np.log(0.28)))
    aspect = {"cyst": rng.uniform(0.9, 1.5), "lobule": rng.uniform(1.6, 2.6), "shadow": 1.0}[kind]
    place = (rng.uniform(-0.5, 0.6), rng.uniform(-0.8, 0.8))
    return kind, draw_blob(
        rng, *place, radius, aspect=aspect, angle=rng.normal(0, 0.25), roughness=0.03
    )


def _view(
    rng: Generator,
    lesion: Blob | None,
    doubles: list[tuple[str, Blob]],
    echo: float,
    site: Site,
    size: int,
) -> tuple[np.ndarray, np.ndarray]:
    scene = _layers(rng, size, site.habit)
    truth = np.zeros((size, size), dtype=np.uint8)
    inside = np.full((size, size), -1.0) if lesion is None else lesion.depth(size)
    for kind, double in doubles:
        depth = double.depth(size)
        overlaps = ((depth > -0.2) & (inside > -0.2)).any()
        if not overlaps:
            scene = _paint_double(rng, scene, kind, double, depth)
    if lesion is not None:
        scene = _paint_lesion(rng, scene, lesion, inside, echo)
        truth[inside > 0] = 1
    return site.scanner.drifted(rng).acquire(scene[None], rng), truth


def _layers(rng: Generator, size: int, habit: float) -> Plane:
    """Return skin, fat, gland and muscle; `habit` moves from fatty to dense."""
    down, _ = axes(size)
    skin = -0.88 + 0.02 * wave(rng, size)
    gland = -0.35 - 0.25 * habit + 0.1 * wave(rng, size)
    muscle = 0.72 + 0.05 * wave(rng, size)
    fibers = texture(rng, size, 0.05, stretch=1.8)
    scene = 0.36 + 0.05 * texture(rng, size, 0.12) + 0.1 * (texture(rng, size, 0.05, 1.5) > 1.3)
    dense = 0.5 + 0.1 * habit + 0.07 * fibers + 0.06 * texture(rng, size, 0.2)
    scene = blend(scene, dense, cover(down - gland, 0.05))
    scene = blend(scene, 0.33 + 0.12 * texture(rng, size, 0.04, 3.0), cover(down - muscle, 0.03))
    scene = blend(scene, 0.85, np.exp(-(((down - muscle) / 0.03) ** 2)) * 0.6)
    scene = blend(scene, 0.8, cover(skin - down, 0.02))
    return np.asarray(scene * (1.08 - 0.16 * (down + 1)))


def _below(blob: Blob, size: int, width: float) -> Plane:
    """Return the column underneath a blob, fading with depth."""
    down, across = axes(size)
    beam = np.exp(-(((across - blob.x) / (blob.radius * width)) ** 2) * 1.5)
    return np.asarray(beam * cover(down - blob.y, 0.06) * np.exp(-np.maximum(down - blob.y, 0)))


def _paint_lesion(rng: Generator, scene: Plane, lesion: Blob, depth: Plane, echo: float) -> Plane:
    size = scene.shape[-1]
    scene = scene * (1 - rng.uniform(0.1, 0.6) * _below(lesion, size, 0.8))
    rim = np.exp(-(((depth + 0.12) / 0.12) ** 2))
    scene = scene + rng.uniform(0, 0.12) * rim
    inner = echo + 0.05 * texture(rng, size, 0.06)
    return blend(scene, inner, cover(depth, rng.uniform(0.04, 0.1)) * rng.uniform(0.8, 1))


def _paint_double(rng: Generator, scene: Plane, kind: str, double: Blob, depth: Plane) -> Plane:
    size = scene.shape[-1]
    if kind == "shadow":
        return np.asarray(scene * (1 - rng.uniform(0.4, 0.7) * _below(double, size, 0.9)))
    if kind == "cyst":
        scene = scene * (1 + 0.35 * _below(double, size, 0.7))
        return blend(scene, 0.06, cover(depth, 0.04))
    capsule = np.exp(-(((depth + 0.06) / 0.09) ** 2))
    scene = blend(
        scene, rng.uniform(0.24, 0.36) + 0.04 * texture(rng, size, 0.06), cover(depth, 0.06)
    )
    return scene + 0.14 * capsule


LABELS = ("lesion",)
MIXED = Phantom(
    drawn_card(
        "phantom-mixed", "One lesion per ultrasound-like image", "segmentation", LABELS, SITES
    ),
    "segmentation",
    SITES,
    everyone_has_everything,
    draw,
    returning=True,
)
