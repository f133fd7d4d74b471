"""Numbers that wait on disk for a while, in files that are written over rather than made anew.

What a thousand sites send or remember does not fit into memory, and changes every round. Files that are
removed and made again cost the system three times what it takes to write over their pages.
"""

from __future__ import annotations

import mmap
import weakref
from collections import defaultdict
from collections.abc import ItemsView, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consilia.payload import Packed, PackedWeights, Packing, Stretch, Weights, bytes_of

#: Where each buffer in a file of bare numbers may begin: at a multiple of the widest element's bytes.
_ALIGNED = 8


class Scratch:
    """A folder of files of bare numbers, and which of them are free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._free: defaultdict[int, list[Path]] = defaultdict(list)
        self._made = 0

    def take(self, size: int) -> Path:
        """Return a file of so many bytes that nobody needs, or the name of a new one."""
        if self._free[size]:
            return self._free[size].pop()
        self._made += 1
        return self.folder / f"{self._made:08d}.numbers"

    def give_back(self, path: Path, size: int) -> None:
        """Keep a file for whoever takes one of its size next."""
        self._free[size].append(path)


class DiskWeights(Packed):
    """Weights that wait on disk until they are read, and are not kept after.

    The file holds bare numbers, one buffer after another: only this object can read it. Tensors that were
    read stay as they are, also when the file has been released.
    """

    def __init__(self, scratch: Scratch, weights: Weights) -> None:
        self.packing = Packing.of(weights)
        self._scratch = scratch
        self._starts: dict[torch.dtype, int] = {}
        self._size = 0
        for kind, size in self.packing.sizes.items():
            self._starts[kind] = self._size + -self._size % _ALIGNED
            self._size = self._starts[kind] + size * kind.itemsize
        self._path = scratch.take(self._size)
        self._given_out: list[weakref.ref[np.ndarray]] = []
        self._released = False
        with self._path.open("r+b" if self._path.exists() else "wb") as handle:
            for kind, start in self._starts.items():
                handle.seek(start)
                for piece in _in_order(weights, kind):
                    handle.write(bytes_of(piece).numpy().data)

    def read(self, stretch: Stretch) -> Tensor:
        """Return the numbers of a stretch as one row."""
        return self._within(self._mapped(), stretch)

    def __getitem__(self, name: str) -> Tensor:
        return self.packing.shaped(name, self.read(self.packing.places[name]))

    def items(self) -> ItemsView[str, Tensor]:
        """Read the file once for all tensors."""
        held = self._mapped()
        places = self.packing.places
        return {
            name: self.packing.shaped(name, self._within(held, places[name]))
            for name in self.packing.specs
        }.items()

    def release(self) -> None:
        """Let the file be written over, or remove it while somebody still has tensors of it."""
        self._released = True
        if any(array() is not None for array in self._given_out):
            self._path.unlink(missing_ok=True)
        else:
            self._scratch.give_back(self._path, self._size)

    def _mapped(self) -> Tensor:
        assert not self._released, "weights that wait on disk are read only until they are released"
        if not self._size:
            return torch.empty(0, dtype=torch.uint8)
        with self._path.open("rb") as handle:
            pages = mmap.mmap(handle.fileno(), self._size, access=mmap.ACCESS_COPY)
        array = np.frombuffer(pages, dtype=np.uint8)
        self._given_out = [one for one in self._given_out if one() is not None]
        self._given_out.append(weakref.ref(array))  # tensors cut from it keep it alive
        return torch.from_numpy(array)

    def _within(self, held: Tensor, stretch: Stretch) -> Tensor:
        at, each = self._starts[stretch.kind], stretch.kind.itemsize
        return held[at + stretch.start * each : at + stretch.stop * each].view(stretch.kind)


def _in_order(weights: Weights, kind: torch.dtype) -> Iterable[Tensor]:
    """Return all numbers of one element type as they lie, in as few pieces as can be."""
    if isinstance(weights, PackedWeights):
        return (weights.buffers[kind],)
    packing = Packing.of(weights)
    return (packing.row(name, weights[name]) for name in packing.names[kind])
