"""The messages every run exchanges besides its method's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Hello:
    """Travels to a site before its first round: please introduce yourself."""


@dataclass(frozen=True)
class Failed:
    """Leaves a site instead of a reply: what went wrong, in one sentence."""

    reason: str


@dataclass(frozen=True)
class Scores:
    """Leaves a site after an evaluation: metrics of its test images and of its held-out ones."""

    test: Mapping[str, float]
    validation: Mapping[str, float] | None


@dataclass(frozen=True)
class Examination:
    """Leaves a site where the study asks for it: metrics, and one row of numbers per test case."""

    scores: Scores
    case: tuple[str, ...]
    group: tuple[str, ...]
    columns: tuple[str, ...]
    values: Tensor


@dataclass(frozen=True)
class Portrait:
    """Leaves a site once, where the study asks: features of its images, projected; and histograms.

    Attributes:
        points: Of some training images, the features on a few directions that all sites share.
        follow: How many numbers of each decoder follow the server how far, in ten bins from 0 to 1.
    """

    points: Tensor
    follow: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Optimizers:
    """Stays at a site: what its optimisers remember, by network."""

    states: Mapping[str, Mapping[str, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Overlay:
    """Stays at a site: labels it has corrected."""

    target: Tensor
