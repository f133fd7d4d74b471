"""The messages of methods that keep the head at each site and average everything below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from consilia.payload import Group, Weights

Shared = Annotated[Weights, Group(("body", "norm"))]


@dataclass(frozen=True)
class Down:
    """Travels to a site: everything but the head, averaged."""

    weights: Shared


@dataclass(frozen=True)
class Up:
    """Leaves a site: everything but its head, image count and mean loss."""

    weights: Shared
    images: int
    loss: float


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its head, the last layer."""

    own: Annotated[Weights, Group(("head",))]
