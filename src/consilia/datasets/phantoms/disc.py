"""phantom-disc: optic disc and cup in a fundus-like crop, the cup inside the disc.

The cup is only a little paler than its rim, vessels cross both, and a crescent of bare sclera
beside the disc is as bright as the disc itself.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8
from numpy.random import Generator

from consilia.datasets.phantoms.canvas import (
    Blob,
    Examination,
    Scene,
    axes,
    blend,
    cover,
    draw_blob,
    star,
    texture,
    tinted,
    vessels,
)
from consilia.datasets.phantoms.scanner import Scanner
from consilia.datasets.phantoms.study import (
    Diagnosis,
    Phantom,
    Site,
    drawn_card,
    everyone_has_everything,
)

CUP, RIM = 1, 2
SCLERA = (0.9, 0.72, 0.45)
BLOOD = (0.42, 0.1, 0.07)

DRIFT = 0.2  # no two photographs of one site are exposed alike
SITES = {
    "almeria": Site(36, 16, Scanner(blur=(0.015, 0.015), noise=0.02, drift=DRIFT), habit=0.3),
    "bristol": Site(
        36,
        16,
        Scanner(
            blur=(0.035, 0.035),
            bias=0.1,
            gamma=0.9,
            tint=(0.92, 1.08, 1.2),
            noise=0.02,
            drift=DRIFT,
        ),
        zoom=1.1,
        habit=0.6,
    ),
    "chiba": Site(
        36,
        16,
        Scanner(
            blur=(0.02, 0.02),
            vignette=0.3,
            gamma=1.1,
            tint=(1.05, 0.88, 0.8),
            noise=0.02,
            drift=DRIFT,
        ),
        zoom=0.9,
        habit=0.35,
    ),
    "dakar": Site(
        36,
        16,
        Scanner(
            blur=(0.025, 0.025),
            bias=0.15,
            contrast=1.1,
            tint=(0.82, 0.92, 0.85),
            noise=0.04,
            drift=DRIFT,
        ),
        habit=0.7,
    ),
    "erfurt": Site(
        36,
        16,
        Scanner(
            blur=(0.04, 0.025),
            vignette=0.25,
            level=0.06,
            lines=0.02,
            noise=0.03,
            drift=DRIFT,
        ),
        zoom=0.95,
        habit=0.5,
    ),
}


def draw(rng: Generator, diagnosis: Diagnosis, site: Site, views: int, size: int) -> Examination:
    """Return one eye per view."""
    del diagnosis  # every eye has a disc and a cup
    drawn = [_eye(rng, site, size) for _ in range(views)]
    return Examination(np.stack([image for image, _ in drawn]), np.stack([t for _, t in drawn]))


def _eye(
    rng: Generator, site: Site, size: int
) -> tuple[UInt8[np.ndarray, "3 h w"], UInt8[np.ndarray, "h w"]]:
    disc, cup = _anatomy(rng, site)
    disc_depth, cup_depth = disc.depth(size), cup.depth(size)
    scene = _retina(rng, size, site.habit)
    scene = _paint_crescent(rng, scene, disc)
    rim = blend(scene, tinted((0.88, 0.58, 0.32)), np.full((size, size), rng.uniform(0.55, 0.9)))
    rim = rim + 0.03 * texture(rng, size, 0.05)
    scene = blend(scene, rim, cover(disc_depth, rng.uniform(0.05, 0.12)))
    pallor = rng.uniform(0.28, 0.65)
    scene = blend(scene, tinted((0.99, 0.86, 0.62)), pallor * cover(cup_depth, 0.12))
    scene = blend(scene, tinted(BLOOD), 0.75 * _tree(rng, cup, size))
    truth = np.zeros((size, size), dtype=np.uint8)
    truth[disc_depth > 0] = RIM
    truth[(cup_depth > 0) & (disc_depth > 0)] = CUP
    return site.scanner.drifted(rng).acquire(scene, rng), truth


def _anatomy(rng: Generator, site: Site) -> tuple[Blob, Blob]:
    """Return disc and cup; `habit` moves from small to large cups."""
    y, x = rng.normal(0, 0.14, 2)
    radius = site.zoom * rng.uniform(0.38, 0.55)
    disc = draw_blob(
        rng, y, x, radius, aspect=rng.uniform(0.8, 1.05), angle=rng.normal(0, 0.2), roughness=0.03
    )
    ratio = float(np.clip(rng.normal(0.38 + 0.25 * site.habit, 0.1), 0.32, 0.8))
    shift = rng.normal(0, 0.3 * (1 - ratio) * radius, 2)
    cup = draw_blob(
        rng,
        y + shift[0],
        x + shift[1],
        radius * ratio,
        aspect=rng.uniform(0.8, 1.2),
        angle=rng.normal(0, 0.5),
        roughness=0.05,
    )
    return disc, cup


def _retina(rng: Generator, size: int, habit: float) -> Scene:
    pigment = rng.uniform(0.85, 1.1) - 0.2 * habit
    base = tinted((0.72, 0.33, 0.16)) * pigment
    mottled = 1 + 0.08 * texture(rng, size, 0.2) + 0.05 * texture(rng, size, 0.04)
    return np.asarray(base * mottled)


def _paint_crescent(rng: Generator, scene: Scene, disc: Blob) -> Scene:
    """Return the scene with bare sclera beside the disc, in two of three eyes."""
    if rng.random() < 1 / 3:
        return scene
    side = float(rng.choice([-1, 1]))
    atrophy = draw_blob(
        rng,
        disc.y + rng.normal(0, 0.05),
        disc.x + side * disc.radius * rng.uniform(0.2, 0.45),
        disc.radius * rng.uniform(1.0, 1.2),
        roughness=0.06,
    )
    size = scene.shape[-1]
    opacity = rng.uniform(0.3, 0.7) * cover(atrophy.depth(size), 0.05)
    return blend(scene, tinted(SCLERA) * (1 + 0.08 * texture(rng, size, 0.06)), opacity)


def _tree(rng: Generator, cup: Blob, size: int) -> np.ndarray:
    """Return the cover of the vessels, which leave upwards and downwards from the cup."""
    bearings = np.array([-1.9, -1.3, 1.3, 1.9, -1.6, 1.6]) + rng.normal(0, 0.2, 6)
    chosen = bearings[: rng.integers(4, 7)]
    roots = star(rng, (cup.y, cup.x), chosen)
    down, across = axes(size)
    fade = cover(np.hypot(down - cup.y, across - cup.x) - 0.5 * cup.radius, 0.1)
    return np.asarray(vessels(rng, size, roots, width=rng.uniform(0.035, 0.06)) * fade)


LABELS = ("cup", "disc")
DISC = Phantom(
    drawn_card("phantom-disc", "Optic disc and cup, fundus-like", "segmentation", LABELS, SITES),
    "segmentation",
    SITES,
    everyone_has_everything,
    draw,
    channels=3,
    regions={"disc": ("cup", "disc"), "cup": ("cup",)},
)
