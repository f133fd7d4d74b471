"""The boundary of an engine: one verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from consilia.payload import Record


@dataclass(frozen=True)
class Lost:
    """Comes instead of a reply where a transport knows why there is none, or refused what came."""

    site: str
    reason: str


class Transport(Protocol):
    """Carries records to sites and their replies back; it knows nothing of what they mean."""

    def exchange(
        self, records: Iterable[Record], deadline: float | None = None
    ) -> Iterator[Record | Lost]:
        """Yield the replies as they come; a site that does not answer yields nothing.

        Records are taken one at a time, so that a federation of a thousand sites never has a
        thousand messages in memory.
        """
        ...
