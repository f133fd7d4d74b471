"""What a site keeps of a run on its own disk: what it remembers, by round, and what it answered.

A run may ask the same thing twice, after a crash of anything: the answer is then the stored one,
and nothing is applied a second time. A run may also not have used an update (it came too late, or
the coordinator fell back to its last checkpoint): every message says which update was used last,
and the site goes on from what it remembered then.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from consilia.engines.memory import MemoryStore
from consilia.engines.packet import Packet
from consilia.errors import MessageError
from consilia.runs.store import RunFolder

_FILES = ("digest", "manifest", "buffer", "signature")


class SiteState:
    """One run's state at one site: a folder per round that appears whole or not at all."""

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.memories = MemoryStore(folder / ".memories", cap)
        self._loaded: int | None = 0

    def go_back_to(self, round_: int) -> MemoryStore:
        """Return what the site remembered after its training of a round; 0 is before the first."""
        if self._loaded != round_:
            self._loaded = None
            self.memories = MemoryStore(self.folder / ".memories", self.cap)
            if round_:
                kept = self._of(round_)
                if not kept.is_dir():
                    msg = (
                        f"this site no longer has what it remembered after round {round_}; start the "
                        "run again, or leave this site out"
                    )
                    raise MessageError(msg)
                self.memories.restore(kept / "memories")
            self._loaded = round_
        return self.memories

    def forget(self) -> None:
        """Trust nothing in memory: the next message reads from disk."""
        self._loaded = None

    def answered(self, verb: str, round_: int, digest: str) -> Packet | None:
        """Return the stored answer to a message, if this very message was answered before."""
        folder = self._of(round_) if verb == "train" else self.folder / verb
        try:
            digest_, manifest, buffer, signature = ((folder / name).read_bytes() for name in _FILES)
        except OSError:
            return None
        return Packet(manifest.decode(), buffer, signature) if digest_.decode() == digest else None

    def keep(self, verb: str, round_: int, since: int, digest: str, reply: Packet) -> None:
        """Store an answer; for a training together with what the site remembers from now on."""
        trained = verb == "train"
        with RunFolder(self.folder).new_folder(self._of(round_).name if trained else verb) as part:
            parts = (digest.encode(), reply.manifest.encode(), reply.buffer, reply.signature)
            for name, content in zip(_FILES, parts, strict=True):
                (part / name).write_bytes(content)
            if trained:
                self.memories.snapshot(part / "memories")
        if trained:
            self._loaded = round_
            self._drop_all_but(since, round_)

    def _drop_all_but(self, since: int, round_: int) -> None:
        """Keep this state, the one it began from, the one before that, and all that are newer.

        A newer one belongs to the run's future where this training is an old message that came again.
        """
        found = sorted(
            int(path.name.removeprefix("round-")) for path in self.folder.glob("round-*")
        )
        older = [number for number in found if number < since]
        between = [number for number in found if since < number < round_]
        for number in (*older[:-1], *between):
            shutil.rmtree(self._of(number), ignore_errors=True)

    def _of(self, round_: int) -> Path:
        return self.folder / f"round-{round_:06d}"
