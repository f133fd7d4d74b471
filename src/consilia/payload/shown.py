"""What a record holds, as the ledger shows it: sizes and hashes, never the content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from torch import Tensor

from consilia.payload.codec import MEMBER, Branch, Table, paths
from consilia.payload.kinds import Json, Weights
from consilia.payload.packed import PackedWeights, bytes_of
from consilia.payload.record import Record


@dataclass(frozen=True)
class FieldEntry:
    """One field of a message as the ledger shows it."""

    field: str
    dtype: str
    shape: str
    numbers: int
    bytes: int
    sha256: str | None = None


def entries(record: Record, hashes: bool = False) -> tuple[FieldEntry, ...]:
    """Return what a record holds, field by field; a group of weights is one field."""
    if not isinstance(record.body, dict):
        return ()
    return tuple(
        _entry(name, tree, record.tensors, hashes)
        for name, tree in record.body.items()
        if name != MEMBER
    )


def _entry(name: str, tree: Json, tensors: Weights, hashes: bool) -> FieldEntry:
    if type(tree) is Branch and isinstance(tensors, Table):
        whole = tensors.packed_at(tree)
        if whole is not None and len(whole) > 1:
            return _packed_entry(name, tree, whole, hashes)
    held = [tensors[path] for path in paths(tree) if path in tensors]
    digest = _digest(held, tree) if hashes else None
    if not held:
        text = json.dumps(tree)
        kind = type(tree).__name__ if not isinstance(tree, dict | list) else "table"
        return FieldEntry(name, kind, "[]", 0 if tree is None else 1, len(text), digest)
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in held})
    shape = str(list(held[0].shape)) if len(held) == 1 else f"{len(held)} tensors"
    numbers, size = sum(t.numel() for t in held), sum(t.nbytes for t in held)
    return FieldEntry(name, "+".join(kinds), shape, numbers, size, digest)


def _packed_entry(name: str, tree: Branch, whole: PackedWeights, hashes: bool) -> FieldEntry:
    packing = whole.packing
    kinds = sorted(str(kind).removeprefix("torch.") for kind in packing.sizes)
    numbers = sum(packing.sizes.values())
    digest = whole.digest(_head(tree)) if hashes else None
    return FieldEntry(name, "+".join(kinds), f"{len(whole)} tensors", numbers, whole.nbytes, digest)


def _digest(held: list[Tensor], tree: Json) -> str:
    digest = hashlib.sha256(_head(tree))
    for tensor in held:
        digest.update(bytes_of(tensor).numpy().data)
    return digest.hexdigest()


def _head(tree: Json) -> bytes:
    return json.dumps(tree, sort_keys=True).encode()
