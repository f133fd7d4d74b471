"""What a message may declare: weights, the markers of its fields, and the layout of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

Weights: TypeAlias = Mapping[str, Tensor]
Json: TypeAlias = Any
Spec: TypeAlias = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Group:
    """Marks a `Weights` field: it holds exactly the tensors of these parameter groups."""

    names: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class Shape:
    """Marks a `Tensor` field: its sizes, as numbers or as names of the run's dimensions."""

    dims: tuple[str | int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Layout:
    """What the tensors of a run look like: parameter groups of the network, and named sizes."""

    groups: Mapping[str, Mapping[str, Spec]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)

    def of(self, marker: Group) -> Mapping[str, Spec]:
        """Return the tensors that a `Weights` field with this marker must hold."""
        if marker not in self._found:
            names = tuple(self.groups) if marker.names == ("*",) else marker.names
            self._found[marker] = {
                name: spec for group in names for name, spec in self.groups[group].items()
            }
        return self._found[marker]

    @functools.cached_property
    def _found(self) -> dict[Group, dict[str, Spec]]:
        """What has been asked for once: every message of a run asks again."""
        return {}
