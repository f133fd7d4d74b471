"""Slices -> volumes: objects are whole lesions, so they are left out in 3-D (FedIA)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from consilia.datasets.contract import Cases
from consilia.weaken.drop_objects import KeptObjects, draw_kept_objects, render_kept_objects
from consilia.weaken.regions import IndexMaps

#: Places of a volume's slices among the cases, bottom to top; `None` where a slice is missing.
Stack = list[int | None]


def stack_order(names: list[str]) -> Stack:
    """Return the places of a volume's slices, bottom to top; `None` where slices are missing.

    Slices are ordered by name with numbers read as numbers. Where the last number of each name
    jumps by more than its usual step, a slice is missing there, and what lies above and below is
    not connected.
    """
    order = sorted(range(len(names)), key=lambda i: _natural(names[i]))
    found = [re.findall(r"\d+", names[i]) for i in order]
    if not all(found):
        return list(order)
    steps = np.diff([int(numbers[-1]) for numbers in found])
    usual = min((step for step in steps if step > 0), default=0)
    stack: Stack = []
    for place, step in zip(order, [*steps, usual], strict=True):
        stack += [place] if step <= usual else [place, None]
    return stack


def _natural(name: str) -> tuple[list[tuple[str, int]], str]:
    """Return a sorting key in which 's10' comes after 's9'."""
    return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", name)], name


def stacks(cases: Cases) -> dict[str, Stack]:
    """Return the stack of each volume; images that are no slices are volumes of one."""
    if cases.volume is None:
        return {name: [place] for place, name in enumerate(cases.case)}
    members = defaultdict(list)
    for place, volume in enumerate(cases.volume):
        members[volume].append(place)
    return {
        volume: [
            None if place is None else places[place]
            for place in stack_order([cases.case[p] for p in places])
        ]
        for volume, places in members.items()
    }


def _stacked(visible: IndexMaps, stack: Stack) -> IndexMaps:
    """Return the slices of a volume as one array, with an empty slice where one is missing."""
    empty = np.zeros(visible.shape[1:], dtype=np.uint8)
    return np.stack([empty if place is None else visible[place] for place in stack])


def draw_objects(
    visible: IndexMaps,
    cases: Cases,
    names: dict[int, str],
    completeness: float,
    at: Callable[[str, str], np.random.Generator],
) -> dict[str, dict[str, Any]]:
    """Return which objects stay, by volume and label, as plain values.

    Args:
        visible: Index maps without the labels that the site does not mark.
        cases: Say which slices form a volume.
        names: The labels that the site marks, by their index from 1.
        completeness: Share of the objects to keep in each volume.
        at: Gives the random numbers of a volume and label.
    """
    drawn: dict[str, dict[str, Any]] = {}
    for volume, stack in stacks(cases).items():
        stacked = _stacked(visible, stack)
        drawn[volume] = {
            name: asdict(draw_kept_objects(stacked == index, completeness, at(volume, name)))
            for index, name in names.items()
        }
    return drawn


def render_objects(
    visible: IndexMaps, cases: Cases, names: dict[int, str], drawn: dict[str, dict[str, Any]]
) -> IndexMaps:
    """Return the visible labels without the objects that were left out."""
    shown = np.zeros_like(visible)
    for volume, stack in stacks(cases).items():
        stacked = _stacked(visible, stack)
        for index, name in names.items():
            layers = render_kept_objects(KeptObjects(**drawn[volume][name]), stacked == index)
            for layer, place in zip(layers, stack, strict=True):
                if place is not None:
                    shown[place][layer] = index
    return shown
