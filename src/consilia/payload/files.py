"""Values on disk: one safetensors file each, checked against their type when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from consilia.atomic import whole_file
from consilia.errors import MessageError
from consilia.payload.codec import build, flatten
from consilia.payload.kinds import Json, Layout, Weights

M = TypeVar("M")


def save(path: Path, value: object) -> None:
    """Write a value as one safetensors file, whole or not at all."""
    save_flat(path, *flatten(value))


def save_flat(path: Path, tree: Json, tensors: Weights) -> None:
    """Write a value that is already a tree and its tensors."""
    plain = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        each = tensor.cpu().contiguous()
        storage = each.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() > each.nbytes:
            each = each.clone()  # safetensors refuses tensors that share memory
        seen.add(each.untyped_storage().data_ptr())
        plain[name] = each
    with whole_file(path) as part:
        save_file(plain, part, metadata={"tree": json.dumps(tree)})


def is_whole(path: Path) -> bool:
    """Tell by its head and its length whether a file is one that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            json.loads((file.metadata() or {})["tree"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return False
    return True


def load(path: Path, kind: type[M], layout: Layout | None = None) -> M:
    """Read a value that `save` wrote, checked against its type."""
    try:
        with safe_open(path, framework="pt") as file:
            tree = json.loads((file.metadata() or {})["tree"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError, KeyError, ValueError):
        msg = f"file '{path.name}' cannot be read as a saved state; it is damaged, cut short or not ours"
        raise MessageError(msg) from None
    value: M = build(kind, tree, tensors, layout)
    return value
