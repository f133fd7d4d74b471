"""Who is tested on, and which patient goes to which site: by hashes of names, so order is nothing."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

NUMBER = r"[1-9]\d{0,3}"
#: A random part of all patients, "2-of-5", or some of its images only, "2-of-5-n100".
SHARD = re.compile(rf"({NUMBER})-of-({NUMBER})(?:-n([1-9]\d{{0,5}}))?")
#: A part of cross-validation, behind a site: "busi/fold-2-of-5".
FOLD = re.compile(rf"(.+)/fold-({NUMBER})-of-({NUMBER})")


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


def choose_fold(groups: list[str], fold: int, folds: int, *names: object) -> set[str]:
    """Return the groups that are tested on in one fold, from 1: each group in exactly one."""
    dealt = deal(groups, folds, "fold", *names)
    return {group for group, at in dealt.items() if at == fold - 1}


def choose_some(names: list[str], groups: list[str], images: int, *more: object) -> set[str]:
    """Return the names of so many images, of as many groups as possible, or of all if there are fewer.

    A larger number takes in all images of a smaller one.
    """
    group_of, seen = dict(zip(names, groups, strict=True)), Counter[str]()
    turn = {}
    for name in shuffled(names, "some", *more):
        turn[name] = seen[group_of[name]]
        seen[group_of[name]] += 1
    return set(sorted(turn, key=lambda name: turn[name])[:images])  # sorting keeps the order within


def deal(groups: list[str], sites: int, *names: object) -> dict[str, int]:
    """Return the site, from 0, that each group goes to: as many images to each as groups allow."""
    images, held = Counter(groups), [0] * sites
    dealt = {}
    for group in shuffled(groups, "deal", sites, *names):
        site = held.index(min(held))
        dealt[group] = site
        held[site] += images[group]
    return dealt
