"""ADELE's formulas: when early learning ends, and how far predictions at several scales agree."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from consilia.ops.robust import mean_known


def saturation(t: Float[np.ndarray, " n"], a: float, b: float, c: float) -> Float[np.ndarray, " n"]:
    r"""Return :math:`f(t) = a (1 - e^{-t^b / c})`, the curve of a training IoU."""
    return a * (1 - np.exp(-(t**b) / c))


def fit_saturation(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Return a, b and c of the curve through values at t = 1, 2, ...; `None` below three of them.

    As in the authors' code, a and b lie between 0 and 1, and late values weigh more: deviations are
    divided by numbers that fall from 1 to 0.1.
    """
    from scipy.optimize import least_squares

    if len(values) < 3:
        return None
    t, y = np.arange(1.0, len(values) + 1), np.asarray(values, dtype=np.float64)
    spread = np.geomspace(1, 0.1, len(y))
    bounds = ([0, 0, 1e-6], [1, 1, np.inf])
    found = least_squares(
        lambda q: (saturation(t, q[0], q[1], q[2]) - y) / spread, (1.0, 1.0, 1.0), bounds=bounds
    )
    a, b, c = found.x.tolist()
    return a, b, c


def slowdown(t: float, b: float, c: float) -> float:
    r"""Return :math:`(f'(1) - f'(t)) / f'(1)`, how far the curve's slope has fallen since t = 1.

    Computed from the logarithm of the slopes' ratio, which does not hold `a` and does not underflow.
    """
    return float(1 - np.exp((b - 1) * np.log(t) - (t**b - 1) / c))


def has_slowed(values: Sequence[float], r: float) -> bool:
    """Return whether the slope of the curve through the values has fallen by more than `r`.

    Time begins with the first value of at least 0.01: before it nothing has been learned, and a curve
    that lies flat at zero would have any slope.
    """
    begun = list(itertools.dropwhile(lambda value: value < 0.01, values))
    found = fit_saturation(begun)
    return found is not None and slowdown(float(len(begun)), found[1], found[2]) > r


def pooled_overlap(predicted: Bool[Tensor, "n h w"], target: Bool[Tensor, "n h w"]) -> float:
    """Return the IoU over all pixels of all images; 0 where both are empty."""
    return float((predicted & target).sum() / (predicted | target).sum().clamp(min=1))


def scale_disagreement(
    probabilities: Sequence[Float[Tensor, "b c h w"]],
    confidence: float,
    known: Bool[Tensor, "b h w"] | None = None,
) -> Float[Tensor, ""]:
    r"""Return the Jensen-Shannon divergence of predictions at several scales.

    .. math:: \frac{1}{m} \sum_k \mathrm{KL}(p_k \Vert q), \quad q = \frac{1}{m} \sum_k p_k

    Images in which no entry of q reaches `confidence` count zero.
    """
    q = torch.stack(tuple(probabilities)).mean(0).clamp(1e-3, 1 - 1e-3)
    seen = q if known is None else q * known[:, None]
    sure = seen.amax((1, 2, 3)) >= confidence  # (b,)
    each = torch.zeros_like(q[:, 0])
    for p in probabilities:
        safe = p.clamp(min=1e-7)
        each = each + (safe * (safe.log() - q.log())).sum(1)
    return mean_known(each / len(probabilities) * sure[:, None, None], known)
