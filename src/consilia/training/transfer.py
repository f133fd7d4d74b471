"""Weights between a network and the messages: in place, and across to a GPU in one piece.

What a network on a GPU has learned stays there until the host needs the numbers. What crosses lies in
pinned memory, which PyTorch keeps and hands out again: the copy is several times faster than from fresh
pages, of which each is first touched one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from consilia.payload import DeviceWeights, Packed, PackedWeights, Packing, Weights

#: Kinds of device on which weights stay.
STAY = {"cuda"}


def fill(tensors: Mapping[str, Tensor], weights: Weights) -> None:
    """Copy weights into tensors of these names, in place."""
    found = _arrived(tensors, weights)
    alike: dict[torch.dtype, list[str]] = defaultdict(list)
    for name, value in found.items():
        alike[value.dtype].append(name)
    with torch.no_grad():
        for names in alike.values():  # all of one type in one go
            torch._foreach_copy_([tensors[n] for n in names], [found[n] for n in names])


def sent(weights: Weights, device: torch.device) -> dict[str, Tensor]:
    """Return weights on a device; those that lie there already are not copied."""
    there = torch.empty(0, device=device)
    return dict(_arrived(dict.fromkeys(weights, there), weights))


def fetch(tensors: Mapping[str, Tensor], packing: Packing | None = None) -> PackedWeights:
    """Return copies of tensors in one piece, lying as they do; `packing`, if it is known, says how."""
    packed = PackedWeights.of(tensors, packing)
    stays = {buffer.device.type for buffer in packed.buffers.values()} & STAY
    return DeviceWeights(packed) if stays else packed


def _arrived(tensors: Mapping[str, Tensor], weights: Weights) -> Weights:
    """Return weights where they are needed: many small copies to a GPU would each wait for the last."""
    device = next((tensor.device for tensor in tensors.values()), None)  # a network lies on one
    there = weights.there if isinstance(weights, Packed) else None
    if there is not None and all(piece.device == device for piece in there.pieces()):
        return there
    if device is None or device.type != "cuda":
        return weights
    crossing = {
        name: value
        for name, value in weights.items()
        if tensors[name].is_cuda and not value.is_cuda
    }
    if not crossing:
        return weights
    if isinstance(weights, PackedWeights) and len(crossing) == len(weights):
        return weights.to(device)
    return {**weights, **PackedWeights.of(crossing).to(device)}
