"""The label view: any annotation as (target, known, constraint).

`known` is kept in two factors, because that is how annotations come: which *pixels* an annotator
looked at (all of them for a mask, a few for a scribble) and which *labels* the site marks at all.
Two kinds of "missing" never merge: a label the site does not mark is *unknown* (`known_labels` is
false); a lesion that an incomplete site overlooked is a *suspect zero* (known, and wrong).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, UInt8


@dataclass(frozen=True)
class LabelView:
    """What a site's annotations say about its images.

    For segmentation `target` is an index map: 0 where none of the site's labels is marked, `c` where
    the federation's c-th label (from 1) is. For classification it has one column per label.

    Attributes:
        target: Class values; never read where they are not known.
        known_labels: Per image, the labels whose presence *and absence* the site marks.
        known_pixels: Per image, the pixels the annotator looked at; `None` means all of them.
        constraint: Per image and label, where the label may be at all (boxes, image tags). It bounds
            predictions and never supervises directly. `None` means no bound.
    """

    target: UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n k"]
    known_labels: Bool[np.ndarray, "n k"]
    known_pixels: Bool[np.ndarray, "n h w"] | None = None
    constraint: Bool[np.ndarray, "n k h w"] | None = None

    def __len__(self) -> int:
        return len(self.target)

    @property
    def segments(self) -> bool:
        """Whether this view is of a segmentation task."""
        return self.target.ndim == 3

    @property
    def supervises(self) -> bool:
        """Whether anything in it can be used as a training target."""
        pixels = self.known_pixels is None or bool(self.known_pixels.any())
        return bool(self.known_labels.any()) and pixels

    def take(self, index: np.ndarray) -> LabelView:
        """Return the view of some of the images."""
        return LabelView(
            self.target[index],
            self.known_labels[index],
            None if self.known_pixels is None else self.known_pixels[index],
            None if self.constraint is None else self.constraint[index],
        )


def labels_known(count: int, labels: int, annotates: tuple[int, ...]) -> Bool[np.ndarray, "n k"]:
    """Return the same known labels for every image; `annotates` holds indices from 0."""
    known = np.zeros((count, labels), dtype=bool)
    known[:, list(annotates)] = True
    return known


def unite(views: list[LabelView]) -> LabelView:
    """Return the views of several sites as one, each image keeping its own known labels."""
    first = views[0]
    pixels = None
    if any(view.known_pixels is not None for view in views):
        pixels = np.concatenate(
            [
                np.ones(view.target.shape, dtype=bool)
                if view.known_pixels is None
                else view.known_pixels
                for view in views
            ]
        )
    constraint = None
    if any(view.constraint is not None for view in views):
        full = (first.known_labels.shape[1], *first.target.shape[1:])
        constraint = np.concatenate(
            [
                np.ones((len(view), *full), dtype=bool)
                if view.constraint is None
                else view.constraint
                for view in views
            ]
        )
    return LabelView(
        np.concatenate([view.target for view in views]),
        np.concatenate([view.known_labels for view in views]),
        pixels,
        constraint,
    )
