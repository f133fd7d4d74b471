"""The boundary of an engine: one verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from consilia.payload import Record


class Transport(Protocol):
    """Carries records to sites and their replies back; it knows nothing of what they mean."""

    def exchange(
        self, records: Iterable[Record], deadline: float | None = None
    ) -> Iterator[Record]:
        """Yield the replies as they come; a site that does not answer yields nothing.

        Records are taken one at a time, so that a federation of a thousand sites never has a
        thousand messages in memory.
        """
        ...
