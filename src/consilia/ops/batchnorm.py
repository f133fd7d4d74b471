"""FedAP's affinity of sites: the nearer the statistics of their features, the more they share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from consilia.payload import Weights


def feature_distance(
    mean: Weights, deviation: Weights, other_mean: Weights, other_deviation: Weights
) -> float:
    r"""Return the sum over layers of the Wasserstein distance between two sites' features.

    .. math:: d_{ij} = \sum_l \sqrt{\lVert \mu_i^l - \mu_j^l \rVert^2
              + \lVert \sigma_i^l - \sigma_j^l \rVert^2}
    """
    return sum(
        math.sqrt(
            float((mean[layer].double() - other_mean[layer].double()).square().sum())
            + float((deviation[layer].double() - other_deviation[layer].double()).square().sum())
        )
        for layer in sorted(mean)
    )


def affinity_shares(
    means: Mapping[str, Weights], deviations: Mapping[str, Weights], momentum: float
) -> dict[str, dict[str, float]]:
    r"""Return each site's shares in its own mixture: m for itself, the rest by nearness.

    .. math:: a_{ii} = m, \quad a_{ij} = (1 - m) \frac{1 / d_{ij}}{\sum_{k \ne i} 1 / d_{ik}}

    A site without company takes all of itself. Sites with equal features have a distance of almost 0.
    """
    sites = sorted(means)
    shares: dict[str, dict[str, float]] = {}
    for i in sites:
        near = {
            j: 1 / max(1e-14, feature_distance(means[i], deviations[i], means[j], deviations[j]))
            for j in sites
            if j != i
        }
        total = sum(near.values())
        shares[i] = {i: momentum if near else 1.0}
        shares[i] |= {j: (1 - momentum) * value / total for j, value in near.items()}
    return shares
