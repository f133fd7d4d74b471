"""The one reducer: weighted sums of sites' tensors, group by group, in double precision.

A group's shares have one of three shapes: one number per site (a mean), one per site and output row
(rows of a head that only some sites can teach), or one per pair of sites (a mixture for each site).
Sums are divided by those of the shares; where these are zero the previous value is kept. Integer buffers
are never averaged: the largest is taken. Sites are visited in the order of their names. Tensors that lie
side by side in every update are summed in one go, a block of numbers at a time: the sum stays near
the processor, and of updates that wait on disk no more than a block is in memory. Updates that all lie
on one GPU are summed there, to the same bits, and so does their sum; some may have been summed as they
came (`ops/sums.py`), to the same bits too.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from consilia.ops.sums import Running, Summed, block_on, blocks, lying_as, weighted
from consilia.payload import DeviceWeights, Packed, PackedWeights, Packing, Stretch, Weights

#: Per site: one number, or one number per row of the group's tensors.
Shares: TypeAlias = Mapping[str, float | int | np.ndarray]


@dataclass(frozen=True)
class Plan:
    """Shares as they are summed: none is negative, and the sum is divided by theirs in the end.

    So what one site adds does not depend on who else answers, and can be added as it comes.

    Attributes:
        shares: Of each site, one number or one per row.
        total: Their sum; where it is zero the previous value is kept.
        divisor: That sum, or 1 where shares sum to one already or to nothing.
    """

    shares: Mapping[str, np.ndarray]
    total: np.ndarray
    divisor: np.ndarray

    @staticmethod
    def of(shares: Shares) -> Plan:
        """Return the plan of some shares; what is not finite counts as none."""
        raw = {site: np.asarray(share, dtype=np.float64) for site, share in shares.items()}
        clean = {site: np.where(np.isfinite(s) & (s > 0), s, 0.0) for site, s in raw.items()}
        total = np.asarray(sum((clean[site] for site in sorted(clean)), start=np.float64(0)))
        divisor = np.where((total > 0) & (np.abs(total - 1) > 1e-12), total, 1.0)
        return Plan(clean, total, divisor)

    @property
    def by_row(self) -> bool:
        """Whether some site has a share for each row."""
        return any(share.ndim for share in self.shares.values())


def normalise(shares: Shares) -> dict[str, np.ndarray]:
    """Return non-negative shares that sum to one over the sites, per row where there are rows.

    A row without any share stays all zero. Shares that already sum to one are left as they are, to the
    bit.
    """
    plan = Plan.of(shares)
    return {site: np.asarray(share / plan.divisor) for site, share in plan.shares.items()}


def parts(shares: Mapping[str, float]) -> dict[str, float]:
    """Return each site's part in a mean by one share per site."""
    return {site: float(part) for site, part in normalise(shares).items()}


def reduce(
    previous: Weights,
    updates: Mapping[str, Weights],
    shares: Mapping[str, Shares],
    groups: Mapping[str, tuple[str, ...]],
) -> Weights:
    r"""Return :math:`\theta_g = \sum_k w_{g,k} \theta_{g,k}` for every group :math:`g` with shares.

    Tensors of groups without shares keep their previous value. The result is in memory of its own.

    Args:
        previous: The values that stay where nothing is shared.
        updates: The tensors each site sent; a site may be read lazily from disk.
        shares: For each group, the part of each site; need not sum to one.
        groups: For each group, the names of its tensors.
    """
    made = {id(shares[group]): Plan.of(shares[group]) for group in groups if group in shares}
    plans = {
        name: made[id(shares[group])]
        for group, members in groups.items()
        if group in shares
        for name in members
    }
    packed = _packed(updates, plans)
    device = _common_device(packed)
    if device is not None:
        packed = {site: _there(update) for site, update in packed.items()}
        previous = _there(previous) if isinstance(previous, Packed) else previous
    result = PackedWeights.room(_lying_as(packed, previous), device)
    done: set[str] = set()
    for strip in _strips(plans, packed, result):
        done.update(strip.sum_into(result, previous))
    for name in previous.keys() - done:
        result[name].copy_(previous[name])
    return result if device is None else _ready(result, device)


def reduce_whole(
    previous: Weights,
    updates: Mapping[str, Weights],
    shares: Mapping[str, float],
    groups: Mapping[str, tuple[str, ...]],
) -> tuple[Weights, dict[str, float]]:
    """Return the mean of whole models by one share per site, and each site's part in it."""
    weights = reduce(previous, updates, dict.fromkeys(groups, shares), groups)
    return weights, parts(shares)


def mixtures(
    updates: Mapping[str, Weights],
    matrix: Mapping[str, Shares],
    fallback: Mapping[str, Weights],
    names: tuple[str, ...],
) -> dict[str, Weights]:
    r"""Return for each site :math:`i` its own mixture :math:`\sum_j a_{ij} \theta_j`."""
    packed = _packed(updates, names)
    return {
        site: reduce(fallback[site], packed, {"mixed": row}, {"mixed": names})
        for site, row in matrix.items()
    }


def _packed(updates: Mapping[str, Weights], names: Collection[str]) -> dict[str, Packed]:
    """Return updates in the order of their sites, each in one piece, and every tensor lying one way."""
    packed = {
        site: update if isinstance(update, Packed) else _pack(update, names)
        for site, update in sorted(updates.items())
    }
    running = _running(packed)
    if running is not None:
        return {site: lying_as(update, running.packing) for site, update in packed.items()}
    last = _last(packed)
    if all(last & each.packing.specs.keys() == each.packing.last for each in packed.values()):
        return packed
    return {s: PackedWeights.of(each, each.packing.lying(())) for s, each in packed.items()}


def _running(updates: Mapping[str, Packed]) -> Running | None:
    """Return the sum that some of the updates are in already, if any are."""
    return next((update.running for update in updates.values() if isinstance(update, Summed)), None)


def _last(updates: Mapping[str, Packed]) -> frozenset[str]:
    """Return the tensors that lie with channels last in some update."""
    return frozenset().union(*{update.packing.last for update in updates.values()})


def _lying_as(updates: Mapping[str, Packed], previous: Weights) -> Packing:
    """Return how a sum lies: as the updates do, so that they are added as they are."""
    packing = Packing.of(previous)
    return packing.lying(_last(updates)) if updates else packing


def _common_device(updates: Mapping[str, Packed]) -> torch.device | None:
    """Return the device on which all updates lie, or `None` where the host has some of them."""
    found: set[torch.device] = set()
    for update in updates.values():
        if update.there is None:
            return None
        found |= {piece.device for piece in update.there.pieces()}
    return found.pop() if len(found) == 1 else None


def _there(weights: Packed) -> Packed:
    return weights if weights.there is None else weights.there


def _ready(result: PackedWeights, device: torch.device) -> DeviceWeights:
    """Return sums that stay on their device, done before another stream may read them."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return DeviceWeights(result)


def _pack(update: Weights, names: Collection[str]) -> Packed:
    return PackedWeights.of({name: value for name, value in update.items() if name in names})


@dataclass
class _Strip:
    """Tensors that lie side by side in every update that shares in them, by the same plan.

    Attributes:
        running: The sum that some sites' updates are in already.
        updates: Of the other sites that share in these tensors, in their order.
        names: The tensors, in order.
        places: Where the strip lies, by packing.
        goals: Where its sums go.
    """

    plan: Plan
    running: Running | None
    updates: Mapping[str, Packed]
    names: list[str]
    places: dict[Packing, Stretch]
    goals: list[Stretch]

    def joins(self, name: str, places: Mapping[Packing, Stretch], goal: Stretch) -> bool:
        """Take up a tensor that begins where this strip ends in every update; return whether it does."""
        for packing, at in places.items():
            if not self.places[packing].meets(at):
                return False
        self.names.append(name)
        for packing, at in places.items():
            self.places[packing] = self.places[packing].upto(at)
        if self.goals[-1].meets(goal):
            self.goals[-1] = self.goals[-1].upto(goal)
        else:
            self.goals.append(goal)
        return True

    def sum_into(self, result: PackedWeights, previous: Weights) -> Collection[str]:
        """Write the sums of the tensors, and return the names of those that were written."""
        if not self.goals[0].kind.is_floating_point:
            begun = () if self.running is None else (self._begun(self.running),)
            values = functools.reduce(torch.maximum, (*begun, *self._values()))
            _write(values, self.goals, result)
        elif self.plan.by_row:
            self._sum_rows(result, previous)
        elif self.plan.total > 0:
            self._sum_blocks(result)
        else:
            return ()
        return self.names

    def _sum_blocks(self, result: PackedWeights) -> None:
        """Sum by one number per site, from what has been summed already on."""
        weights = [float(self.plan.shares[site]) for site in self.updates]
        divisor = float(self.plan.divisor)
        device = result.read(self.goals[0]).device
        block = block_on(device)
        total, room = torch.empty(2, block, dtype=torch.float64, device=device)
        start = 0
        for goals in blocks(self.goals, block):
            size = sum(goal.size for goal in goals)
            here = total[:size]
            begun = self.running is not None
            if self.running is not None:
                here.copy_(self._begun(self.running, start, size))
            weighted(self._values(start, size), weights, here, room[:size], begun=begun)
            _write(here if divisor == 1 else here.div_(divisor), goals, result)
            start += size

    def _sum_rows(self, result: PackedWeights, previous: Weights) -> None:
        """Sum the one tensor here by one number per site and row."""
        (name,) = self.names
        before = previous[name].to(result[name].device)
        shape, device = before.shape, before.device
        shares = self.plan.shares
        weights = [_along_rows(shares[site], shape).to(device) for site in self.updates]
        total, room = torch.empty(2, *shape, dtype=torch.float64, device=device)
        values = (
            u.packing.shaped(name, u.read(self.places[u.packing])) for u in self.updates.values()
        )
        weighted(values, weights, total, room)
        total.div_(_along_rows(self.plan.divisor, shape).to(device))
        shared = _along_rows(self.plan.total > 0, shape).to(device)
        result[name].copy_(torch.where(shared, total.to(before.dtype), before))

    def _begun(self, running: Running, start: int = 0, size: int | None = None) -> Tensor:
        """Return what has been summed already of the strip, or of a part of it."""
        return running.read(self.places[running.packing].part(start, size))

    def _values(self, start: int = 0, size: int | None = None) -> Iterator[Tensor]:
        """Yield what each site sent of the strip, or of a part of it."""
        for update in self.updates.values():
            yield update.read(self.places[update.packing].part(start, size))


def _strips(
    plans: Mapping[str, Plan], updates: Mapping[str, Packed], result: PackedWeights
) -> list[_Strip]:
    """Return the tensors that have a plan, joined to strips as long as they go; rows never join."""
    if not updates:
        return []
    sharing: dict[int, tuple[Running | None, dict[str, Packed]]] = {}
    packings: dict[int, set[Packing]] = {}
    for key, plan in {id(plan): plan for plan in plans.values()}.items():
        each = {site: update for site, update in updates.items() if site in plan.shares}
        sharing[key] = _parted(plan, each)
        packings[key] = {update.packing for update in each.values()}
    first = next(iter(updates.values())).packing
    ordered = [name for names in first.names.values() for name in names if name in plans]
    found: list[_Strip] = []
    last: Plan | None = None
    for name in (*ordered, *(name for name in plans if name not in first.specs)):
        plan, goal = plans[name], result.packing.places[name]
        places = {packing: packing.places[name] for packing in packings[id(plan)]}
        if places and not (plan is last and found[-1].joins(name, places, goal)):
            found.append(_Strip(plan, *sharing[id(plan)], [name], places, [goal]))
            last = None if plan.by_row else plan
    return found


def _parted(plan: Plan, updates: Mapping[str, Packed]) -> tuple[Running | None, dict[str, Packed]]:
    """Return the sum that some updates are in already, and the others."""
    left = {site: update for site, update in updates.items() if not isinstance(update, Summed)}
    running = _running(updates)
    if running is not None:
        ours = {site: plan.shares[site] for site in updates.keys() - left.keys()}
        same = not plan.by_row and ours == running.shares
        assert same, "`share_of` and `aggregate` differ in what replies count"
    return running, left


def _write(values: Tensor, goals: Sequence[Stretch], result: PackedWeights) -> None:
    parts = torch.split(values, [goal.size for goal in goals])
    torch._foreach_copy_([result.read(goal) for goal in goals], parts)


def _along_rows(share: np.ndarray, shape: Sequence[int]) -> Tensor:
    weights = torch.as_tensor(share)
    return weights.reshape(-1, *[1] * (len(shape) - 1)) if weights.dim() else weights
