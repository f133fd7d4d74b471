"""A teacher that follows its student: the exponential moving average of its weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def moving_average(teacher: Sequence[Tensor], student: Sequence[Tensor], decay: float) -> None:
    r"""Move each teacher tensor towards the student's, in place.

    .. math:: g \leftarrow \alpha g + (1 - \alpha) f
    """
    with torch.no_grad():
        torch._foreach_lerp_(list(teacher), list(student), 1 - decay)


def follow(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """Let a teacher follow one step: parameters by moving average, buffers copied from the student.

    Buffers (the statistics of batch normalization) are averages already; FedLSM's code copies them too.
    """
    moving_average([*teacher.parameters()], [*student.parameters()], decay)
    with torch.no_grad():
        for mine, theirs in zip(teacher.buffers(), student.buffers(), strict=True):
            mine.copy_(theirs)
