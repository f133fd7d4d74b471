"""Which sites are most alike, by vectors that each of them sent."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor


def nearest(vectors: Mapping[str, Float[Tensor, " d"]], count: int) -> dict[str, tuple[str, ...]]:
    """Return for each site the others in order of distance, at most `count`; ties go by name."""
    names = sorted(vectors)
    found = {}
    for name in names:
        far = {
            other: float((vectors[name].double() - vectors[other].double()).norm())
            for other in names
            if other != name
        }
        found[name] = tuple(sorted(far, key=lambda other: (far[other], other))[:count])
    return found
