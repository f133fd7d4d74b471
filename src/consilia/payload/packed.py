"""Weights in one piece: one buffer per element type, of which the tensors are views.

What is done to all numbers alike is then done once and not tensor by tensor: a copy across to a GPU,
the look for numbers that are not finite, a sum over sites. Whoever does not care reads a mapping, also
where the numbers are on a GPU (`DeviceWeights`).

Kernels of convolutions may lie with channels last, as networks have them in memory: so that between a
network and a buffer, either way, every tensor is one plain copy. What is hashed, written to a file or
sent is in the common order all the same.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilia.payload.kinds import Spec, Weights


@dataclass(frozen=True)
class Stretch:
    """Neighbouring numbers of one element type."""

    kind: torch.dtype
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.stop - self.start

    def part(self, start: int, size: int | None = None) -> Stretch:
        """Return so many of these numbers from one on, or all that follow."""
        stop = self.stop if size is None else self.start + start + size
        return Stretch(self.kind, self.start + start, stop)

    def meets(self, other: Stretch) -> bool:
        """Return whether another stretch begins where this one ends."""
        return self.kind == other.kind and self.stop == other.start

    def upto(self, other: Stretch) -> Stretch:
        """Return the stretch from the beginning of this one to the end of another."""
        return Stretch(self.kind, self.start, other.stop)


class Packing:
    """Which tensor lies where: worked out once for all weights of the same names, shapes and types.

    Two packings are the same object or differ; make them with `Packing.of`.

    Attributes:
        specs: The shape and element type of each tensor, in order.
        last: The tensors that lie with channels last.
        places: Where each tensor lies in the buffer of its element type.
        sizes: How many numbers each buffer holds.
        runs: All numbers in the order of the tensors: neighbours of one element type are one stretch.
        nbytes: The bytes of all tensors.
    """

    def __init__(self, specs: tuple[tuple[str, Spec], ...], last: frozenset[str]) -> None:
        self.specs = dict(specs)
        self.last = last
        self.places: dict[str, Stretch] = {}
        self.sizes: dict[torch.dtype, int] = {}
        runs: list[Stretch] = []
        for name, (shape, kind) in specs:
            start = self.sizes.get(kind, 0)
            stop = self.sizes[kind] = start + torch.Size(shape).numel()
            self.places[name] = Stretch(kind, start, stop)
            if runs and runs[-1].meets(self.places[name]):
                runs[-1] = runs[-1].upto(self.places[name])
            else:
                runs.append(self.places[name])
        self.runs = tuple(runs)
        self.nbytes = sum(size * kind.itemsize for kind, size in self.sizes.items())

    @staticmethod
    def of(weights: Weights) -> Packing:
        """Return the packing of weights with these names, shapes and element types, lying as they do."""
        if isinstance(weights, Packed):
            return weights.packing
        specs = tuple((name, (tuple(t.shape), t.dtype)) for name, t in weights.items())
        return _packing(specs, frozenset(name for name, t in weights.items() if _lies_last(t)))

    def lying(self, last: Collection[str]) -> Packing:
        """Return the packing of the same tensors, of which these lie with channels last."""
        return _packing(tuple(self.specs.items()), frozenset(last) & frozenset(self.specs))

    @functools.cached_property
    def names(self) -> dict[torch.dtype, tuple[str, ...]]:
        """The tensors in each buffer, in order."""
        places = self.places.items()
        return {kind: tuple(n for n, at in places if at.kind == kind) for kind in self.sizes}

    def cut(self, buffers: Mapping[torch.dtype, Tensor]) -> dict[str, Tensor]:
        """Return the tensors as views of buffers, in order."""
        parts: dict[str, Tensor] = {}
        for kind, names in self.names.items():
            sizes = [self.places[name].size for name in names]
            parts |= dict(zip(names, torch.split(buffers[kind], sizes), strict=True))
        return {name: self.shaped(name, parts[name]) for name in self.specs}

    def shaped(self, name: str, row: Tensor) -> Tensor:
        """Return the row of a tensor's numbers as the tensor, without a copy."""
        shape = self.specs[name][0]
        if name not in self.last:
            return row.view(shape)
        rows, channels, *field = shape
        return row.view(rows, *field, channels).movedim(-1, 1)

    def row(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor's numbers as they lie here, without a copy where it lies so already."""
        return (tensor.movedim(1, -1) if name in self.last else tensor).reshape(-1)


@functools.lru_cache(maxsize=256)
def _packing(specs: tuple[tuple[str, Spec], ...], last: frozenset[str]) -> Packing:
    return Packing(specs, last)


def _lies_last(tensor: Tensor) -> bool:
    """Return whether a tensor lies with channels last, and not in the common order."""
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


class Packed(Mapping[str, Tensor], ABC):
    """Weights whose numbers can be read by the stretch, wherever they are."""

    packing: Packing

    @abstractmethod
    def read(self, stretch: Stretch) -> Tensor:
        """Return the numbers of a stretch as one row, as they lie."""

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return self.packing.nbytes

    @property
    def there(self) -> PackedWeights | None:
        """The weights on the device where they stay; `None`: the host has them."""
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self.packing.specs)

    def __len__(self) -> int:
        return len(self.packing.specs)

    def __contains__(self, name: object) -> bool:
        return name in self.packing.specs


class PackedWeights(Packed):
    """Weights in memory; the tensors are views, so that what is written into one is in the buffer too."""

    buffers: Mapping[torch.dtype, Tensor]

    def __init__(self, packing: Packing, buffers: Mapping[torch.dtype, Tensor]) -> None:
        self.packing = packing
        self.buffers = buffers
        self._digests: dict[bytes, tuple[tuple[int, ...], str]] = {}

    @staticmethod
    def of(weights: Weights, packing: Packing | None = None) -> PackedWeights:
        """Return a copy of weights in one piece, where they are, lying as they do or as told."""
        packing = packing or Packing.of(weights)
        with torch.no_grad():
            if isinstance(weights, PackedWeights) and weights.packing is packing:
                parts = {kind: [buffer] for kind, buffer in weights.buffers.items()}
            else:
                held = dict(weights.items())  # read once, where they wait on disk
                parts = {
                    kind: [packing.row(name, held[name]) for name in names]
                    for kind, names in packing.names.items()
                }
            sizes = packing.sizes
            return PackedWeights(packing, {k: _joined(each, sizes[k]) for k, each in parts.items()})

    @staticmethod
    def room(packing: Packing, device: torch.device | None = None) -> PackedWeights:
        """Return room for weights; what is in it means nothing."""
        return PackedWeights(
            packing, {kind: _room(size, kind, device) for kind, size in packing.sizes.items()}
        )

    def pieces(self) -> Iterable[Tensor]:
        """Return all numbers in as few tensors as they lie in, wherever that is."""
        return self.buffers.values()

    def to(self, device: torch.device) -> PackedWeights:
        """Return a copy on a device, by way of pinned memory where it crosses."""
        return PackedWeights(
            self.packing, {kind: _crossed(b, device) for kind, b in self.buffers.items()}
        )

    def read(self, stretch: Stretch) -> Tensor:
        """Return the numbers of a stretch as one row."""
        return self.buffers[stretch.kind][stretch.start : stretch.stop]

    @functools.cached_property
    def _views(self) -> dict[str, Tensor]:
        return self.packing.cut(self.buffers)

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def items(self) -> ItemsView[str, Tensor]:
        """Return names and views."""
        return self._views.items()

    def values(self) -> ValuesView[Tensor]:
        """Return the views."""
        return self._views.values()

    def _written(self) -> tuple[int, ...]:
        """Return how often the numbers that count have been written into."""
        return _versions(self.buffers)

    def digest(self, head: bytes) -> str:
        """Return the sha256 of `head` and all numbers in the common order, known until one is changed.

        A message to all sites is the same for each: it is hashed once.
        """
        versions = self._written()
        if head not in self._digests or self._digests[head][0] != versions:
            found = hashlib.sha256(head)
            for piece in self.values() if self.packing.last else map(self.read, self.packing.runs):
                found.update(bytes_of(piece).numpy().data)
            self._digests[head] = versions, found.hexdigest()
        return self._digests[head][1]


class DeviceWeights(PackedWeights):
    """Weights that stay on the device where they were made; the host has a copy once somebody reads them.

    So between training and averaging on a GPU nothing crosses, unless a method, a file or a hash wants
    the numbers themselves.
    """

    def __init__(self, made: PackedWeights) -> None:
        self.packing = made.packing
        self._made = made
        self._digests = {}
        self._versions: tuple[int, ...] | None = None

    @property
    def there(self) -> PackedWeights | None:
        """The weights on their device, or `None` where somebody has written into the host's copy."""
        unread = self._versions is None
        return self._made if unread or self._versions == _versions(self.buffers) else None

    @functools.cached_property
    def buffers(self) -> Mapping[torch.dtype, Tensor]:  # type: ignore[override]  # copied when read
        """The host's copy."""
        host = self._made.to(torch.device("cpu")).buffers
        self._versions = _versions(host)
        return host

    def pieces(self) -> Iterable[Tensor]:
        """Return all numbers in as few tensors as they lie in, wherever that is."""
        return (self if self.there is None else self.there).buffers.values()

    def let_go(self) -> None:
        """Drop the host's copy, if there is one and nobody has written into it."""
        if self._versions is not None and self.there is not None:
            for copied in ("buffers", "_views"):
                vars(self).pop(copied, None)
            self._versions = None

    def digest(self, head: bytes) -> str:
        """Return the sha256 as of any weights, and leave no copy at the host that was not there before."""
        unread = self._versions is None
        found = super().digest(head)
        if unread:
            self.let_go()
        return found

    def _written(self) -> tuple[int, ...]:
        there = self.there
        if there is None:
            return (1, *_versions(self.buffers))
        return (0, *_versions(there.buffers))  # never taken for the host's, written as often


def near(weights: Weights) -> Weights:
    """Return weights where they lie: on a device, if they stay there, without a copy for the host."""
    there = weights.there if isinstance(weights, Packed) else None
    return weights if there is None else there


def anew(weights: Weights) -> Weights:
    """Return weights that were written where they lie: what the host has read of them is forgotten."""
    there = weights.there if isinstance(weights, Packed) else None
    return weights if there is None else DeviceWeights(there)


def picked(weights: Weights, names: Iterable[str]) -> Weights:
    """Return some tensors of weights; of those that stay on a device, copies there in one piece."""
    return renamed(weights, {name: name for name in names})


def renamed(weights: Weights, names: Mapping[str, str]) -> Weights:
    """Return tensors under new names, each given with its old one; as `picked` does."""
    lying = near(weights)
    found = {new: lying[old] for new, old in names.items()}
    return found if lying is weights or not found else _settled(found)


def united(*parts: Weights) -> Weights:
    """Return the tensors of all parts; where they all stay on a device, copies there in one piece."""
    full = [part for part in parts if part]
    lying = [near(part) for part in full]
    stay = bool(full) and all(part is not there for part, there in zip(full, lying, strict=True))
    found = {name: tensor for part in (lying if stay else full) for name, tensor in part.items()}
    return _settled(found) if stay else found


def _settled(found: Weights) -> DeviceWeights:
    """Return copies on a device, done before another stream may read them."""
    made = PackedWeights.of(found)
    for buffer in made.pieces():
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()
            break
    return DeviceWeights(made)


def _versions(buffers: Mapping[torch.dtype, Tensor]) -> tuple[int, ...]:
    """Return how often each buffer has been written into."""
    return tuple(buffer._version for buffer in buffers.values())


def bytes_of(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes in the common order of its numbers, without a copy where that can be."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _room(size: int, kind: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return memory for so many numbers; NumPy's lies in large pages where the system has them."""
    if device is not None and device.type != "cpu":
        return torch.empty(size, dtype=kind, device=device)
    return torch.from_numpy(np.empty(size * kind.itemsize, dtype=np.uint8)).view(kind)


def _joined(parts: list[Tensor], size: int) -> Tensor:
    if parts[0].is_cuda:
        return torch.cat(parts)
    return torch.cat(parts, out=_room(size, parts[0].dtype))


def _crossed(buffer: Tensor, device: torch.device) -> Tensor:
    if buffer.device.type == device.type == "cpu":
        return buffer.clone()
    if buffer.is_cuda and device.type == "cuda":
        return buffer.to(device, copy=True)
    pinned = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
    pinned.copy_(buffer)
    return pinned if device.type == "cpu" else pinned.to(device, non_blocking=True)
