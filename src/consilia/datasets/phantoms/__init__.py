"""Phantoms: multi-site studies drawn from a seed, with shift between sites and no file."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from consilia.datasets.contract import Cases, DatasetCard
from consilia.datasets.phantoms.disc import DISC
from consilia.datasets.phantoms.findings import FINDINGS_PHANTOM
from consilia.datasets.phantoms.findings_b import FINDINGS_B_PHANTOM
from consilia.datasets.phantoms.fluids import FLUIDS
from consilia.datasets.phantoms.lesions import LESIONS
from consilia.datasets.phantoms.mixed import MIXED
from consilia.datasets.phantoms.skin import SKIN
from consilia.datasets.phantoms.study import Phantom, Split
from consilia.declare import Federation, ImageShape, SiteDeclaration, Supervision
from consilia.errors import UsageError, listing, suggestion

__all__ = ["PHANTOMS", "load_common_test", "load_phantom", "phantom_federation"]

_KINDS: dict[str, Phantom] = {
    kind.card.name: kind
    for kind in (MIXED, DISC, LESIONS, FINDINGS_PHANTOM, FINDINGS_B_PHANTOM, SKIN, FLUIDS)
}

PHANTOMS: dict[str, DatasetCard] = {name: kind.card for name, kind in _KINDS.items()}


def load_phantom(name: str, site: str, *, size: int = 64, seed: int = 0) -> tuple[Cases, Cases]:
    """Return a site's training and test cases, drawn from the seed.

    The same arguments give the same cases on every machine, whatever was drawn before; train and
    test never share a patient.
    """
    phantom = _phantom(name)
    if site not in phantom.sites:
        msg = (
            f"phantom '{name}' has no site '{site}'; its sites are {listing(phantom.sites)}"
            f"{suggestion(site, phantom.sites)}"
        )
        raise UsageError(msg)
    return _cases(name, site, "train", size, seed), _cases(name, site, "test", size, seed)


def load_common_test(name: str, *, size: int = 64, seed: int = 0) -> Cases | None:
    """Return the test set that all sites share, or `None` where each site has only its own."""
    phantom = _phantom(name)
    if not phantom.common_test:
        return None
    return _common_test(name, size, seed)


def phantom_federation(name: str) -> Federation:
    """Return the federation of a phantom's sites, each marking every label."""
    phantom = _phantom(name)
    form = Supervision.MASK if phantom.task == "segmentation" else Supervision.IMAGE
    return Federation(
        name=name,
        task=phantom.task,
        labels=phantom.card.labels,
        exclusive=phantom.exclusive,
        image=ImageShape(size=(64, 64), channels=phantom.channels),
        site=tuple(
            SiteDeclaration(name=site, data=f"dataset:{name}/{site}", supervision=form)
            for site in phantom.sites
        ),
        regions=dict(phantom.regions),
    )


def _phantom(name: str) -> Phantom:
    if name not in _KINDS:
        msg = (
            f"there is no phantom '{name}'; the phantoms are {listing(_KINDS)}"
            f"{suggestion(name, _KINDS)}"
        )
        raise UsageError(msg)
    return _KINDS[name]


@lru_cache(maxsize=256)
def _cases(name: str, site: str, split: Split, size: int, seed: int) -> Cases:
    return _KINDS[name].cases(site, split, size, seed)


@lru_cache(maxsize=8)
def _common_test(name: str, size: int, seed: int) -> Cases:
    parts = [_cases(name, site, "common", size, seed) for site in _KINDS[name].sites]
    image = np.concatenate([part.image for part in parts])
    truth = np.concatenate([part.truth for part in parts if part.truth is not None])
    image.flags.writeable = truth.flags.writeable = False
    return Cases(
        image,
        truth,
        tuple(case for part in parts for case in part.case),
        tuple(group for part in parts for group in part.group),
    )
