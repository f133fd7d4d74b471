"""Image tags: which labels an image shows, and nothing about where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilia.weaken.regions import IndexMap, Mask, Shape


@dataclass(frozen=True)
class ImageTag:
    """The labels that are present, as their indices from 1, in order."""

    present: tuple[int, ...]


def draw_image_tag(visible: IndexMap) -> ImageTag:
    """Return the labels that have at least one pixel; nothing here is random."""
    return ImageTag(tuple(int(label) for label in np.unique(visible) if label))


def render_image_tag(tag: ImageTag, label: int, shape: Shape) -> Mask:
    """Return where a label may be: everywhere when it is present, nowhere when it is not."""
    return np.full(shape, label in tag.present)
