"""What sites remember between rounds: in RAM up to a cap, beyond it on disk; snapshots are cheap."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import OrderedDict, defaultdict
from collections.abc import ItemsView, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from consilia.errors import MessageError
from consilia.payload import (
    Packed,
    PackedWeights,
    Stretch,
    bytes_of,
    flatten,
    is_whole,
    load,
    pieces,
    save,
)

T = TypeVar("T")

#: Where each buffer in a file of bare numbers may begin: at a multiple of the widest element's bytes.
_ALIGNED = 8


class MemoryStore:
    """Values by key (`site/part`), each with at most one file behind it.

    A value that has not changed since it was last written is never written again: a snapshot only
    links its file. So a label overlay, corrected once in a run, costs one write in that run.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap
        self._held: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._files: dict[str, Path] = {}
        self._of: defaultdict[str, set[str]] = defaultdict(set)
        self._written = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def put(self, key: str, value: object) -> None:
        """Remember a value; the least recently used ones move to disk when the cap is passed."""
        if key in self._held and self._held[key] is value:
            return
        self._forget_file(key)
        self._held[key] = value
        self._held.move_to_end(key)
        self._of[key.partition("/")[0]].add(key)
        self._total -= self._sizes.get(key, 0)
        self._sizes[key] = _held_bytes(value)
        self._total += self._sizes[key]
        while self._total > self.cap and len(self._held) > 1:
            old = next(iter(self._held))
            self._write(old)
            self._total -= self._sizes.pop(old)
            del self._held[old]

    def get(self, key: str, kind: type[T]) -> T | None:
        """Return a remembered value, or `None`."""
        if key in self._held:
            self._held.move_to_end(key)
            value: T = self._held[key]
            return value
        if key not in self._files:
            return None
        try:
            return load(self._files[key], kind)
        except MessageError as error:
            raise MessageError(_damaged(key)) from error

    def keys(self) -> tuple[str, ...]:
        """Return every key, sorted."""
        return tuple(sorted({*self._held, *self._files}))

    def of(self, site: str) -> tuple[str, ...]:
        """Return the keys of one site, sorted."""
        return tuple(sorted(self._of.get(site, ())))

    def snapshot(self, folder: Path) -> None:
        """Put a file of every value into a folder."""
        for key in self.keys():
            self._write(key)
            target = folder / f"{key}.safetensors"
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(self._files[key], target)

    def restore(self, folder: Path) -> None:
        """Take over the values of a snapshot."""
        for path in sorted(folder.rglob("*.safetensors")):
            key = path.relative_to(folder).as_posix().removesuffix(".safetensors")
            self._files[key] = self._next_file()
            self._of[key.partition("/")[0]].add(key)
            _link(path, self._files[key])

    def refuse_damaged(self) -> None:
        """Refuse a file that cannot be read now, rather than when its site would need it."""
        for key, path in self._files.items():
            if not is_whole(path):
                raise MessageError(_damaged(key))

    def remove(self) -> None:
        """Remove every file; snapshots keep their own links."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, key: str) -> None:
        if key not in self._files:
            path = self._next_file()
            save(path, self._held[key])
            self._files[key] = path

    def _next_file(self) -> Path:
        self._written += 1
        return self.folder / f"{self._written:08d}.safetensors"

    def _forget_file(self, key: str) -> None:
        path = self._files.pop(key, None)
        if path is not None:
            path.unlink(missing_ok=True)


class DiskWeights(Packed):
    """Weights that wait on disk until they are read, and are not kept after.

    The file holds bare numbers, one buffer after another: only this object can read it.
    """

    def __init__(self, path: Path, weights: PackedWeights) -> None:
        self.packing = weights.packing
        self._path = path
        self._starts: dict[torch.dtype, int] = {}
        at = 0
        with path.open("wb") as handle:
            for kind, buffer in weights.buffers.items():
                handle.write(bytes(-at % _ALIGNED))
                at += -at % _ALIGNED
                self._starts[kind] = at
                handle.write(bytes_of(buffer).numpy().data)
                at += buffer.nbytes
        self._size = at

    def read(self, stretch: Stretch) -> Tensor:
        """Return the numbers of a stretch as one row."""
        return self._within(self._mapped(), stretch)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(self.packing.places[name]).view(self.packing.specs[name][0])

    def items(self) -> ItemsView[str, Tensor]:
        """Read the file once for all tensors."""
        held = self._mapped()
        places, specs = self.packing.places, self.packing.specs
        return {
            name: self._within(held, places[name]).view(shape) for name, (shape, _) in specs.items()
        }.items()

    def _mapped(self) -> Tensor:
        return torch.from_file(str(self._path), size=self._size, dtype=torch.uint8)

    def _within(self, held: Tensor, stretch: Stretch) -> Tensor:
        at, each = self._starts[stretch.kind], stretch.kind.itemsize
        return held[at + stretch.start * each : at + stretch.stop * each].view(stretch.kind)


class Spool:
    """Holds the replies of one round; beyond a cap their weights wait on disk."""

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap
        self._held = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def keep(self, site: str, message: Any) -> Any:
        """Return the message with its weights in one piece, on disk where the cap has been passed."""
        heavy = {
            f.name: value if isinstance(value, PackedWeights) else PackedWeights.of(value)
            for f in dataclasses.fields(message)
            if _holds_tensors(value := getattr(message, f.name))
        }
        size = sum(weights.nbytes for weights in heavy.values())
        if self._held + size <= self.cap:
            self._held += size
            return dataclasses.replace(message, **heavy)
        moved = {
            name: DiskWeights(self.folder / f"{site}.{name}.numbers", weights)
            for name, weights in heavy.items()
        }
        return dataclasses.replace(message, **moved)

    def clear(self) -> None:
        """Drop what was held."""
        self._held = 0
        for path in self.folder.glob("*.numbers"):
            path.unlink()

    def remove(self) -> None:
        """Remove every file."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _damaged(key: str) -> str:
    site = key.partition("/")[0]
    return f"what site '{site}' remembers ('{key}.safetensors') is damaged, cut short or not ours"


def _held_bytes(value: object) -> int:
    """Return the memory that a value keeps from being used again: a view keeps all that it is cut from."""
    storages = [tensor.untyped_storage() for tensor in pieces(flatten(value)[1])]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _holds_tensors(value: object) -> bool:
    if isinstance(value, PackedWeights) or not isinstance(value, Mapping):
        return isinstance(value, PackedWeights)
    return len(value) > 0 and all(isinstance(inner, Tensor) for inner in value.values())


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
