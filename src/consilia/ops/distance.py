"""FedNoRo's distance-aware shares: noisy sites count less, the farther they are from a clean one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilia.payload import Weights


def distance(one: Weights, other: Weights) -> float:
    """Return the sum over tensors of the length of their difference; whole numbers are left out."""
    return float(
        sum(
            (value.double() - other[name].double()).norm()
            for name, value in one.items()
            if value.is_floating_point()
        )
    )


def distances_to_clean(updates: Mapping[str, Weights], noisy: Sequence[str]) -> dict[str, float]:
    """Return how far each noisy site is from its nearest clean one; clean sites are at 0.

    Without any clean site all are at 0.
    """
    held = {site: dict(weights.items()) for site, weights in updates.items()}  # read once
    clean = [site for site in sorted(held) if site not in noisy]
    return {
        site: min(distance(held[site], held[other]) for other in clean)
        if clean and site in noisy
        else 0.0
        for site in sorted(held)
    }


def distance_shares(
    images: Mapping[str, float], distances: Mapping[str, float]
) -> dict[str, float]:
    r"""Return :math:`w_k \propto n_k e^{-d_k / \max_j d_j}`; without distances, the images."""
    farthest = max(distances.values(), default=0.0)
    if not farthest > 0:
        return dict(images)
    return {site: n * float(np.exp(-distances[site] / farthest)) for site, n in images.items()}
