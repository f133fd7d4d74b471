"""phantom-skin: seven kinds of skin lesion, one per dermoscopy-like image.

The kinds differ in color, outline and inner structure, each with so much spread that every two of
them overlap; hairs, gel bubbles and the tone of the skin tell nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import UInt8
from numpy.random import Generator

from consilia.datasets.phantoms.canvas import (
    Blob,
    Examination,
    Plane,
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
    classified,
    drawn_card,
    one_each,
)

Color = tuple[float, float, float]


@dataclass(frozen=True)
class Kind:
    """How one kind of lesion usually looks.

    Attributes:
        color: Its mean color.
        roughness: How irregular its outline is.
        edge: How softly it ends.
        patches: Strength of patches of a second color.
        second: That color.
        network: Strength of a pigment network.
        dots: Strength of round dots of the second color.
        tree: Strength of branching vessels.
        scar: Strength of a pale center.
    """

    color: Color
    roughness: float = 0.06
    edge: float = 0.1
    patches: float = 0.0
    second: Color = (0.95, 0.9, 0.85)
    network: float = 0.0
    dots: float = 0.0
    tree: float = 0.0
    scar: float = 0.0


KINDS = {
    "mel": Kind((0.36, 0.22, 0.17), 0.2, 0.08, patches=0.7, second=(0.22, 0.18, 0.2), network=0.1),
    "nv": Kind((0.45, 0.28, 0.2), 0.05, 0.12, network=0.3),
    "bcc": Kind((0.74, 0.5, 0.46), 0.1, 0.14, patches=0.25, second=(0.45, 0.4, 0.48), tree=0.7),
    "akiec": Kind((0.74, 0.46, 0.4), 0.16, 0.25, patches=0.6, second=(0.86, 0.74, 0.64)),
    "bkl": Kind((0.52, 0.37, 0.27), 0.12, 0.05, dots=0.8),
    "df": Kind((0.58, 0.4, 0.33), 0.06, 0.22, network=0.12, scar=0.7),
    "vasc": Kind((0.58, 0.22, 0.27), 0.1, 0.07, dots=0.7, second=(0.36, 0.08, 0.16)),
}

SITES = {
    "oslo": Site(
        120,
        40,
        Scanner(blur=(0.015, 0.015), noise=0.02),
        habit=0.1,
        prevalence=(0.18, 0.42, 0.14, 0.08, 0.1, 0.04, 0.04),
    ),
    "porto": Site(
        120,
        40,
        Scanner(blur=(0.03, 0.03), tint=(1.0, 0.9, 0.78), vignette=0.35, noise=0.02),
        zoom=1.2,
        habit=0.4,
        prevalence=(0.14, 0.38, 0.16, 0.1, 0.12, 0.05, 0.05),
    ),
    "quito": Site(
        120,
        40,
        Scanner(blur=(0.02, 0.02), contrast=0.8, gamma=1.25, tint=(0.9, 1.0, 1.08), noise=0.04),
        zoom=0.8,
        habit=0.8,
        prevalence=(0.12, 0.45, 0.1, 0.06, 0.15, 0.06, 0.06),
    ),
    "riga": Site(
        120,
        40,
        Scanner(blur=(0.04, 0.04), gamma=0.8, tint=(1.05, 0.95, 1.0), bias=0.1, noise=0.02),
        zoom=1.0,
        habit=0.2,
        prevalence=(0.2, 0.35, 0.15, 0.1, 0.1, 0.05, 0.05),
    ),
    "seoul": Site(
        120,
        40,
        Scanner(blur=(0.01, 0.01), contrast=1.25, tint=(0.92, 0.92, 0.9), vignette=0.6, noise=0.03),
        zoom=0.9,
        habit=0.5,
        prevalence=(0.1, 0.5, 0.1, 0.05, 0.15, 0.05, 0.05),
    ),
}


def draw(rng: Generator, diagnosis: Diagnosis, site: Site, views: int, size: int) -> Examination:
    """Return pictures of one lesion."""
    kind = _individual(rng, list(KINDS.values())[int(diagnosis.argmax())])
    outline = draw_blob(
        rng,
        0.0,
        0.0,
        site.zoom * rng.uniform(0.32, 0.6),
        aspect=rng.uniform(0.75, 1.35),
        roughness=kind.roughness,
    )
    return classified([_picture(rng, kind, outline, site, size) for _ in range(views)], diagnosis)


def _individual(rng: Generator, kind: Kind) -> Kind:
    """Return one lesion of its kind: colors and structures spread far around the usual ones."""
    red, green, blue = (
        np.array(kind.color) * np.exp(rng.normal(0, 0.2)) + rng.normal(0, 0.03, 3)
    ).clip(0.05, 0.95)
    spread = rng.gamma(1.5, 1 / 1.5, 7)
    return replace(
        kind,
        color=(float(red), float(green), float(blue)),
        roughness=min(0.2, kind.roughness * float(spread[0]) + 0.03),
        edge=kind.edge * float(np.sqrt(spread[1])) + 0.03,
        patches=min(1.0, kind.patches * float(spread[2]) + 0.1),
        network=min(0.4, kind.network * float(spread[3]) + 0.02),
        dots=min(1.0, kind.dots * float(spread[4])),
        tree=min(1.0, kind.tree * float(spread[5])),
        scar=min(1.0, kind.scar * float(spread[6])),
    )


def _picture(
    rng: Generator, kind: Kind, outline: Blob, site: Site, size: int
) -> UInt8[np.ndarray, "3 h w"]:
    turned = replace(
        outline,
        y=rng.normal(0, 0.08),
        x=rng.normal(0, 0.08),
        angle=rng.uniform(0, 2 * np.pi),
    )
    skin = tinted((0.9, 0.7, 0.6)) * (1 - 0.25 * site.habit * rng.uniform(0.5, 1.5))
    scene = skin * (1 + 0.03 * texture(rng, size, 0.05) + 0.04 * texture(rng, size, 0.25))
    scene = blend(scene, _interior(rng, kind, turned, size), cover(turned.depth(size), kind.edge))
    scene = _paint_hairs(rng, scene, most=6 if site.habit > 0.3 else 3)
    return site.scanner.drifted(rng).acquire(scene, rng)


def _interior(rng: Generator, kind: Kind, outline: Blob, size: int) -> Scene:
    down, across = axes(size)
    second = tinted(kind.second)
    scene = tinted(kind.color) * (1 + 0.06 * texture(rng, size, 0.1))
    scene = blend(scene, second, kind.patches * cover(texture(rng, size, 0.22) - 0.4, 0.2))
    mesh = np.exp(-((texture(rng, size, 0.055) / 0.4) ** 2))  # where noise crosses 0 are meshes
    scene = scene * (1 - kind.network * (mesh - 0.4))
    scene = blend(scene, second, kind.dots * _dots(rng, outline, size))
    if kind.tree:
        branches = vessels(rng, size, star(rng, (outline.y, outline.x), 4), 0.025, length=0.6)
        scene = blend(scene, tinted((0.6, 0.15, 0.15)), kind.tree * branches)
    middle = np.hypot(down - outline.y, across - outline.x) / outline.radius
    return blend(scene, tinted((0.88, 0.78, 0.72)), kind.scar * np.exp(-((middle / 0.4) ** 2)))


def _dots(rng: Generator, outline: Blob, size: int) -> Plane:
    """Return the cover of some round dots inside an outline."""
    dots = np.zeros((size, size))
    for _ in range(rng.integers(3, 9)):
        away, bearing = outline.radius * np.sqrt(rng.uniform(0, 0.7)), rng.uniform(0, 2 * np.pi)
        place = (outline.y + away * np.sin(bearing), outline.x + away * np.cos(bearing))
        dot = Blob(*place, radius=outline.radius * rng.uniform(0.08, 0.22))
        np.maximum(dots, cover(dot.depth(size), 0.2), out=dots)
    return dots


def _paint_hairs(rng: Generator, scene: Scene, most: int) -> Scene:
    size = scene.shape[-1]
    for _ in range(rng.integers(0, most)):
        place = (rng.uniform(-1, 1), rng.uniform(-1, 1))
        hair = vessels(rng, size, star(rng, place, 2), width=0.018, length=0.7)
        scene = blend(scene, tinted((0.2, 0.14, 0.1)), 0.7 * hair)
    return scene


SKIN = Phantom(
    drawn_card("phantom-skin", "Seven kinds of skin lesion", "classification", tuple(KINDS), SITES),
    "classification",
    SITES,
    one_each,
    draw,
    channels=3,
    common_test=200,
    returning=True,
)
