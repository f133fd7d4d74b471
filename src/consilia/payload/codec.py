"""Values to JSON trees with a table of tensors, and back again with every check."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

from torch import Tensor

from consilia.errors import MessageError
from consilia.payload.kinds import Group, Json, Layout, Shape, Spec, Weights
from consilia.payload.packed import DeviceWeights, Packed, PackedWeights, Packing

TENSOR, MAP, MEMBER = "$tensor", "$map", "$member"


class Branch(dict[str, Json]):
    """The part of a tree that lists packed weights: made once for all messages, so never changed.

    It is plain JSON: whoever does not know it reads a table of names.
    """

    def __init__(self, packing: Packing, path: str) -> None:
        self.packing = packing
        self.path = path
        self.paths = tuple(_join(path, name) for name in packing.specs)
        each = zip(packing.specs, self.paths, strict=True)
        super().__init__({MAP: {name: {TENSOR: at} for name, at in each}})


@functools.lru_cache(maxsize=256)
def branch_of(packing: Packing, path: str) -> Branch:
    """Return the tree of packed weights at a path."""
    return Branch(packing, path)


class Table(Mapping[str, Tensor]):
    """The tensors of a message by their paths; packed weights stay in one piece."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor | PackedWeights] = {}

    def put(self, path: str, value: Tensor | PackedWeights) -> None:
        """Take up what lies at a path."""
        self._held[path] = value

    def packed_at(self, branch: Branch) -> PackedWeights | None:
        """Return the packed weights that a part of a tree lists, if they are here."""
        found = self._held.get(branch.path)
        fits = isinstance(found, PackedWeights) and found.packing is branch.packing
        return found if fits else None  # type: ignore[return-value]  # `fits` says so

    def let_go(self) -> None:
        """Drop the host's copies of weights that stay on a device."""
        for value in self._held.values():
            if isinstance(value, DeviceWeights):
                value.let_go()

    def pieces(self) -> Iterator[Tensor]:
        """Yield all numbers in as few tensors as they lie in."""
        for value in self._held.values():
            yield from value.pieces() if isinstance(value, PackedWeights) else (value,)

    def __getitem__(self, path: str) -> Tensor:
        found = self._held.get(path)
        if isinstance(found, Tensor):
            return found
        for at, weights in self._held.items():
            name = path.removeprefix(f"{at}/" if at else "")
            if isinstance(weights, PackedWeights) and _join(at, name) == path and name in weights:
                return weights[name]
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(
            branch_of(value.packing, path).paths if isinstance(value, PackedWeights) else (path,)
            for path, value in self._held.items()
        )

    def __len__(self) -> int:
        return sum(len(v) if isinstance(v, PackedWeights) else 1 for v in self._held.values())


def pieces(tensors: Weights) -> Iterator[Tensor]:
    """Yield the numbers of a table of tensors in as few tensors as they lie in."""
    return tensors.pieces() if isinstance(tensors, Table) else iter(tensors.values())


# --- flattening -------------------------------------------------------------------------------


def flatten(value: object, path: str = "") -> tuple[Json, Table]:
    """Return a value as a JSON tree and the tensors it refers to by path."""
    tensors = Table()
    return _flatten(value, path, tensors), tensors


def _flatten(value: object, path: str, tensors: Table) -> Json:
    if isinstance(value, Tensor):  # first, for there are many
        tensors.put(path, value.detach() if value.requires_grad else value)
        return {TENSOR: path}
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, StrEnum) else value
    if isinstance(value, PackedWeights):
        tensors.put(path, value)
        return branch_of(value.packing, path)
    if dataclasses.is_dataclass(value):
        tree = {
            f.name: _flatten(getattr(value, f.name), _join(path, f.name), tensors)
            for f in dataclasses.fields(value)
        }
        return {MEMBER: type(value).__name__, **tree}
    if isinstance(value, Mapping):
        return {MAP: {k: _flatten(v, _join(path, k), tensors) for k, v in value.items()}}
    if isinstance(value, tuple | list):
        return [_flatten(v, _join(path, str(i)), tensors) for i, v in enumerate(value)]
    msg = f"a message may not hold a {type(value).__name__} ('{path}')"
    raise TypeError(msg)


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def ends(tree: Json) -> Iterator[Json]:
    """Yield the ends of a tree in order: scalars, references to tensors, and branches as they are."""
    if isinstance(tree, dict):
        if type(tree) is Branch or TENSOR in tree:
            yield tree
            return
        parts: Any = tree.values()
    elif isinstance(tree, list):
        parts = tree
    else:
        yield tree
        return
    for part in parts:
        if type(part) is dict and TENSOR in part:  # the many tensors of a network
            yield part
        else:
            yield from ends(part)


def paths(tree: Json) -> list[str]:
    """Return the paths of the tensors a tree refers to, in its order."""
    found: list[str] = []
    for end in ends(tree):
        if isinstance(end, dict):
            found += end.paths if type(end) is Branch else (end[TENSOR],)
    return found


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
    if isinstance(tree, dict) and MEMBER in tree:
        for member in members:
            if dataclasses.is_dataclass(member) and _class_name(member) == tree[MEMBER]:
                return build(member, tree, tensors, layout, path)
        names = [_class_name(m) for m in members if m is not type(None)]
        _refuse(path, str(tree[MEMBER]), " or ".join(names))
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
    if not isinstance(tree, dict) or tree.get(MEMBER) != _class_name(kind):
        found = tree.get(MEMBER, "a table") if isinstance(tree, dict) else _name(tree)
        _refuse(path, str(found), _class_name(kind))
    hints = _hints(kind)
    extra, missing = set(tree) - set(hints) - {MEMBER}, set(hints) - set(tree)
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
    at = tree.get(TENSOR) if isinstance(tree, dict) and len(tree) == 1 else None
    if not isinstance(at, str) or at not in tensors:
        _refuse(_join(path, name) if name else path, _name(tree), "a tensor")
    return tensors[at]


def _build_mapping(
    kind: Any, tree: Json, tensors: Weights, layout: Layout | None, path: str
) -> Mapping[str, Any]:
    if not isinstance(tree, dict) or set(tree) != {MAP} or not isinstance(tree[MAP], dict):
        _refuse(path, _name(tree), "a table of names")
    inner = get_args(kind)[1]
    if inner is Tensor:
        whole = type(tree) is Branch and isinstance(tensors, Table) and tensors.packed_at(tree)
        if whole:
            return whole
        return {k: _build_tensor(v, tensors, path, k) for k, v in tree[MAP].items()}
    return {k: build(inner, v, tensors, layout, _join(path, k)) for k, v in tree[MAP].items()}


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
    if isinstance(value, Packed) and value.packing.specs == expected:
        return
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
