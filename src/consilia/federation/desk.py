"""The desk at which a hospital reads its mail: what it accepts, what it refuses, what it notes.

Everything here runs on the hospital's machine and decides there. A message must be signed by the
coordinator of the invitation, ask for something that is on the site's allow-list, and belong to a
study whose labels and task are the ones the hospital declared; the method it names must be one of
the installed package. Every field of every message, in both directions, is in the ledger before
anything leaves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from consilia.atomic import write_whole
from consilia.datasets.contract import SiteData
from consilia.declare import Federation, SiteDeclaration
from consilia.declare.read import validate
from consilia.engines.inprocess import know_again, load_own, make_bench
from consilia.engines.machine import settle, warn_of_kernels
from consilia.engines.messages import Failed
from consilia.engines.packet import Packet, seal, unseal
from consilia.engines.rounds import MEBIBYTE
from consilia.engines.site import SiteWorker
from consilia.errors import (
    ConsiliaError,
    DataError,
    DeclarationError,
    MessageError,
    RunError,
    UsageError,
    listing,
)
from consilia.federation.keys import Private, Public
from consilia.federation.state import SiteState
from consilia.federation.study import ALLOWED, BY_CHOICE
from consilia.methods import METHODS, labels_seen, make_method, refuse_unfit
from consilia.payload import Record, entries, is_finite, pack
from consilia.runs.spec import EngineSettings, RunSpec
from consilia.runs.store import RunFolder

LOG = logging.getLogger("consilia")
RUN = re.compile(r"[0-9a-f]{32}")
#: The parts of a federation that a study may not change behind a hospital's back.
AGREED = ("task", "labels", "exclusive", "image", "regions")
LIMIT = 2048 * MEBIBYTE
#: Seconds after which a run that asks nothing gives its memory to the next one.
IDLE = 600.0


class Desk:
    """Answers packets for one site.

    Args:
        name: The site.
        folder: Where it keeps its ledger and what it remembers.
        key: The site's own key, which signs every answer.
        coordinator: Whose messages are read.
        federation: What the hospital declared, with where its data is.
        allow: What it may be asked.
        engine: Values of `[engine]` that this machine sets for itself, e.g. `threads`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        key: Private,
        coordinator: Public,
        federation: Federation,
        allow: tuple[str, ...] = ALLOWED,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.key = key
        self.coordinator = coordinator
        self.federation = federation
        self.allow = allow
        self.engine = dict(engine or {})
        self._held: dict[str, tuple[SiteWorker, SiteState]] = {}
        self._used: dict[str, float] = {}

    def answer(self, packet: Packet) -> Packet:
        """Return the answer to a packet; a refusal is an answer too, unless nobody can be answered."""
        record, extra = unseal(packet, self.coordinator, self.name, LIMIT)
        head = self._head(extra)
        self._note(record, "down", head)
        try:
            reply, stored = self._reply(record, head, packet)
        except ConsiliaError as error:
            LOG.warning("refused a message of round %d: %s", record.round, error)
            told = str(error)
            if isinstance(error, DataError):  # it quotes the names of files
                told = "this site's data cannot be used as declared; its log says why"
            reply = pack(Failed(told), record.verb, self.name, record.round)
            stored = None
        except Exception as error:
            LOG.exception("failed in round %d", record.round)
            text = f"{type(error).__name__}; the site's log has the rest"
            reply = pack(Failed(text), record.verb, self.name, record.round)
            stored = None
        self._note(reply, "up", head | ({"again": True} if stored else {}))
        return stored or self._seal(reply, packet)

    def _seal(self, reply: Record, asked: Packet) -> Packet:
        return seal(reply, self.key, {"answers": asked.digest})

    def _reply(
        self, record: Record, head: Mapping[str, Any], packet: Packet
    ) -> tuple[Record, Packet | None]:
        """Return the reply, and its packet where it was given before."""
        self._may_ask(record)
        worker, state = self._worker(head)
        known = state.answered(record.verb, record.round, packet.digest)
        if known is not None:
            return unseal(known, self.key.public_key(), self.name, LIMIT)[0], known
        done = False
        try:
            worker.memories = state.go_back_to(head["since"])
            reply = worker.handle(record)
            if reply.message != Failed.__name__:
                sealed = self._seal(reply, packet)
                state.keep(record.verb, record.round, head["since"], packet.digest, sealed)
                done = True
        finally:
            if not done:  # what is in memory may be half of something
                state.forget()
        return reply, None

    # --- what is refused ---

    def _may_ask(self, record: Record) -> None:
        if (self.folder / "paused").exists():
            msg = "this site is paused by its hospital"
            raise MessageError(msg)
        if record.verb not in self.allow:
            msg = (
                f"this site does not answer '{record.verb}' messages; its allow-list has "
                f"{listing(self.allow)}"
            )
            raise MessageError(msg)
        if not is_finite(record):
            msg = "the coordinator's message holds a number that is not finite"
            raise MessageError(msg)

    def _head(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a message says besides its record, or refuse it."""
        kinds = {"run": str, "study": dict, "site": str, "since": int}
        fits = set(extra) == set(kinds) and all(type(extra[k]) is t for k, t in kinds.items())
        if not fits or not RUN.fullmatch(extra["run"]) or extra["since"] < 0:
            msg = "a message does not say which run, study and site it concerns"
            raise MessageError(msg)
        if extra["site"] != self.name:
            msg = f"a message for site {extra['site']!r:.70} came to site '{self.name}'"
            raise MessageError(msg)
        return dict(extra)

    def _accept(self, study: Mapping[str, Any]) -> RunSpec:
        """Return the study as this site runs it, or refuse it."""
        spec = validate(RunSpec, study, "the study", UsageError)
        own = self.federation
        for part in AGREED:
            theirs, ours = getattr(spec.federation, part), getattr(own, part)
            if theirs != ours:
                msg = (
                    f"the study's `{part}` is {_said(theirs)}, but site '{self.name}' declared "
                    f"{_said(ours)}"
                )
                raise DeclarationError(msg)
        if self.name not in spec.federation.sites:
            msg = f"the study has no site '{self.name}'"
            raise DeclarationError(msg)
        self._same_declaration(spec.federation[self.name])
        for verb, asks in BY_CHOICE.items():
            if getattr(spec.evaluate, asks) and verb not in self.allow:
                msg = (
                    f"the study asks for evaluate.{asks}, which site '{self.name}' does not give; set "
                    f"evaluate.{asks} = false, or let the site allow '{verb}'"
                )
                raise DeclarationError(msg)
        sites = [s if s.name != self.name else own[self.name] for s in spec.federation.site]
        table = spec.engine.model_dump(mode="json", exclude_none=True) | self.engine
        engine = validate(EngineSettings, table, "settings.json of this site", UsageError)
        federation = spec.federation.model_copy(update={"site": tuple(sites)})
        return spec.model_copy(update={"federation": federation, "engine": engine})

    def _same_declaration(self, theirs: SiteDeclaration) -> None:
        ours = self.federation[self.name]
        for part in SiteDeclaration.model_fields:
            said, declared = getattr(theirs, part), getattr(ours, part)
            if part != "data" and said != declared:
                msg = (
                    f"the study says `{part}` of site '{self.name}' is {_said(said)}, but its own "
                    f"declaration says {_said(declared)}"
                )
                raise DeclarationError(msg)

    # --- the worker ---

    def _worker(self, head: Mapping[str, Any]) -> tuple[SiteWorker, SiteState]:
        """Return the worker of a run; a run whose study has changed is refused."""
        run, study = head["run"], json.dumps(head["study"], sort_keys=True)
        self._used[run + study] = time.monotonic()
        if run + study in self._held:
            return self._held[run + study]
        for other in [key for key in self._held if time.monotonic() - self._used[key] > IDLE]:
            del self._held[other], self._used[other]
        spec = self._accept(head["study"])
        if spec.method.name not in METHODS:
            msg = f"the installed package has no method '{spec.method.name}'"
            raise DeclarationError(msg)
        method = make_method(spec.method.name, spec.method.settings)
        if method.data != "own" or method.labels != "declared":
            msg = f"method '{spec.method.name}' needs all images or all labels in one place"
            raise DeclarationError(msg)
        refuse_unfit(spec.method.name, method, spec.federation, spec.training)
        federation = labels_seen(method, spec.federation)
        settle(spec)
        data = load_own(spec, federation, self.name, self.folder)
        folder = self.folder / "state" / run
        self._remember_study(folder, study)
        for other in [key for key in self._held if key.startswith(f"{run}{{")]:
            del self._held[other], self._used[other]  # the same study, written otherwise
        self._same_data(folder, data)
        state = SiteState(folder, spec.engine.memory_mib * MEBIBYTE)
        bench = make_bench(spec, method, federation)
        warn_of_kernels(spec, bench)
        worker = SiteWorker(
            self.name,
            method=method,
            federation=federation,
            spec=spec,
            data=data,
            bench=bench,
            memories=state.memories,
            folder=self.folder / "predictions" / run,
            reticent=True,
        )
        self._held[run + study] = (worker, state)
        return worker, state

    def _remember_study(self, folder: Path, study: str) -> None:
        """Keep the study of a run beside its state; another study under the same run is refused."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "study.json"
        if not path.exists():
            write_whole(path, study)
        elif not _same_study(path.read_text(encoding="utf-8"), study):
            msg = "the study of this run has changed since it began"
            raise MessageError(msg)

    def _same_data(self, folder: Path, data: SiteData) -> None:
        try:
            know_again(RunFolder(folder), {self.name: data})
        except RunError:
            msg = "this site's images or labels are not those that the run began with"
            raise MessageError(msg) from None

    # --- the ledger ---

    def _note(self, record: Record, direction: str, head: Mapping[str, Any]) -> None:
        """Write every field of a message to the ledger, on disk before anything is done with it."""
        common = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": head["run"],
            "study": str(head["study"].get("study", ""))[:80],
            "round": record.round,
            "site": self.name,
            "direction": direction,
            "verb": record.verb,
            "message": record.message,
        }
        if "again" in head:
            common["again"] = True
        lines = [json.dumps(common | asdict(entry)) for entry in entries(record, hashes=True)]
        text = "".join(line + "\n" for line in lines or [json.dumps(common)])
        try:
            append(self.folder / "ledger.jsonl", text.encode())
        except OSError as error:
            LOG.error("the ledger cannot be written: %s", error)
            msg = "this site cannot write its ledger, so it answers nothing"
            raise MessageError(msg) from None


def append(path: Path, text: bytes) -> None:
    """Add whole lines to a file, on disk before this returns, or leave it as it was.

    A crash may have left half a line at its end; what is added begins a line of its own.
    """
    with path.open("ab+", buffering=0) as handle:
        before = handle.seek(0, os.SEEK_END)
        if before:
            handle.seek(-1, os.SEEK_END)
            text = text if handle.read(1) == b"\n" else b"\n" + text
        try:
            while text:
                text = text[handle.write(text) :]
            os.fsync(handle.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)
            raise


def _same_study(before: str, now: str) -> bool:
    """Return whether two studies ask for the same; a newer version may write out more defaults."""
    if before == now:
        return True
    try:
        one, other = (validate(RunSpec, json.loads(text), "the study") for text in (before, now))
    except (ConsiliaError, ValueError):
        return False
    return one == other


def _said(value: Any) -> str:
    """Return a declared value for a sentence."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return json.dumps(value, default=str)
