"""Typed at both ends, flat in the middle: messages as dataclasses, records as what an engine carries.

A message is a frozen dataclass whose fields are scalars, strings, tensors, weights, tuples, mappings
or other dataclasses. `pack` flattens it into a `Record`: a JSON tree and a flat table of tensors;
`unpack` builds it again and refuses whatever does not have the declared type, names, shapes or
element types. The same codec writes checkpoints and memories (`save`, `load`), so that nothing in
Consilia is ever pickled.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from consilia.errors import MessageError

Weights: TypeAlias = Mapping[str, Tensor]
Json: TypeAlias = Any
M = TypeVar("M")

_TENSOR, _MAP, _MEMBER = "$tensor", "$map", "$member"


@dataclass(frozen=True)
class Group:
    """Marks a `Weights` field: it holds exactly the tensors of these parameter groups."""

    names: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class Shape:
    """Marks a `Tensor` field: its sizes, as numbers or as names of the run's dimensions."""

    dims: tuple[str | int, ...]
    dtype: torch.dtype = torch.float32


Spec: TypeAlias = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Layout:
    """What the tensors of a run look like: parameter groups of the network, and named sizes."""

    groups: Mapping[str, Mapping[str, Spec]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)

    def of(self, marker: Group) -> dict[str, Spec]:
        """Return the tensors that a `Weights` field with this marker must hold."""
        names = tuple(self.groups) if marker.names == ("*",) else marker.names
        return {name: spec for group in names for name, spec in self.groups[group].items()}


@dataclass(frozen=True)
class Record:
    """A message flattened for an engine, with whom it concerns."""

    verb: str
    site: str
    round: int
    message: str
    body: Json
    tensors: Weights
    #: The last round whose update of this site was used: what it remembers must be from then.
    since: int = 0

    @property
    def size(self) -> int:
        """Bytes of content: tensors as they are, the rest as compact JSON."""
        return sum(t.nbytes for t in self.tensors.values()) + len(json.dumps(self.body))

    @functools.cached_property
    def finite(self) -> bool:
        """Whether no number in it is NaN or infinite; looked up once, so that one process does it once."""
        if not all(_finite(tensor) for tensor in self.tensors.values()):
            return False
        return all(math.isfinite(x) for x in _walk(self.body) if isinstance(x, float))


# --- flattening -------------------------------------------------------------------------------


def flatten(value: object, path: str = "") -> tuple[Json, dict[str, Tensor]]:
    """Return a value as a JSON tree and the tensors it refers to by path."""
    tensors: dict[str, Tensor] = {}
    return _flatten(value, path, tensors), tensors


def _flatten(value: object, path: str, tensors: dict[str, Tensor]) -> Json:
    if isinstance(value, Tensor):  # first, for there are many
        tensors[path] = value.detach() if value.requires_grad else value
        return {_TENSOR: path}
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, StrEnum) else value
    if dataclasses.is_dataclass(value):
        tree = {
            f.name: _flatten(getattr(value, f.name), _join(path, f.name), tensors)
            for f in dataclasses.fields(value)
        }
        return {_MEMBER: type(value).__name__, **tree}
    if isinstance(value, Mapping):
        return {_MAP: {k: _flatten(v, _join(path, k), tensors) for k, v in value.items()}}
    if isinstance(value, tuple | list):
        return [_flatten(v, _join(path, str(i)), tensors) for i, v in enumerate(value)]
    msg = f"a message may not hold a {type(value).__name__} ('{path}')"
    raise TypeError(msg)


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


# --- building again, with every check ---------------------------------------------------------


def build(
    kind: Any, tree: Json, tensors: Weights, layout: Layout | None = None, path: str = ""
) -> Any:
    """Return the value of type `kind` that a tree and its tensors describe, or refuse them."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *markers = get_args(kind)
        value = build(inner, tree, tensors, layout, path)
        if layout is not None and value is not None:
            _check_markers(value, markers, layout, path)
        return value
    if origin in (typing.Union, types.UnionType):
        return _build_union(kind, tree, tensors, layout, path)
    if kind is Any:
        _refuse(path, "something of no declared type", "a declared type")
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, tree, tensors, layout, path)
    if kind is Tensor:
        return _build_tensor(tree, tensors, path)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _build_mapping(kind, tree, tensors, layout, path)
    if origin is tuple:
        return _build_tuple(kind, tree, tensors, layout, path)
    return _build_scalar(kind, tree, path)


def _build_scalar(kind: Any, tree: Json, path: str) -> Any:
    if get_origin(kind) is Literal:
        if tree in get_args(kind):
            return tree
        _refuse(path, _name(tree), f"one of {list(get_args(kind))}")
    if kind is None or kind is type(None):
        if tree is None:
            return None
        _refuse(path, _name(tree), "nothing")
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(tree, str):
        return kind(tree)
    if kind is float and type(tree) is int:
        return float(tree)
    if type(tree) is kind and kind in (bool, int, float, str):
        return tree
    _refuse(path, _name(tree), getattr(kind, "__name__", str(kind)))
    return None  # pragma: no cover - the line above raises


def _build_union(kind: Any, tree: Json, tensors: Weights, layout: Layout | None, path: str) -> Any:
    members = get_args(kind)
    if tree is None and type(None) in members:
        return None
    if isinstance(tree, dict) and _MEMBER in tree:
        for member in members:
            if dataclasses.is_dataclass(member) and _class_name(member) == tree[_MEMBER]:
                return build(member, tree, tensors, layout, path)
        names = [_class_name(m) for m in members if m is not type(None)]
        _refuse(path, str(tree[_MEMBER]), " or ".join(names))
    plain = [m for m in members if m is not type(None) and not dataclasses.is_dataclass(m)]
    for member in plain[:-1]:
        try:
            return build(member, tree, tensors, layout, path)
        except MessageError:
            continue
    if not plain:
        _refuse(path, _name(tree), " or ".join(_class_name(m) for m in members))
    return build(plain[-1], tree, tensors, layout, path)


def _build_dataclass(
    kind: Any, tree: Json, tensors: Weights, layout: Layout | None, path: str
) -> Any:
    if not isinstance(tree, dict) or tree.get(_MEMBER) != _class_name(kind):
        found = tree.get(_MEMBER, "a table") if isinstance(tree, dict) else _name(tree)
        _refuse(path, str(found), _class_name(kind))
    hints = _hints(kind)
    extra, missing = set(tree) - set(hints) - {_MEMBER}, set(hints) - set(tree)
    if extra or missing:
        found = (
            "the extra " + ", ".join(sorted(extra)) if extra else "no " + ", ".join(sorted(missing))
        )
        _refuse(path, found, f"exactly the fields of {_class_name(kind)}")
    return kind(
        **{
            name: build(hint, tree[name], tensors, layout, _join(path, name))
            for name, hint in hints.items()
        }
    )


def _build_tensor(tree: Json, tensors: Weights, path: str, name: str = "") -> Tensor:
    at = tree.get(_TENSOR) if isinstance(tree, dict) and len(tree) == 1 else None
    if not isinstance(at, str) or at not in tensors:
        _refuse(_join(path, name) if name else path, _name(tree), "a tensor")
    return tensors[at]


def _build_mapping(
    kind: Any, tree: Json, tensors: Weights, layout: Layout | None, path: str
) -> dict[str, Any]:
    if not isinstance(tree, dict) or set(tree) != {_MAP} or not isinstance(tree[_MAP], dict):
        _refuse(path, _name(tree), "a table of names")
    inner = get_args(kind)[1]
    if inner is Tensor:
        return {k: _build_tensor(v, tensors, path, k) for k, v in tree[_MAP].items()}
    return {k: build(inner, v, tensors, layout, _join(path, k)) for k, v in tree[_MAP].items()}


def _build_tuple(
    kind: Any, tree: Json, tensors: Weights, layout: Layout | None, path: str
) -> tuple[Any, ...]:
    if not isinstance(tree, list):
        _refuse(path, _name(tree), "a list")
    inner = get_args(kind)
    each = [inner[0]] * len(tree) if len(inner) == 2 and inner[1] is Ellipsis else list(inner)
    if len(each) != len(tree):
        _refuse(path, f"{len(tree)} entries", f"{len(each)}")
    return tuple(
        build(hint, item, tensors, layout, _join(path, str(i)))
        for i, (hint, item) in enumerate(zip(each, tree, strict=True))
    )


def _check_markers(value: Any, markers: list[Any], layout: Layout, path: str) -> None:
    for marker in markers:
        if isinstance(marker, Group):
            _check_group(value, layout.of(marker), path)
        elif isinstance(marker, Shape):
            shape = tuple(layout.dims[d] if isinstance(d, str) else d for d in marker.dims)
            _check_spec(value, (shape, marker.dtype), path)


def _check_group(value: Weights, expected: Mapping[str, Spec], path: str) -> None:
    if value.keys() != expected.keys():
        odd = sorted(value.keys() ^ expected.keys())[0]
        there = "an unexpected" if odd in value else "no"
        _refuse(path, f"{there} tensor '{odd}'", f"the {len(expected)} tensors of its groups")
    for name, (shape, dtype) in expected.items():
        if value[name].shape != shape or value[name].dtype != dtype:
            _check_spec(value[name], (shape, dtype), _join(path, name))


def _check_spec(tensor: Tensor, spec: Spec, path: str) -> None:
    shape, dtype = spec
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        _refuse(path, f"{tensor.dtype} {list(tensor.shape)}", f"{dtype} {list(shape)}")


def _refuse(path: str, found: str, expected: str) -> typing.NoReturn:
    msg = f"field '{path or 'message'}' holds {found}, expected {expected}"
    raise MessageError(msg)


def _name(tree: Json) -> str:
    return f"{tree!r:.60} ({type(tree).__name__})"


def _class_name(kind: Any) -> str:
    origin = get_origin(kind) or kind
    return str(getattr(origin, "__name__", origin))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


# --- records ------------------------------------------------------------------------------------


def pack(message: object, verb: str, site: str, round_: int, since: int = 0) -> Record:
    """Return a message as the record an engine carries."""
    body, tensors = flatten(message)
    return Record(verb, site, round_, type(message).__name__, body, tensors, since)


def unpack(kind: type[M], record: Record, layout: Layout | None = None) -> M:
    """Return a record's message, or refuse it with a sentence that names the site and the field."""
    try:
        message: M = build(kind, record.body, record.tensors, layout)
    except MessageError as error:
        msg = f"{record.verb} message of site '{record.site}' in round {record.round}: {error}"
        raise MessageError(msg) from None
    used = set(_paths(record.body))
    if used != set(record.tensors):
        odd = sorted(used ^ set(record.tensors))[0]
        msg = (
            f"{record.verb} message of site '{record.site}' in round {record.round}: tensor '{odd}' "
            "belongs to no field"
        )
        raise MessageError(msg)
    return message


def _paths(tree: Json) -> list[str]:
    """Return the tensors a tree refers to, in its order."""
    return [branch[_TENSOR] for branch in _walk(tree) if type(branch) is dict]


def _walk(tree: Json) -> Iterator[Json]:
    """Yield the ends of a tree in order: scalars, and references to tensors as they are."""
    if isinstance(tree, dict):
        if _TENSOR in tree:
            yield tree
            return
        branches: Any = tree.values()
    elif isinstance(tree, list):
        branches = tree
    else:
        yield tree
        return
    for branch in branches:
        if type(branch) is dict and _TENSOR in branch:  # the many tensors of a network
            yield branch
        else:
            yield from _walk(branch)


def is_finite(record: Record) -> bool:
    """Return whether no number in a record is NaN or infinite."""
    return record.finite


def _finite(tensor: Tensor) -> bool:
    """Sum first: one pass without a copy, and not finite if any entry is not; then look closely."""
    if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
        return True
    return bool(torch.isfinite(tensor).all())


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
        if name != _MEMBER
    )


def _entry(name: str, tree: Json, tensors: Weights, hashes: bool) -> FieldEntry:
    held = [tensors[path] for path in _paths(tree) if path in tensors]
    digest = _digest(held, tree) if hashes else None
    if not held:
        text = json.dumps(tree)
        kind = type(tree).__name__ if not isinstance(tree, dict | list) else "table"
        return FieldEntry(name, kind, "[]", 0 if tree is None else 1, len(text), digest)
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in held})
    shape = str(list(held[0].shape)) if len(held) == 1 else f"{len(held)} tensors"
    numbers, size = sum(t.numel() for t in held), sum(t.nbytes for t in held)
    return FieldEntry(name, "+".join(kinds), shape, numbers, size, digest)


def _digest(held: list[Tensor], tree: Json) -> str:
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode())
    for tensor in held:
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- on disk ------------------------------------------------------------------------------------


def save(path: Path, value: object) -> None:
    """Write a value as one safetensors file, whole or not at all."""
    tree, tensors = flatten(value)
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.cpu().contiguous()
        if (
            plain.untyped_storage().data_ptr() in seen
            or plain.untyped_storage().nbytes() > plain.nbytes
        ):
            plain = plain.clone()  # safetensors refuses tensors that share memory
        seen.add(plain.untyped_storage().data_ptr())
        tensors[name] = plain
    part = path.with_name(f".{path.name}.part")
    save_file(tensors, part, metadata={"tree": json.dumps(tree)})
    with part.open("rb+") as handle:
        os.fsync(handle.fileno())
    part.replace(path)


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
