"""The ledger: every field that left a site or the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from consilia.payload import Record, entries
from consilia.runs.store import RunFolder


@dataclass
class Ledger:
    """Writes one line per field and message, and counts bytes.

    With `hashes` each line carries the sha256 of the content: always in a real federation, by choice
    in one process, where hashing would cost more than the round.
    """

    folder: RunFolder
    hashes: bool = False
    up: int = 0
    down: int = 0
    _lines: list[dict[str, Any]] = field(default_factory=list)

    def note(self, record: Record, direction: Literal["up", "down"]) -> None:
        """Note a message on its way."""
        head = {
            "round": record.round,
            "site": record.site,
            "direction": direction,
            "verb": record.verb,
            "message": record.message,
        }
        fields = entries(record, self.hashes)
        size = sum(entry.bytes for entry in fields)
        if direction == "up":
            self.up += size
        else:
            self.down += size
        for entry in fields:
            line = dict(vars(entry))
            if entry.sha256 is None:
                del line["sha256"]
            self._lines.append(head | line)

    def flush(self) -> None:
        """Write what has been noted."""
        self.folder.append("ledger.jsonl", *self._lines)
        self._lines.clear()
