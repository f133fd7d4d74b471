"""Shared words of all forms: arrays, random streams, and how deep a pixel lies in its region."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, UInt8
from scipy import ndimage

#: The name of the region in which none of a site's labels is marked.
BACKGROUND = "background"

Mask = Bool[np.ndarray, "h w"]
Depth = Float[np.ndarray, "h w"]
IndexMap = UInt8[np.ndarray, "h w"]
IndexMaps = UInt8[np.ndarray, "_ h w"]
Shape = tuple[int, int]
Window = tuple[slice, slice]


def stream(seed: int, *names: str) -> np.random.Generator:
    """Return the random numbers that belong to these names, whatever was drawn before.

    An annotation is a fixed fact: it depends on the seed, the site, the case, the form and the
    region, and not on the order in which cases come.
    """
    text = "\x1f".join((str(seed), *names)).encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:16], "big"))


def side(shape: Shape) -> float:
    """Return the side of a square image with as many pixels; lengths scale with it."""
    return float(np.sqrt(shape[0] * shape[1]))


def depth(region: Mask) -> Depth:
    """Return each pixel's distance in pixels to the nearest one outside the region.

    The border of the image is not "outside", unless the region fills the image.
    """
    if region.all():
        filled: Depth = ndimage.distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
        return filled
    inside: Depth = ndimage.distance_transform_edt(region)
    return inside


def parts(region: Mask) -> Iterator[tuple[Window, Mask]]:
    """Yield each 8-connected part of a region in a window one pixel wider where it can be."""
    labelled, _ = ndimage.label(region, structure=np.ones((3, 3)))
    for number, tight in enumerate(ndimage.find_objects(labelled), start=1):
        rows, cols = (
            slice(max(0, span.start - 1), min(size, span.stop + 1))
            for span, size in zip(tight, region.shape, strict=True)
        )
        yield (rows, cols), labelled[rows, cols] == number
