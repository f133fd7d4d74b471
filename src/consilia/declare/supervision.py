"""The forms in which a site may have annotated its images."""

from __future__ import annotations

from enum import StrEnum


class Supervision(StrEnum):
    """How a site marked its images, from the most to the least informative."""

    MASK = "mask"
    BLOCK = "block"
    ROTATED_BOX = "rotated-box"
    BOX = "box"
    SCRIBBLE = "scribble"
    POINT = "point"
    IMAGE = "image"
    NONE = "none"

    @property
    def marks_pixels(self) -> bool:
        """Whether single pixels carry a trustworthy class, so that they can supervise directly."""
        return self in {
            Supervision.MASK,
            Supervision.BLOCK,
            Supervision.SCRIBBLE,
            Supervision.POINT,
        }

    @property
    def constrains(self) -> bool:
        """Whether the form bounds where a label may be without saying which pixels have it."""
        return self in {Supervision.BOX, Supervision.ROTATED_BOX, Supervision.IMAGE}


class Sparsity(StrEnum):
    """How densely a weak pixel form covers the image (FedLPPA's third prompt)."""

    SPARSE = "sparse"
    MEDIUM = "medium"
    DENSE = "dense"


DEFAULT_SPARSITY: dict[Supervision, Sparsity] = {
    Supervision.MASK: Sparsity.DENSE,
    Supervision.BLOCK: Sparsity.DENSE,
    Supervision.ROTATED_BOX: Sparsity.DENSE,
    Supervision.BOX: Sparsity.DENSE,
    Supervision.SCRIBBLE: Sparsity.MEDIUM,
    Supervision.POINT: Sparsity.SPARSE,
    Supervision.IMAGE: Sparsity.SPARSE,
    Supervision.NONE: Sparsity.SPARSE,
}
