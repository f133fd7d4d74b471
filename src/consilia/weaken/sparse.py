"""Forms that mark some pixels of each label and of the background: scribble, point, block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from consilia.declare import Supervision
from consilia.weaken.block import Block, draw_background_block, draw_block, render_block
from consilia.weaken.point import Points, draw_background_points, draw_points, render_points
from consilia.weaken.recipe import Recipe
from consilia.weaken.regions import BACKGROUND, IndexMap, Mask
from consilia.weaken.scribble import (
    Scribble,
    draw_background_scribble,
    draw_scribble,
    render_scribble,
)

#: Returns the random numbers of one region of the image at hand.
Streams = Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class SparseForm:
    """A form that marks some pixels of each label and of the background."""

    kind: type[Any]
    draw: Callable[[Mask, np.random.Generator, Recipe], Any]
    draw_background: Callable[[Mask, np.random.Generator, Recipe], Any]
    render: Callable[[Any, Mask], Mask]


SPARSE: dict[Supervision, SparseForm] = {
    Supervision.SCRIBBLE: SparseForm(
        Scribble,
        lambda region, rng, recipe: draw_scribble(region, rng, recipe.style),
        lambda region, rng, recipe: draw_background_scribble(region, rng, recipe.style),
        render_scribble,
    ),
    Supervision.POINT: SparseForm(
        Points,
        lambda region, rng, _: draw_points(region, rng),
        lambda region, rng, _: draw_background_points(region, rng),
        render_points,
    ),
    Supervision.BLOCK: SparseForm(
        Block,
        lambda region, rng, _: draw_block(region, rng),
        lambda region, rng, _: draw_background_block(region, rng),
        render_block,
    ),
}


def draw_sparse(
    visible: IndexMap, names: dict[int, str], recipe: Recipe, at: Streams
) -> dict[str, Any]:
    """Return what is drawn in each region of an image, as plain values; `None` if it is empty."""
    form = SPARSE[recipe.form]
    drawn = {n: form.draw(visible == i, at(n), recipe) for i, n in names.items()}
    drawn[BACKGROUND] = form.draw_background(visible == 0, at(BACKGROUND), recipe)
    return {name: None if mark is None else asdict(mark) for name, mark in drawn.items()}


def render_sparse(
    visible: IndexMap, names: dict[int, str], recipe: Recipe, drawn: dict[str, Any]
) -> Mask:
    """Return the pixels that are marked, each inside its own region."""
    form = SPARSE[recipe.form]
    known = np.zeros(visible.shape, dtype=bool)
    for index, name in {0: BACKGROUND, **names}.items():
        if drawn[name] is not None:
            known |= form.render(form.kind(**drawn[name]), visible == index)
    return known
