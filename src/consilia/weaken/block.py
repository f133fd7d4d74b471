"""Blocks: a region eroded until the wanted share is left, and background far from everything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilia.weaken.regions import Mask, depth, side

#: Share of a label's area that a block keeps (ours; the FedLPPA authors' are 34 to 60 %).
SHARE = (0.3, 0.5)
#: Gap between labels and background block, in image sides (leaves 81 to 88 % of the FAZ images).
GAP = (0.08, 0.11)


@dataclass(frozen=True)
class Block:
    """The pixels of a region that lie at least `depth` pixels inside it."""

    depth: float


def draw_block(
    region: Mask, rng: np.random.Generator, share: tuple[float, float] = SHARE
) -> Block | None:
    """Return the block whose area is nearest to a share drawn from a range, or `None`."""
    if not region.any():
        return None
    levels, counts = np.unique(depth(region)[region], return_counts=True)
    left = counts[::-1].cumsum()[::-1]  # pixels at least as deep as each level
    wanted = rng.uniform(*share) * left[0]
    return Block(float(levels[np.abs(left - wanted).argmin()]))


def draw_background_block(
    region: Mask, rng: np.random.Generator, gap: tuple[float, float] = GAP
) -> Block | None:
    """Return the background a gap away from every label; the gap narrows where space is short."""
    if not region.any():
        return None
    if region.all():
        return Block(0.0)
    wanted = rng.uniform(*gap) * side(region.shape)
    return Block(float(min(wanted, depth(region).max() / 2)))


def render_block(block: Block, region: Mask) -> Mask:
    """Return the pixels of a block in the region it was drawn for."""
    inside: Mask = region & (depth(region) >= block.depth)
    return inside
