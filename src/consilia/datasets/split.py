"""Who is tested on, and which patient goes to which site: by hashes of names, so order is nothing."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

SHARD = re.compile(r"([1-9]\d{0,3})-of-([1-9]\d{0,3})")


def shuffled(groups: Iterable[str], *names: object) -> list[str]:
    """Return groups in an order that depends on their names and these, and on nothing else."""
    prefix = "/".join(str(name) for name in names)
    return sorted(
        set(groups), key=lambda group: hashlib.sha256(f"{prefix}/{group}".encode()).digest()
    )


def choose_test(groups: list[str], much: float, *names: object) -> set[str]:
    """Return the groups that are tested on.

    Args:
        groups: The group of each image; those of a patient are never separated.
        much: Below 1 the share of the groups (at least one, never all), else the number of images,
            reached exactly where whole groups allow it.
        names: What the choice depends on.
    """
    order, images = shuffled(groups, "test", *names), Counter(groups)
    if much < 1:
        return set(order[: min(max(1, round(much * len(order))), len(order) - 1)])
    chosen: set[str] = set()
    left = int(much)
    for group in order:
        if images[group] <= left:
            chosen.add(group)
            left -= images[group]
    return chosen


def deal(groups: list[str], sites: int, *names: object) -> dict[str, int]:
    """Return the site, from 0, that each group goes to: as many images to each as groups allow."""
    images, held = Counter(groups), [0] * sites
    dealt = {}
    for group in shuffled(groups, "deal", sites, *names):
        site = held.index(min(held))
        dealt[group] = site
        held[site] += images[group]
    return dealt
