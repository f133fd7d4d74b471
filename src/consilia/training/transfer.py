"""Weights between a network and the messages: in place, and across to a GPU in one piece.

What crosses lies in pinned memory, which PyTorch keeps and hands out again: the copy is several times
faster than from fresh pages, of which each is first touched one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from consilia.payload import Weights


def fill(tensors: Mapping[str, Tensor], weights: Weights) -> None:
    """Copy weights into tensors of these names, in place."""
    with torch.no_grad():
        for name, value in _arrived(tensors, weights).items():
            tensors[name].copy_(value)


def sent(weights: Weights, device: torch.device) -> dict[str, Tensor]:
    """Return weights on a device; those that lie there already are not copied."""
    there = torch.empty(0, device=device)
    return dict(_arrived(dict.fromkeys(weights, there), weights))


def fetch(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the CPU, in the common order of their numbers."""
    if not any(tensor.is_cuda for tensor in tensors.values()):
        return {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
    found: dict[str, Tensor] = {}
    for (kind, device), names in _alike(tensors).items():
        flat = torch.cat([tensors[name].detach().reshape(-1) for name in names])
        landed = torch.empty(flat.shape, dtype=kind, pin_memory=device.type == "cuda")
        landed.copy_(flat)
        found |= _cut(landed, {name: tensors[name].shape for name in names})
    return {name: found[name] for name in tensors}


def _arrived(tensors: Mapping[str, Tensor], weights: Weights) -> Weights:
    """Return weights where they are needed: many small copies to a GPU would each wait for the last."""
    crossing = {
        name: value
        for name, value in weights.items()
        if tensors[name].is_cuda and not value.is_cuda
    }
    if not crossing:
        return weights
    found = dict(weights)
    for (kind, device), names in _alike(crossing, tensors).items():
        parts = [crossing[name].reshape(-1) for name in names]
        flat = torch.empty(sum(map(len, parts)), dtype=kind, pin_memory=True)
        torch.cat(parts, out=flat)
        shapes = {name: crossing[name].shape for name in names}
        found |= _cut(flat.to(device, non_blocking=True), shapes)
    return found


def _alike(
    tensors: Mapping[str, Tensor], goals: Mapping[str, Tensor] | None = None
) -> dict[tuple[torch.dtype, torch.device], list[str]]:
    """Return the names of the tensors that can lie in one piece: of one type, bound for one device."""
    found: dict[tuple[torch.dtype, torch.device], list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        found[tensor.dtype, (goals or tensors)[name].device].append(name)
    return found


def _cut(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
    return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
