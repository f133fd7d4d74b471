"""A teacher that follows its student: the exponential moving average of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

#: Whether a teacher has its student's running statistics, or follows them as it follows its weights.
Statistics = Literal["copied", "followed"]


def moving_average(teacher: Sequence[Tensor], student: Sequence[Tensor], decay: float) -> None:
    r"""Move each teacher tensor towards the student's, in place.

    .. math:: g \leftarrow \alpha g + (1 - \alpha) f
    """
    with torch.no_grad():
        torch._foreach_lerp_(list(teacher), list(student), 1 - decay)


def follow(
    teacher: nn.Module, student: nn.Module, decay: float, statistics: Statistics = "copied"
) -> None:
    """Let a teacher follow one step: its parameters by moving average.

    The running statistics of batch normalization are averages already, so FedLSM's code copies the
    student's. They are of the student's weights, though, which a slow teacher does not have: where the
    student moves far in a round, statistics that follow as slowly as the weights fit better.
    """
    pairs = list(zip(teacher.buffers(), student.buffers(), strict=True))
    slow = [pair for pair in pairs if statistics == "followed" and pair[0].is_floating_point()]
    mine, theirs = zip(
        *zip(teacher.parameters(), student.parameters(), strict=True), *slow, strict=True
    )
    moving_average(mine, theirs, decay)
    with torch.no_grad():
        for own, other in pairs:
            if statistics == "copied" or not own.is_floating_point():
                own.copy_(other)
