"""FedMix's adaptive shares, used by FedMix and by FedAdaptAgg."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def adaptive_shares(
    counts: Mapping[str, float], losses: Mapping[str, float], lam: float, beta: float
) -> dict[str, float]:
    r"""Return FedMix's shares, which grow with a site's images and with its loss (Eqs. 3-5), in images.

    .. math:: c_k = \frac{m_k}{\sum_j m_j}, \quad d_k = \frac{L_k^\beta}{\sum_j L_j^\beta}, \quad
              w_k = \frac{c_k + \lambda d_k}{\sum_j (c_j + \lambda d_j)}

    What is returned is :math:`w_k \sum_j m_j`: with :math:`\lambda = 0` the images themselves, so that
    a mean by them is FedAvg's to the bit. A site that used no image, or whose loss is not finite, counts
    nothing. Where all losses are zero, d is taken as c. Where no site used any image, all shares are zero
    (and the model stays).
    """
    sites = [s for s in sorted(counts) if counts[s] > 0 and np.isfinite(losses[s])]
    shares = dict.fromkeys(counts, 0.0)
    if not sites:
        return shares
    m = np.array([counts[s] for s in sites], dtype=np.float64)
    powered = np.array([losses[s] for s in sites], dtype=np.float64) ** beta
    d = m.sum() * powered / powered.sum() if powered.sum() > 0 else m
    w = (m + lam * d) / (1 + lam)
    return shares | dict(zip(sites, w.tolist(), strict=True))
