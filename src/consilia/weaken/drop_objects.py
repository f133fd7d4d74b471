"""Incomplete annotation: whole objects are left out, the others keep their outline (FedIA)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from scipy import ndimage

from consilia.errors import DataError


@dataclass(frozen=True)
class KeptObjects:
    """The objects that stay, by their numbers from 1 in scanning order, and how many there were."""

    kept: tuple[int, ...]
    of: int


def objects(mask: Bool[np.ndarray, ...]) -> tuple[np.ndarray, int]:
    """Return the numbered parts of an image (8 neighbours) or volume (26), and how many."""
    numbered, count = ndimage.label(mask, structure=np.ones((3,) * mask.ndim))
    return numbered, int(count)


def objects_kept(count: int, completeness: float) -> int:
    """Return how many of `count` objects stay: half rounds up, and at least one stays."""
    return min(count, max(1, math.floor(round(count * completeness, 9) + 0.5)))


def draw_kept_objects(
    mask: Bool[np.ndarray, ...], completeness: float, rng: np.random.Generator
) -> KeptObjects:
    """Return which objects of an image or volume stay, each equally likely."""
    count = objects(mask)[1]
    kept = rng.choice(count, size=objects_kept(count, completeness), replace=False) + 1
    return KeptObjects(tuple(sorted(kept.tolist())), count)


def render_kept_objects(drawn: KeptObjects, mask: Bool[np.ndarray, ...]) -> np.ndarray:
    """Return the mask without the objects that were left out.

    Raises:
        DataError: The mask has not as many objects as when they were drawn.
    """
    numbered, count = objects(mask)
    if count != drawn.of:
        msg = (
            f"a mask has {count} objects, but had {drawn.of} when some were left out; replay the "
            "cases that were weakened, with all slices of each volume"
        )
        raise DataError(msg)
    shown: np.ndarray = np.isin(numbered, drawn.kept) & mask
    return shown
