"""A dataset's labels -> those of a federation, by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from consilia.datasets.contract import Cases
from consilia.errors import DeclarationError, listing
from consilia.labels import LabelView

Labels = tuple[str, ...]


def places(own: Labels, wanted: Labels, who: str) -> tuple[int | None, ...]:
    """Return where each wanted label is among a dataset's own; `None` where it is not.

    Labels go by name. Where both have a single label, the federation may call it otherwise.

    Raises:
        DeclarationError: The two have nothing in common.
    """
    if any(label in own for label in wanted):
        return tuple(own.index(label) if label in own else None for label in wanted)
    if len(own) == len(wanted) == 1:
        return (0,)
    msg = f"{who} has the labels {listing(own)}, and none of them is among {listing(wanted)}; use its names"
    raise DeclarationError(msg)


def match_cases(cases: Cases, at: tuple[int | None, ...]) -> Cases:
    """Return cases with a federation's labels; what the dataset does not mark is not judged."""
    if cases.truth is None or _same(cases.truth, at):
        return cases
    marked = tuple(old is not None and (cases.marked is None or cases.marked[old]) for old in at)
    known = None if cases.known is None else _match(cases.known.astype(np.uint8), at) > 0
    return replace(cases, truth=_match(cases.truth, at), marked=marked, known=known)


def match_view(view: LabelView, at: tuple[int | None, ...]) -> LabelView:
    """Return a label view with a federation's labels; what the dataset does not mark is unknown."""
    if view.known_labels.shape[1] == len(at) and _same(view.target, at):
        return view
    there = [(new, old) for new, old in enumerate(at) if old is not None]
    known = np.zeros((len(view), len(at)), dtype=bool)
    bounds = None
    if view.constraint is not None:
        bounds = np.ones((len(view), len(at), *view.target.shape[1:]), dtype=bool)
    for new, old in there:
        known[:, new] = view.known_labels[:, old]
        if bounds is not None and view.constraint is not None:
            bounds[:, new] = view.constraint[:, old]
    return LabelView(_match(view.target, at), known, view.known_pixels, bounds)


def _same(values: np.ndarray, at: tuple[int | None, ...]) -> bool:
    """Return whether the federation's labels are the dataset's, in their order, and no others occur."""
    if at != tuple(range(len(at))):
        return False
    return values.shape[1] == len(at) if values.ndim == 2 else not (values > len(at)).any()


def _match(values: np.ndarray, at: tuple[int | None, ...]) -> np.ndarray:
    if values.ndim == 2:
        columns = [np.zeros(len(values), np.uint8) if old is None else values[:, old] for old in at]
        return np.stack(columns, axis=1)
    table = np.zeros(256, dtype=np.uint8)
    for new, old in enumerate(at):
        if old is not None:
            table[old + 1] = new + 1
    mapped: np.ndarray = table[values]
    return mapped
