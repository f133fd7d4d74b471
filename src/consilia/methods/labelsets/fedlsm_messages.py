"""What travels in FedLSM, and what its server and its sites keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from consilia.payload import Group, Shape, Weights

Model = Annotated[Weights, Group()]
PerLabel = Annotated[Tensor, Shape(("labels",))]


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: how many images show each label it marks, and how many do not."""

    counts: Annotated[Tensor, Shape((2, "labels"), torch.int64)] | None  # None: exclusive labels


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global weights, who marks what, who lacks class weights, the last counts."""

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    marked: Mapping[str, tuple[int, ...]]
    intros: Mapping[str, Intro]
    waiting: tuple[str, ...]
    last: Mapping[str, float]
    labels: tuple[str, ...] = ()
    positives: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Begin:
    """Travels to a site once: the global weights, and the positive weight of each label."""

    weights: Model
    positive_weight: PerLabel


@dataclass(frozen=True)
class Down:
    """Travels to a site: the global weights."""

    weights: Model


@dataclass(frozen=True)
class Up:
    """Leaves a site: its weights, its image count, and how many images it takes to show each label."""

    weights: Model
    images: int
    positives: Annotated[Tensor, Shape(("labels",), torch.int64)]


@dataclass(frozen=True)
class Memory:
    """Stays at a site: the positive weight of each label, where labels may co-occur."""

    positive_weight: PerLabel | None
