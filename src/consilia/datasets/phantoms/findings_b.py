"""phantom-findings-b: the same, and two more sites with films of another kind that mark one finding each.

After FedPSL's setup B, whose fifth and sixth site bring tuberculosis and COVID-19 from other sources.
Both findings also occur at the first four sites, where nobody marks them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.random import Generator

from consilia.datasets.phantoms.canvas import Plane, axes, cover, draw_blob, texture
from consilia.datasets.phantoms.findings import (
    FINDINGS,
    SITES,
    Lung,
    Paint,
    draw,
    somewhere,
)
from consilia.datasets.phantoms.scanner import Scanner
from consilia.datasets.phantoms.study import Phantom, Site, co_occurring, drawn_card


def _tuberculosis(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    """A thick-walled cavity near the top of the lung, and small scars around it."""
    size = scene.shape[-1]
    y = lung.blob.y - rng.uniform(0.2, 0.36)
    x = lung.blob.x + rng.uniform(-0.08, 0.08)
    cavity = draw_blob(rng, y, x, rng.uniform(0.09, 0.15), roughness=0.08)
    depth = cavity.depth(size)
    wall = cover(depth, 0.05) - 1.15 * cover(depth - 0.35, 0.1)
    scars = cover(texture(rng, size, 0.04), 0.5) * cover(depth + 0.15, 0.1)
    opacity = rng.uniform(0.22, 0.36) * wall + 0.1 * scars
    return np.asarray(scene + opacity * (0.2 + 0.8 * lung.inside))


def _covid(rng: Generator, scene: Plane, lung: Lung) -> Plane:
    """Ground glass: faint patches towards the outer, lower edge of the lung."""
    size = scene.shape[-1]
    down, across = axes(size)
    outwards = lung.side * (across - lung.blob.x)
    edge = cover(outwards - 0.05 + 0.4 * (down - lung.blob.y), 0.15)
    for _ in range(rng.integers(2, 4)):
        y, x = somewhere(rng, lung, reach=0.9)
        patch = draw_blob(rng, y + 0.12, x + lung.side * 0.08, rng.uniform(0.14, 0.24))
        haze = cover(patch.depth(size), 0.12) * (0.8 + 0.2 * texture(rng, size, 0.08))
        scene = scene + rng.uniform(0.12, 0.22) * haze * (0.4 + 0.6 * edge) * lung.inside
    return scene


FINDINGS_B: dict[str, Paint] = {**FINDINGS, "tuberculosis": _tuberculosis, "covid-19": _covid}
#: At the first four sites, where nobody marks them.
UNMARKED = (0.1, 0.1)
SITES_B = {
    **{name: replace(s, prevalence=(*s.prevalence, *UNMARKED)) for name, s in SITES.items()},
    "tbilisi": Site(
        120,
        40,
        Scanner(blur=(0.03, 0.03), contrast=0.85, gamma=1.5, vignette=0.35, noise=0.03),
        zoom=1.2,
        habit=0.1,
        prevalence=(0.1, 0.1, 0.08, 0.1, 0.08, 0.04, 0.2, 0.02),
    ),
    "ulsan": Site(
        120,
        40,
        Scanner(inverted=True, contrast=1.4, bias=0.2, lines=0.04, noise=0.03),
        zoom=0.8,
        habit=1.0,
        prevalence=(0.12, 0.1, 0.08, 0.06, 0.12, 0.04, 0.02, 0.26),
    ),
}

FINDINGS_B_PHANTOM = Phantom(
    drawn_card(
        "phantom-findings-b",
        "Eight findings on chest-like radiographs, two sites with films of another kind",
        "classification",
        tuple(FINDINGS_B),
        SITES_B,
    ),
    "classification",
    SITES_B,
    co_occurring,
    partial(draw, FINDINGS_B),
    exclusive=False,
    common_test=240,
    returning=True,
)
