"""Label sets that differ between sites: who marks what, and hiding the rest (FedLSM, FedPSL)."""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8

from consilia.errors import UsageError

#: FedPSL's setup A: four sites, six findings of ChestX-ray14.
FEDPSL_A: tuple[tuple[str, ...], ...] = (
    ("infiltration", "effusion", "atelectasis"),
    ("effusion", "atelectasis", "nodule"),
    ("atelectasis", "nodule", "consolidation"),
    ("nodule", "consolidation", "pneumothorax"),
)
#: Setup B adds two sites with one label each and images of another kind.
FEDPSL_B: tuple[tuple[str, ...], ...] = (*FEDPSL_A, ("tuberculosis",), ("covid-19",))


def deal_labels(
    labels: tuple[str, ...], sites: tuple[str, ...], per_site: int, rng: np.random.Generator
) -> dict[str, tuple[str, ...]]:
    """Return which labels each site marks: every label somewhere, `per_site` at each site.

    The shuffled labels are dealt in turn; then each site draws from those it does not have yet.

    Raises:
        UsageError: The sites cannot hold all labels, or one would need more than there are.
    """
    if not -(-len(labels) // len(sites)) <= per_site <= len(labels):
        msg = (
            f"{per_site} labels at each of {len(sites)} sites cannot cover {len(labels)} labels; "
            f"choose from {-(-len(labels) // len(sites))} to {len(labels)} labels per site"
        )
        raise UsageError(msg)
    shuffled = [labels[i] for i in rng.permutation(len(labels))]
    dealt = {}
    for turn, site in enumerate(sites):
        mine = shuffled[turn :: len(sites)]
        others = [label for label in labels if label not in mine]
        more = rng.choice(len(others), size=per_site - len(mine), replace=False)
        mine += [others[i] for i in more]
        dealt[site] = tuple(label for label in labels if label in mine)
    return dealt


def hide_labels(truth: UInt8[np.ndarray, ...], annotated: tuple[int, ...]) -> np.ndarray:
    """Return the truth with every label that a site does not mark set to 0.

    Everything that is drawn or rendered for a site reads only this, so that nothing else can leak.

    Args:
        truth: Index maps (n, h, w), or one column per label (n, k).
        annotated: The indices of the labels the site marks, from 0.
    """
    if truth.ndim == 2:
        visible = np.zeros_like(truth)
        visible[:, list(annotated)] = truth[:, list(annotated)]
        return visible
    table = np.zeros(256, dtype=np.uint8)
    for index in annotated:
        table[index + 1] = index + 1
    shown: np.ndarray = table[truth]
    return shown
