"""A site's images as tensors on one device, and the batches cut from them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from consilia.datasets.contract import Cases
from consilia.labels import LabelView


def planes(indices: Int[Tensor, "b h w"], labels: int) -> Bool[Tensor, "b k h w"]:
    """Return index maps as one plane per label, background left out."""
    values = torch.arange(1, labels + 1, device=indices.device)
    return indices[:, None] == values[:, None, None]


@dataclass(frozen=True)
class Batch:
    """Some images with what is known about them; see `LabelView` for the meaning of each part.

    `known_labels` and `known_pixels` are `None` where everything is known, so that fully annotated
    sites compute exactly the papers' losses.
    """

    image: Float[Tensor, "b c h w"]
    target: Int[Tensor, "b h w"] | Float[Tensor, "b k"]
    known_labels: Bool[Tensor, "b k"] | None
    known_pixels: Bool[Tensor, "b h w"] | None
    constraint: Bool[Tensor, "b k h w"] | None
    index: Int[Tensor, " b"]
    labels: int

    def __len__(self) -> int:
        return len(self.image)

    def take(self, index: Int[Tensor, " m"]) -> Batch:
        """Return some images of a batch, by position."""
        return self.filled(self.index[index], {n: p[index] for n, p in parts_of(self).items()})

    def filled(self, index: Int[Tensor, " m"], parts: Mapping[str, Tensor]) -> Batch:
        """Return a batch of the same kind with other images in it, by `parts_of`'s names."""
        return replace(self, index=index, **dict[str, Any](parts))

    def unknown_as_negative(self) -> Batch:
        """Return the batch as if a label that a site does not mark were absent (plain FedAvg)."""
        return replace(self, known_labels=None)

    def planes(self) -> Float[Tensor, "b k h w"]:
        """Return the target of a segmentation task as one plane per label, background left out."""
        return planes(self.target, self.labels).float()

    def known_planes(self) -> Bool[Tensor, "b k #h #w"] | None:
        """Return where each label's presence or absence is known; `None` means everywhere.

        A pixel with a mark is known for every label, since labels exclude each other.
        """
        known = None if self.known_pixels is None else self.known_pixels[:, None]
        if self.known_labels is None:
            return known if known is None else known.expand(-1, self.labels, -1, -1)
        told = self.known_labels[:, :, None, None] | (self.target[:, None] > 0)
        return told if known is None else told & known


@dataclass(frozen=True)
class ResidentCases:
    """A site's training images and label view as tensors, kept as bytes until a batch is cut."""

    image: UInt8[Tensor, "n c h w"]
    target: UInt8[Tensor, "n h w"] | UInt8[Tensor, "n k"]
    known_labels: Bool[Tensor, "n k"] | None
    known_pixels: Bool[Tensor, "n h w"] | None
    constraint: Bool[Tensor, "n k h w"] | None
    labels: int
    exclusive: bool

    @classmethod
    def of(
        cls, cases: Cases, view: LabelView, device: torch.device, exclusive: bool = True
    ) -> ResidentCases:
        """Bring a site's cases onto the device, once; on a CPU they are not copied where that can be."""

        def put(array: np.ndarray | None) -> Tensor | None:
            if array is None:
                return None
            plain = array.flags.writeable and array.flags.c_contiguous  # PyTorch asks for no less
            return torch.from_numpy(array if plain else np.array(array)).to(device)

        labels = view.known_labels.shape[1]
        # What an image-level label says where it is not known is nobody's business: it becomes 0.
        told = view.target if view.segments else view.target * view.known_labels
        image, target = put(cases.image), put(told)
        assert image is not None
        assert target is not None
        return cls(
            image,
            target,
            None if view.known_labels.all() else put(view.known_labels),
            None
            if view.known_pixels is None or view.known_pixels.all()
            else put(view.known_pixels),
            put(view.constraint),
            labels,
            exclusive,
        )

    def __len__(self) -> int:
        return len(self.image)

    @property
    def segments(self) -> bool:
        """Whether the task is segmentation."""
        return self.target.dim() == 3

    def corrected(self, target: UInt8[Tensor, "n h w"]) -> ResidentCases:
        """Return the same images with corrected labels (a label overlay)."""
        return replace(self, target=target)

    def cut(self, index: Int[Tensor, " b"]) -> Batch:
        """Return a batch of the given images, intensities between 0 and 1."""
        return self.take(index).opened(index)

    def take(self, index: Int[Tensor, " m"]) -> ResidentCases:
        """Return some images, still as bytes."""
        return self.filled({name: part[index] for name, part in parts_of(self).items()})

    def filled(self, parts: Mapping[str, Tensor]) -> ResidentCases:
        """Return cases of the same kind with other images in them, by `parts_of`'s names."""
        return replace(self, **dict[str, Any](parts))

    def opened(self, index: Int[Tensor, " n"]) -> Batch:
        """Return all images as one batch; `index` says where at the site they are from."""
        return Batch(
            self.image.float().div_(255),
            self.target.long() if self.segments else self.target.float(),
            self.known_labels,
            self.known_pixels,
            self.constraint,
            index,
            self.labels,
        )

    def supervised(self) -> Int[Tensor, " m"]:
        """Return the indices of images that carry any usable target, in order.

        With exclusive image-level labels that means a positive one: "none of ours" is no target.
        """
        return self._supervised

    @functools.cached_property
    def _supervised(self) -> Tensor:  # once: a GPU is waited for to count them
        told = torch.ones(len(self), dtype=torch.bool, device=self.image.device)
        if self.known_labels is not None:
            told &= self.known_labels.any(1)
        if self.known_pixels is not None:
            told &= self.known_pixels.flatten(1).any(1)
        if self.exclusive and not self.segments:
            told &= (self.target > 0).any(1)
        return told.nonzero().flatten()


def parts_of(images: Batch | ResidentCases) -> dict[str, Tensor]:
    """Return what there is of images and labels, by name; each has one row per image."""
    names = ("image", "target", "known_labels", "known_pixels", "constraint")
    found = {name: getattr(images, name) for name in names}
    return {name: part for name, part in found.items() if part is not None}


def orders(
    count: int, batch: int, epochs: int, steps: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the positions of each batch: whole shuffled epochs, or a number of steps over them."""
    made = 0
    while steps is not None or epochs > 0:
        for part in torch.split(torch.randperm(count, generator=generator), min(batch, count)):
            if steps is not None and made == steps:
                return
            if steps is not None and len(part) < min(batch, count):
                break  # a stream of full batches: start the next pass
            made += 1
            yield part
        epochs -= 1
