"""Weighted sums of weights in double precision: of those at hand, or growing as replies come.

Sites are added in the order of their names, so that a sum is the same to the bit whether all updates
are at hand or some were added before others came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from consilia.payload import Packed, PackedWeights, Packing, Stretch

#: How many numbers are summed at a time; the sum of so many takes 1 MB, and on a GPU 32 MB.
_BLOCK, _BLOCK_THERE = 1 << 17, 1 << 22


class Running:
    """The sum of some updates, each times its site's share; of integers the largest.

    Attributes:
        shares: The share of each site that is in the sum, in the order of the sites' names.
    """

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self.shares: dict[str, float] = {}
        self._sums = {
            kind: torch.empty(size, dtype=torch.float64 if kind.is_floating_point else kind)
            for kind, size in packing.sizes.items()
        }

    def add(self, updates: Mapping[str, Packed], shares: Mapping[str, float]) -> None:
        """Add the updates of some sites, in the order of their names; all come after those added before."""
        lying = [lying_as(update, self.packing) for update in updates.values()]
        weights = [counting(shares[site]) for site in updates]
        room = torch.empty(block_on(torch.device("cpu")), dtype=torch.float64)
        for kind, size in self.packing.sizes.items():
            whole = Stretch(kind, 0, size)
            if not kind.is_floating_point:
                self._take_largest(whole, lying)
                continue
            for (at,) in blocks([whole], len(room)):
                values = (each.read(at) for each in lying)
                weighted(values, weights, self.read(at), room[: at.size], begun=bool(self.shares))
        self.shares |= dict(zip(updates, weights, strict=True))

    def read(self, stretch: Stretch) -> Tensor:
        """Return the sums of a stretch."""
        return self._sums[stretch.kind][stretch.start : stretch.stop]

    def _take_largest(self, whole: Stretch, lying: Sequence[Packed]) -> None:
        values = torch.stack([each.read(whole) for each in lying]).amax(0)
        here = self.read(whole)
        here.copy_(torch.maximum(here, values) if self.shares else values)


class Summed(Packed):
    """What is left of an update that is in a running sum: how its numbers lay, and which sum has them.

    Its tensors have a shape and no numbers.
    """

    def __init__(self, running: Running) -> None:
        self.packing = running.packing
        self.running = running

    def read(self, stretch: Stretch) -> Tensor:
        """Return room for so many numbers, without any."""
        return torch.empty(stretch.size, dtype=stretch.kind, device="meta")

    def __getitem__(self, name: str) -> Tensor:
        return self.packing.shaped(name, self.read(self.packing.places[name]))


def counting(share: float) -> float:
    """Return a share as it counts: what is not finite or not positive counts as none."""
    return share if math.isfinite(share) and share > 0 else 0.0


def lying_as(update: Packed, packing: Packing) -> Packed:
    """Return an update whose numbers lie as a packing says: itself, or a copy."""
    return update if update.packing is packing else PackedWeights.of(update, packing)


def block_on(device: torch.device) -> int:
    """Return how many numbers are summed at a time on a device."""
    return _BLOCK if device.type == "cpu" else _BLOCK_THERE


def blocks(goals: Iterable[Stretch], most: int) -> Iterator[list[Stretch]]:
    """Yield stretches cut into blocks of at most so many numbers."""
    block: list[Stretch] = []
    left = most
    for goal in goals:
        for at in (0, *range(left, goal.size, most)):
            part = goal.part(at, min(left, goal.size - at))
            block.append(part)
            left -= part.size
            if not left:
                yield block
                block, left = [], most
    if block:
        yield block


def weighted(
    values: Iterable[Tensor],
    weights: Sequence[float | Tensor],
    total: Tensor,
    room: Tensor,
    *,
    begun: bool = False,
) -> Tensor:
    """Return `total`, which becomes the weighted sum of values.

    Args:
        values: The summands, in order.
        weights: The weight of each.
        total: Where the sum is made, in double precision.
        room: Space for one summand.
        begun: Whether `total` holds a sum to go on from.
    """
    for value, weight in zip(values, weights, strict=True):
        (room if begun else total).copy_(value).mul_(weight)
        if begun:
            total.add_(room)
        begun = True
    return total
