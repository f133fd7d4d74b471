"""What leaves a site that keeps its normalisation layers, and the weights of which it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from consilia.payload import Group, Weights

Shared = Annotated[Weights, Group(("body", "head"))]


@dataclass(frozen=True)
class Up:
    """Leaves a site: everything but its normalisation layers, image count and mean loss."""

    weights: Shared
    images: int
    loss: float
