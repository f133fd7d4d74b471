"""FedAdaptAgg (Wicaksana et al., TMI 2023): FedMix's aggregation with one network and masks everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

from consilia.methods.averaging import Averaging, Up
from consilia.methods.contract import hyper
from consilia.methods.papers import FEDMIX
from consilia.ops.adaptive import adaptive_shares


@final
@dataclass(frozen=True)
class FedAdaptAgg(Averaging):
    """Let sites with a high loss count more (FedMix Eq. 5). With `lam = 0` it is FedAvg."""

    lam: float = hyper(
        10.0, "weight λ of the loss against the image count", source="FedMix Sec. IV-B"
    )
    beta: float = hyper(1.5, "power β of the loss", source="FedMix Sec. IV-B (breast)")

    card: ClassVar = replace(FEDMIX, summary="FedAvg in which a high loss makes a site count more")

    def share_of(self, up: Up) -> None:
        """Return nothing: what a site counts depends on what others lose."""

    def image_shares(self, ups: Mapping[str, Up]) -> dict[str, float]:
        """Weigh image counts and losses."""
        counts = {site: float(up.images) for site, up in ups.items()}
        return adaptive_shares(
            counts, {site: up.loss for site, up in ups.items()}, self.lam, self.beta
        )
