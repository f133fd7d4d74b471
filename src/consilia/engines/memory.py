"""What sites remember between rounds: in RAM up to a cap, beyond it on disk; snapshots are cheap."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections import OrderedDict, defaultdict
from collections.abc import ItemsView, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from consilia.errors import MessageError
from consilia.payload import (
    Json,
    Packed,
    PackedWeights,
    Packing,
    Stretch,
    Weights,
    build,
    bytes_of,
    flatten,
    is_whole,
    load,
    pieces,
    save_flat,
)

T = TypeVar("T")

#: Where each buffer in a file of bare numbers may begin: at a multiple of the widest element's bytes.
_ALIGNED = 8


class MemoryStore:
    """Values by key (`site/part`): in memory, put aside to free it, or in a file that a snapshot links.

    A value that has not changed since a snapshot wrote it is never written again: the next one only
    links its file. So a label overlay, corrected once in a run, costs one write in that run.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap
        self._held: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._aside: dict[str, Aside] = {}
        self._files: dict[str, Path] = {}
        self._of: defaultdict[str, set[str]] = defaultdict(set)
        self._written = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def put(self, key: str, value: object) -> None:
        """Remember a value; the least recently used ones move to disk when the cap is passed."""
        if key in self._held and self._held[key] is value:
            return
        self._forget_older(key)
        self._held[key] = value
        self._held.move_to_end(key)
        self._of[key.partition("/")[0]].add(key)
        self._total -= self._sizes.get(key, 0)
        self._sizes[key] = _held_bytes(value)
        self._total += self._sizes[key]
        while self._total > self.cap and len(self._held) > 1:
            old = next(iter(self._held))
            if old not in self._files:
                self._aside[old] = Aside.of(self._next_file(), self._held[old])
            self._total -= self._sizes.pop(old)
            del self._held[old]

    def get(self, key: str, kind: type[T]) -> T | None:
        """Return a remembered value, or `None`."""
        if key in self._held:
            self._held.move_to_end(key)
            value: T = self._held[key]
            return value
        try:
            if key in self._aside:
                return build(kind, *self._aside[key].read())  # type: ignore[no-any-return]  # checked
            return load(self._files[key], kind) if key in self._files else None
        except MessageError as error:
            raise MessageError(_damaged(key)) from error

    def keys(self) -> tuple[str, ...]:
        """Return every key, sorted."""
        return tuple(sorted({*self._held, *self._aside, *self._files}))

    def of(self, site: str) -> tuple[str, ...]:
        """Return the keys of one site, sorted."""
        return tuple(sorted(self._of.get(site, ())))

    def snapshot(self, folder: Path) -> None:
        """Put a file of every value into a folder."""
        for key in self.keys():
            if key not in self._files:
                self._files[key] = self._write(key)
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

    def _write(self, key: str) -> Path:
        """Write a value that is in memory or put aside, and no longer needs to be the latter."""
        path = self._next_file()
        if key in self._held:
            save_flat(path, *flatten(self._held[key]))
        else:
            save_flat(path, *self._aside[key].read())
        if key in self._aside:
            self._aside.pop(key).remove()
        return path

    def _next_file(self) -> Path:
        self._written += 1
        return self.folder / f"{self._written:08d}.safetensors"

    def _forget_older(self, key: str) -> None:
        if key in self._aside:
            self._aside.pop(key).remove()
        if key in self._files:
            self._files.pop(key).unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Aside:
    """A value on disk only to free memory: quick to write and to read, and worth nothing after a crash."""

    tree: Path
    tensors: DiskWeights

    @classmethod
    def of(cls, path: Path, value: object) -> Aside:
        """Put a value aside in two files named after `path`."""
        tree, tensors = flatten(value)
        path.with_suffix(".tree").write_text(json.dumps(tree), encoding="utf-8")
        numbers = DiskWeights(path.with_suffix(".numbers"), dict(tensors.items()))
        return cls(path.with_suffix(".tree"), numbers)

    def read(self) -> tuple[Json, Mapping[str, Tensor]]:
        """Return the value as a tree and its tensors."""
        return json.loads(self.tree.read_text(encoding="utf-8")), dict(self.tensors.items())

    def remove(self) -> None:
        """Remove both files."""
        self.tree.unlink(missing_ok=True)
        self.tensors.path.unlink(missing_ok=True)


class DiskWeights(Packed):
    """Weights that wait on disk until they are read, and are not kept after.

    The file holds bare numbers, one buffer after another: only this object can read it.
    """

    def __init__(self, path: Path, weights: Weights) -> None:
        self.packing = Packing.of(weights)
        self.path = path
        self._starts: dict[torch.dtype, int] = {}
        at = 0
        with path.open("wb") as handle:
            for kind, size in self.packing.sizes.items():
                handle.write(bytes(-at % _ALIGNED))
                at += -at % _ALIGNED
                self._starts[kind] = at
                for piece in _in_order(weights, kind):
                    handle.write(bytes_of(piece).numpy().data)
                at += size * kind.itemsize
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
        return torch.from_file(str(self.path), size=self._size, dtype=torch.uint8)

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


def _in_order(weights: Weights, kind: torch.dtype) -> Iterable[Tensor]:
    """Return all numbers of one element type in the order of the tensors, in as few pieces as can be."""
    if isinstance(weights, PackedWeights):
        return (weights.buffers[kind],)
    return (weights[name] for name in Packing.of(weights).names[kind])


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
