"""What sites remember between rounds: in memory up to a cap, beyond it on disk; snapshots are cheap.

What stays on a GPU takes none of the RAM that the cap is for; it may take a part of the GPU's memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from consilia.engines.scratch import DiskWeights, Scratch
from consilia.errors import MessageError
from consilia.ops.sums import Running, Summed
from consilia.payload import (
    Json,
    Packed,
    PackedWeights,
    build,
    flatten,
    is_whole,
    load,
    pieces,
    save_flat,
)

T = TypeVar("T")

#: What sites remember may take one such part of a GPU's memory, and waiting replies another.
PART = 8


class MemoryStore:
    """Values by key (`site/part`): in memory, put aside to free it, or in a file that a snapshot links.

    A value that has not changed since a snapshot wrote it is never written again: the next one only
    links its file. So a label overlay, corrected once in a run, costs one write in that run.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap
        self._held: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, float] = {}
        self._total = 0.0
        self._scratch = Scratch(folder)
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
        self._sizes[key] = room_taken(pieces(flatten(value)[1]), self.cap)
        self._total += self._sizes[key]
        while self._total > 1 and len(self._held) > 1:
            old = next(iter(self._held))
            if old not in self._files:
                self._aside[old] = Aside.of(
                    self._next_file(".tree"), self._scratch, self._held[old]
                )
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

    def let_go(self, site: str) -> None:
        """Drop the host's copies of what a site remembers on a device."""
        for key in self.of(site):
            if key in self._held:
                flatten(self._held[key])[1].let_go()

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
            tree, tensors = flatten(self._held[key])
            save_flat(path, tree, tensors)
            tensors.let_go()  # what was read only to be written
        else:
            save_flat(path, *self._aside[key].read())
        if key in self._aside:
            self._aside.pop(key).remove()
        return path

    def _next_file(self, suffix: str = ".safetensors") -> Path:
        self._written += 1
        return self.folder / f"{self._written:08d}{suffix}"

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
    def of(cls, path: Path, scratch: Scratch, value: object) -> Aside:
        """Put a value aside: its tree into a file of its own, its numbers into a scratch file."""
        tree, tensors = flatten(value)
        path.write_text(json.dumps(tree), encoding="utf-8")
        return cls(path, DiskWeights(scratch, dict(tensors.items())))

    def read(self) -> tuple[Json, Mapping[str, Tensor]]:
        """Return the value as a tree and its tensors."""
        return json.loads(self.tree.read_text(encoding="utf-8")), dict(self.tensors.items())

    def remove(self) -> None:
        """Remove the tree, and let the numbers be written over."""
        self.tree.unlink(missing_ok=True)
        self.tensors.release()


@dataclasses.dataclass
class _Waiting:
    """A reply that waits to be averaged.

    Attributes:
        heavy: The fields that hold weights.
        share: What it counts in a mean, where that is known.
        held: The part of the room for replies that it takes.
    """

    message: Any
    heavy: tuple[str, ...]
    share: float | None
    held: float = 0.0

    @property
    def weights(self) -> dict[str, Packed]:
        """The weights, by field."""
        return {name: getattr(self.message, name) for name in self.heavy}


class Spool:
    """Holds the replies of one round; beyond a cap they are summed as they come, or wait on disk.

    A reply is summed once all sites before it in the order of names have answered or failed: so the
    result is the same to the bit wherever replies were (`ops/sums.py`, decision 0032).
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap
        self._scratch = Scratch(folder)
        self._moved: list[DiskWeights] = []
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.begin(())

    def begin(self, sites: Iterable[str]) -> None:
        """Drop what was held, and await the replies of these sites."""
        for weights in self._moved:
            weights.release()
        self._moved = []
        self._replies: dict[str, _Waiting] = {}
        self._awaited = deque(sorted(sites))
        self._running: dict[str, Running] = {}
        self._held = 0.0

    def keep(
        self, site: str, message: Any, share: float | None = None, *, failed: Collection[str] = ()
    ) -> None:
        """Take a site's reply.

        Args:
            site: Who sent it.
            message: The reply.
            share: What it counts in a mean, where nothing but the reply decides that.
            failed: Sites that will not answer.
        """
        heavy = {
            f.name: value if isinstance(value, PackedWeights) else PackedWeights.of(value)
            for f in dataclasses.fields(message)
            if _holds_tensors(value := getattr(message, f.name))
        }
        reply = self._replies[site] = _Waiting(message, tuple(heavy), share)
        numbers = (piece for weights in heavy.values() for piece in weights.pieces())
        self._put(reply, heavy, room_taken(numbers, self.cap))
        if self._held > 1:
            self._sum_up(failed)
        if self._held > 1:
            moved = {name: DiskWeights(self._scratch, w) for name, w in reply.weights.items()}
            self._moved += moved.values()
            self._put(reply, moved)

    def replies(self) -> dict[str, Any]:
        """Return the replies, in the order of their sites."""
        return {site: self._replies[site].message for site in sorted(self._replies)}

    def remove(self) -> None:
        """Remove every file."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _put(self, reply: _Waiting, weights: Mapping[str, Packed], held: float = 0.0) -> None:
        """Put weights, which take so much of the room, into a reply."""
        self._held += held - reply.held
        reply.message = dataclasses.replace(reply.message, **weights)
        reply.held = held

    def _sum_up(self, failed: Collection[str]) -> None:
        """Add to the running sums what has its turn."""
        ready = list(self._next(failed))
        if not ready:
            return
        shares = {site: reply.share for site, reply in ready if reply.share is not None}
        for name in ready[0][1].heavy:
            updates = {site: reply.weights[name] for site, reply in ready}
            packing = updates[ready[0][0]].packing
            self._running.setdefault(name, Running(packing)).add(updates, shares)
        for _, reply in ready:
            self._put(reply, {name: Summed(self._running[name]) for name in reply.heavy})

    def _next(self, failed: Collection[str]) -> Iterator[tuple[str, _Waiting]]:
        """Yield the replies before which nothing is awaited, as far as their shares are known."""
        while self._awaited:
            reply = self._replies.get(self._awaited[0])
            if reply is None and self._awaited[0] not in failed:
                return
            if reply is not None and reply.share is None:
                return
            site = self._awaited.popleft()
            if reply is not None:
                yield site, reply


def _damaged(key: str) -> str:
    site = key.partition("/")[0]
    return f"what site '{site}' remembers ('{key}.safetensors') is damaged, cut short or not ours"


def room_taken(tensors: Iterable[Tensor], cap: int) -> float:
    """Return the part of the room for them that tensors take: 1 is all of it, in RAM or on a GPU.

    A view keeps all that it is cut from.
    """
    storages = [tensor.untyped_storage() for tensor in tensors]
    sizes = {(s.device, s.data_ptr()): s.nbytes() for s in storages}
    return sum(size / max(1, _room_on(device, cap)) for (device, _), size in sizes.items())


def _room_on(device: torch.device, cap: int) -> int:
    if device.type != "cuda":
        return cap
    return int(torch.cuda.get_device_properties(device).total_memory) // PART


def _holds_tensors(value: object) -> bool:
    if isinstance(value, PackedWeights) or not isinstance(value, Mapping):
        return isinstance(value, PackedWeights)
    return len(value) > 0 and all(isinstance(inner, Tensor) for inner in value.values())


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
