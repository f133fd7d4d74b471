"""Patients drawn again: images of one patient are not independent, so patients are what is drawn.

Everything is deterministic given a seed. Group names must tell patients of different sites apart
("oslo/17", not "17"), or they are taken for the same patient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

Groups = Sequence[str] | np.ndarray

BLOCK = 2**21  # numbers held at once while resampling


def codes_of(groups: Groups) -> np.ndarray:
    """Return patients as numbers from 0, in the order of their names and not of the cases."""
    return np.unique(np.asarray(groups), return_inverse=True)[1]


def strata_of(strata: Groups | None, kept: np.ndarray) -> list[np.ndarray]:
    """Return per stratum, in the order of names, where its kept cases are; all of them without strata."""
    if strata is None:
        return [np.arange(int(kept.sum()))]
    codes = codes_of(np.asarray(strata)[kept])
    return [np.flatnonzero(codes == code) for code in range(codes.max() + 1)]


def draws(
    patients: int, width: int, resamples: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield how often each patient is drawn, (r, patients) at a time; nothing for one patient."""
    if patients > 1:
        for size in blocks(resamples, width):
            yield rng.multinomial(patients, np.full(patients, 1 / patients), size)


def blocks(total: int, width: int) -> Iterator[int]:
    """Yield row counts that add up to a total, so that no block of rows exceeds `BLOCK`."""
    rows = max(1, BLOCK // width)
    for start in range(0, total, rows):
        yield min(rows, total - start)
