"""What sites remember between rounds: in RAM up to a cap, beyond it on disk; snapshots are cheap."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import OrderedDict
from collections.abc import ItemsView, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import Tensor

from consilia.payload import flatten, load, save

T = TypeVar("T")


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
        self._files: dict[str, Path] = {}
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
        self._sizes[key] = sum(t.nbytes for t in flatten(value)[1].values())
        while sum(self._sizes.values()) > self.cap and len(self._held) > 1:
            old = next(iter(self._held))
            self._write(old)
            del self._held[old], self._sizes[old]

    def get(self, key: str, kind: type[T]) -> T | None:
        """Return a remembered value, or `None`."""
        if key in self._held:
            self._held.move_to_end(key)
            value: T = self._held[key]
            return value
        return load(self._files[key], kind) if key in self._files else None

    def keys(self) -> tuple[str, ...]:
        """Return every key, sorted."""
        return tuple(sorted({*self._held, *self._files}))

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
            _link(path, self._files[key])

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


class DiskWeights(Mapping[str, Tensor]):
    """Weights that wait on disk until they are read, and are not kept after."""

    def __init__(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        save_file({name: value.contiguous() for name, value in weights.items()}, path)
        self._path = path
        self._names = tuple(weights)

    def __getitem__(self, name: str) -> Tensor:
        return load_file(self._path)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def items(self) -> ItemsView[str, Tensor]:
        """Read the file once for all tensors."""
        return load_file(self._path).items()


class Spool:
    """Holds the replies of one round; beyond a cap their weights wait on disk."""

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap
        self._held = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def keep(self, site: str, message: Any) -> Any:
        """Return the message, its weights moved to disk where the cap has been passed."""
        heavy = {
            f.name: value
            for f in dataclasses.fields(message)
            if _holds_tensors(value := getattr(message, f.name))
        }
        size = sum(t.nbytes for weights in heavy.values() for t in weights.values())
        if self._held + size <= self.cap:
            self._held += size
            return message
        moved = {
            name: DiskWeights(self.folder / f"{site}.{name}.safetensors", weights)
            for name, weights in heavy.items()
        }
        return dataclasses.replace(message, **moved)

    def clear(self) -> None:
        """Drop what was held."""
        self._held = 0
        for path in self.folder.glob("*.safetensors"):
            path.unlink()

    def remove(self) -> None:
        """Remove every file."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, Tensor) for v in value.values())


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
