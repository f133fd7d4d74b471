"""Dropout for a while: a network shaken without having dropout layers of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn


@contextmanager
def dropping(network: nn.Module, rates: Sequence[float]) -> Iterator[None]:
    """Drop features after each level of a network's encoder, within the block.

    A network without an encoder of levels stays as it is; so do levels beyond the rates.
    """
    levels = getattr(getattr(network, "encoder", None), "levels", ())
    hooks = [
        level.register_forward_hook(partial(_drop, rate))
        for level, rate in zip(levels, rates, strict=False)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _drop(rate: float, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return F.dropout(output, rate)
