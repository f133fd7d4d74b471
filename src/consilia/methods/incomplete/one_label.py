"""The base of methods for masks of one label, of which some sites may have missed a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from consilia.declare import Federation
from consilia.methods.contract import Method
from consilia.methods.needs import masks_of_one_label
from consilia.training.site import Site


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: how many images it trains on."""

    images: int


class Averaged(Protocol):
    """A server that remembers each site's part in the last average."""

    @property
    def last(self) -> Mapping[str, float]:
        """Each site's part."""


State = TypeVar("State", bound=Averaged)
Sent = TypeVar("Sent")
Reply = TypeVar("Reply")
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class OneLabel(Method[Intro, State, Sent, Reply, Kept]):
    """What all methods share that look for what is missing in masks of one label."""

    def unmet(self, federation: Federation) -> str | None:
        """Refuse all but masks of one label."""
        return masks_of_one_label(federation)

    def introduce(self, site: Site) -> Intro:
        """Count the images."""
        return Intro(len(site.train.supervised()))

    def shares(self, server: State) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.last
