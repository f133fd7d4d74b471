"""Masks to weaken: blobs, rings, single pixels, full and empty images, all from a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import ndimage

from consilia.datasets.contract import Cases

SIZES = [(8, 8), (17, 24), (32, 32), (40, 33)]


def make_mask(seed: int) -> np.ndarray:
    """Return a mask; every eighth seed gives an extreme one."""
    rng = np.random.default_rng(seed)
    shape = SIZES[rng.integers(len(SIZES))]
    kind = seed % 8
    if kind == 0:
        return np.zeros(shape, dtype=bool)
    if kind == 1:
        return np.ones(shape, dtype=bool)
    if kind == 2:
        mask = np.zeros(shape, dtype=bool)
        mask[rng.integers(shape[0]), rng.integers(shape[1])] = True
        return mask
    noise = ndimage.gaussian_filter(rng.standard_normal(shape), rng.uniform(0.7, 4))
    return noise > np.quantile(noise, rng.uniform(0.3, 0.98))


def make_index_map(seed: int, labels: int = 3, shape: tuple[int, int] = (32, 32)) -> np.ndarray:
    """Return an index map with some of the labels, nested or apart, possibly none."""
    rng = np.random.default_rng([seed, 1])
    image = np.zeros(shape, dtype=np.uint8)
    for label in rng.permutation(labels)[: rng.integers(labels + 1)] + 1:
        row, col, radius = rng.uniform(0, 32), rng.uniform(0, 32), rng.uniform(0.6, 12)
        rows, cols = np.ogrid[: shape[0], : shape[1]]
        image[np.hypot(rows - row, (cols - col) * rng.uniform(0.5, 2)) < radius] = label
    return image


def make_cases(
    truth: np.ndarray, volume: tuple[str, ...] | None = None, names: tuple[str, ...] | None = None
) -> Cases:
    """Return cases with this truth and images that nothing reads."""
    n = len(truth)
    names = names or tuple(f"case-{i}" for i in range(n))
    return Cases(np.zeros((n, 1, 1, 1), dtype=np.uint8), truth, names, names, volume)


@pytest.fixture(scope="session")
def mask_of() -> Callable[[int], np.ndarray]:
    return make_mask


@pytest.fixture(scope="session")
def index_map_of() -> Callable[..., np.ndarray]:
    return make_index_map


@pytest.fixture(scope="session")
def cases_of() -> Callable[..., Cases]:
    return make_cases
