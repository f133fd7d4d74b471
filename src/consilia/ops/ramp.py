"""How the weight of a term grows over rounds."""

from __future__ import annotations

import math


def gaussian_ramp(done: int, length: int) -> float:
    r"""Return :math:`e^{-5 (1 - x)^2}`, with x the part of the ramp that is done, from 0 to 1.

    A ramp without length is over at once.
    """
    x = 1.0 if length <= 0 else min(1.0, max(0.0, done / length))
    return math.exp(-5 * (1 - x) ** 2)
