"""FedLSM's adaptive weighted proxy aggregation: who teaches a label's output row (Eq. 7)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Num

PerSite = Mapping[str, float]


def masked_shares(
    images: PerSite, marks: Mapping[str, Bool[np.ndarray, " k"]]
) -> dict[str, Float[np.ndarray, " k"]]:
    """Return a site's images as its share in every row whose label it marks, and nothing elsewhere."""
    return {site: count * marks[site].astype(np.float64) for site, count in images.items()}


def proxy_shares(
    counts: Mapping[str, Num[np.ndarray, " k"]],
    images: PerSite,
    marks: Mapping[str, Bool[np.ndarray, " k"]],
    floor: float = 0.0,
) -> dict[str, Float[np.ndarray, " k"]]:
    r"""Return each site's share in each row, :math:`q_c^k`, still to be divided by their sum.

    A label that no image was taken to show goes by the images of the sites that mark it; where no
    site marks it either, all shares are zero and the reducer keeps the row.

    Args:
        counts: How many images each site took to show each label.
        images: How many images each site has.
        marks: Which labels each site marks.
        floor: The least count of a label at a site that marks it.
    """
    floored = {site: np.maximum(counts[site], floor * marks[site]) for site in images}
    masked = masked_shares(images, marks)
    seen = np.sum([*floored.values()], axis=0) > 0
    return {site: np.where(seen, floored[site], masked[site]) for site in images}
