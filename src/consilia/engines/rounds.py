"""The one round loop: broadcast, exchange, check, aggregate, evaluate, keep. Engines only carry."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from consilia.declare import COMMON, POOLED, Federation
from consilia.engines.ledger import Ledger
from consilia.engines.memory import MemoryStore, Spool
from consilia.engines.messages import Examination, Failed, Hello, Portrait, Scores
from consilia.engines.transport import Lost, Transport
from consilia.errors import MessageError, RunError
from consilia.evaluate.metrics import MAIN
from consilia.evaluate.metrics import METRICS as METRIC_TABLE
from consilia.evaluate.selection import Evaluation, Selected, select
from consilia.methods.contract import AnyMethod, Start, wire_of
from consilia.payload import Layout, Record, is_finite, load, pack, save, unpack
from consilia.runs.cases import cases_of
from consilia.runs.spec import RunSpec
from consilia.runs.store import SELECTED, Progress, RunFolder, plain_json
from consilia.training.seeds import generator

Listener = Callable[[dict[str, Any]], None]
MEBIBYTE = 1 << 20
#: The way out where no round is kept: the folder knows settings and data that may have to change.
_AGAIN = "correct that, and give the command again with another --out"


class Rounds:
    """Runs a method over a transport, from the last checkpoint to the last round."""

    def __init__(
        self,
        *,
        method: AnyMethod,
        spec: RunSpec,
        federation: Federation,
        start: Start,
        layout: Layout,
        transport: Transport,
        memories: MemoryStore,
        folder: RunFolder,
        listeners: tuple[Listener, ...] = (),
    ) -> None:
        self.method = method
        self.spec = spec
        self.federation = federation
        self.begin = start
        self.layout = layout
        self.transport = transport
        self.memories = memories
        self.folder = folder
        self.listeners = listeners
        self.wire = wire_of(type(method))
        self.ledger = Ledger(folder, spec.engine.ledger == "hashes")
        self.spool = Spool(folder.path / ".spool", spec.engine.memory_mib * MEBIBYTE // 2)
        self.progress = Progress()
        self.server: Any = None
        self.events: list[dict[str, str]] = []

    def run(self) -> dict[str, Any]:
        """Run to the end and return what `metrics.json` holds."""
        self._come_back()
        while self.progress.round < self.spec.rounds:
            began = time.perf_counter()
            line = self._round(self.progress.round + 1)
            self.progress.seconds += time.perf_counter() - began
            line["seconds"] = round(time.perf_counter() - began, 4)
            self._close_round(line)
        return self._finish()

    # --- one round ---

    def _round(self, number: int) -> dict[str, Any]:
        self.events = []
        present = self._present(number)
        self._meet(number, present)
        known = tuple(site for site in present if site in self.progress.admitted)
        invited = tuple(sorted(self.method.invite(self.server, known)))
        told: dict[str, dict[str, float]] = {}
        self.spool.begin(invited)
        before = len(self.events)
        for reply in self._exchange("train", number, invited):
            if not is_finite(reply):
                self._event(reply.site, "dropped: its update holds a number that is not finite")
                continue
            try:
                message = unpack(self.wire.up, reply, self.layout)
            except MessageError as error:
                self._event(reply.site, f"refused: {error}")
                continue
            told[reply.site] = _scalars(reply)
            failed = {event["site"] for event in self.events[before:]}
            self.spool.keep(reply.site, message, self.method.share_of(message), failed=failed)
        for site in set(invited) - set(told) - {event["site"] for event in self.events}:
            self._event(site, "absent: it did not answer")
        missing = len(self.federation.site) - len(known)
        self._need_enough(number, len(invited) + missing, len(told))
        self.progress.used |= dict.fromkeys(told, number)
        self.server = self.method.aggregate(self.server, self.spool.replies())
        self.spool.begin(())
        shares = dict(self.method.shares(self.server))
        self.progress.round = number
        line: dict[str, Any] = {
            "round": number,
            "took_part": sorted(told),
            "sites": {site: told[site] for site in sorted(told)},
            "shares": shares,
            "events": self.events,
        }
        if counts := self.method.counts(self.server):
            line["counts"] = {site: dict(counts[site]) for site in sorted(counts)}
        if self._evaluates(number):
            line |= self._evaluate(number)
        if number == self.spec.rounds:
            self._tell_unjudged()
        return line

    def _need_enough(self, number: int, wanted: int, usable: int) -> None:
        """End the run where too few answered; of those present, a method may itself invite fewer."""
        needed = 1
        if self.method.data == "own":
            needed = max(1, min(self.spec.participation.min_sites, wanted))
        if usable >= needed:
            return
        why = "; ".join(f"{event['site']} {event['event']}" for event in self.events)
        out = _AGAIN
        if self.folder.latest_checkpoint() is not None:
            out = "`consilia resume` goes on from the last checkpoint"
        msg = (
            f"round {number}: {usable} of the invited sites gave a usable update and min_sites is "
            f"{needed}{' (' + why + ')' if why else ''}; {out}"
        )
        raise RunError(msg)

    def _present(self, number: int) -> tuple[str, ...]:
        if self.method.data == "pooled":
            return (POOLED,)
        rules = self.spec.participation
        here = [
            site
            for site in self.federation.sites
            if number >= rules.joins.get(site, 1) and number not in rules.absent.get(site, ())
        ]
        if rules.fraction < 1 and here:
            count = max(1, math.ceil(rules.fraction * len(here) - 1e-9))
            order = torch.randperm(
                len(here), generator=generator(self.spec.seed, "participation", number)
            )
            here = [here[i] for i in order[:count].tolist()]
        return tuple(sorted(here))

    def _meet(self, number: int, present: tuple[str, ...]) -> None:
        """Let sites that have not yet done so introduce themselves."""
        new = tuple(site for site in present if site not in self.progress.admitted)
        intros = {}
        for reply in self._exchange("introduce", number, new):
            try:
                intros[reply.site] = unpack(self.wire.intro, reply, self.layout)
            except MessageError as error:
                self._event(reply.site, f"refused: {error}")
        if self.server is None:
            if not intros:
                why = "; ".join(f"{e['site']} {e['event']}" for e in self.events)
                msg = f"no site introduced itself in round {number} ({why or 'none answered'}); {_AGAIN}"
                raise RunError(msg)
            self.server = self.method.start(self.begin, dict(sorted(intros.items())))
        else:
            for site in sorted(intros):
                self.server = self.method.admit(self.server, site, intros[site])
                self._event(site, "joined")
        self.progress.admitted = tuple(sorted({*self.progress.admitted, *intros}))

    def _exchange(self, verb: str, number: int, sites: tuple[str, ...]) -> Iterator[Record]:
        """Send each site its record and yield the replies that are no failures."""
        for reply in self.transport.exchange(self._records(verb, number, sites)):
            if isinstance(reply, Lost):
                self._event(reply.site, reply.reason)
                continue
            self.ledger.note(reply, "up")
            if reply.message == Failed.__name__:
                self._event(reply.site, f"failed: {unpack(Failed, reply).reason}")
            elif reply.site not in sites or reply.round != number or reply.verb != verb:
                self._event(reply.site, "refused: it answers a message that was not sent to it")
            else:
                yield reply

    def _records(self, verb: str, number: int, sites: tuple[str, ...]) -> Iterator[Record]:
        for site in sites:
            message = Hello() if verb == "introduce" else self.method.broadcast(self.server, site)
            record = pack(message, verb, site, number, self.progress.used.get(site, 0))
            self.ledger.note(record, "down")
            yield record

    def _event(self, site: str, event: str) -> None:
        self.events.append({"site": site, "event": event})

    # --- evaluation ---

    def _evaluates(self, number: int) -> bool:
        last = self.spec.rounds - number
        if self.spec.evaluate.selection == "last_ten" and last < 10:
            return True
        return last == 0 or number % self.spec.evaluate.every == 0

    def _evaluate(self, number: int) -> dict[str, Any]:
        """Judge every site that has joined, whether or not it was drawn to train this round."""
        pooled = self.method.data == "pooled"
        sites = self.federation.sites if pooled else self.progress.admitted
        if self.federation.test is not None:
            sites = (*sites, COMMON)
        examines = self.spec.evaluate.per_case and self._selectable(number)
        test, validation = {}, {}
        cases = {}
        for reply in self._exchange("examine" if examines else "evaluate", number, sites):
            try:
                if examines:
                    examination = unpack(Examination, reply)
                    scores, cases[reply.site] = examination.scores, _table(examination)
                else:
                    scores = unpack(Scores, reply)
            except MessageError as error:
                self._event(reply.site, f"refused: {error}")
                continue
            if not scores.test:
                continue
            test[reply.site] = dict(scores.test)
            if scores.validation is not None:
                validation[reply.site] = dict(scores.validation)
        found = {
            "test": _ordered(test),
            **({"validation": _ordered(validation)} if validation else {}),
        }
        self.progress.evaluations.append({"round": number, **found})
        if examines:
            self.folder.write_json(f"cases/round-{number:06d}.json", _ordered(cases))
        if self._is_best(number):
            self._keep(SELECTED)
        if self.spec.evaluate.portraits and number == self.spec.rounds:
            self._portray(number)
        return plain_json(found)  # type: ignore[no-any-return]  # JSON

    def _tell_unjudged(self) -> None:
        """Say in the last round of which sites there are no scores, unless it says so already."""
        if self.method.data == "pooled":
            return
        told = {event["site"] for event in self.events}
        for site in self.federation.sites:
            if site not in self.progress.admitted and site not in told:
                self._event(site, "not judged: it never took part")

    def _portray(self, number: int) -> None:
        """Ask every site that has joined for its portrait, and keep them for the report."""
        if self.method.data == "pooled":
            return
        portraits = {}
        for reply in self._exchange("portray", number, self.progress.admitted):
            try:
                portrait = unpack(Portrait, reply)
            except MessageError as error:
                self._event(reply.site, f"refused: {error}")
                continue
            told = {"points": portrait.points.tolist(), "follow": dict(portrait.follow)}
            portraits[reply.site] = told
        self.folder.write_json("portraits.json", plain_json(_ordered(portraits)))

    def _selectable(self, number: int) -> bool:
        """Whether this round may be the one that is reported."""
        last = self.spec.rounds - number
        match self.spec.evaluate.selection:
            case "best_validation":
                return True
            case "last_ten":
                return last < 10
            case _:
                return last == 0

    def _is_best(self, number: int) -> bool:
        """Whether this round is the best so far on the held-out images, so that its model is kept."""
        if self.spec.evaluate.selection != "best_validation":
            return False
        return self._selected().rounds == (number,)

    def _selected(self) -> Selected:
        metric = MAIN[self.federation.task]
        history = [
            Evaluation(e["round"], e["test"], e.get("validation"))
            for e in self.progress.evaluations
        ]
        return select(history, self.spec.evaluate.selection, metric, METRIC_TABLE[metric].better)

    # --- keeping and coming back ---

    def _close_round(self, line: dict[str, Any]) -> None:
        self.progress.bytes_up += self.ledger.up
        self.progress.bytes_down += self.ledger.down
        line |= {"bytes_up": self.ledger.up, "bytes_down": self.ledger.down}
        self.ledger.up = self.ledger.down = 0
        self.ledger.flush()
        self.folder.append("rounds.jsonl", line)
        due = self.progress.round % self.spec.engine.checkpoint_every == 0
        if due or self.progress.round == self.spec.rounds:
            self._checkpoint()
        for listener in self.listeners:
            listener(line)

    def _checkpoint(self) -> None:
        with self.folder.new_checkpoint(self.progress.round) as part:
            self._write_state(part)

    def _keep(self, name: str) -> None:
        """Keep the present state beside the checkpoints, whole or not at all."""
        with self.folder.new_folder(name) as part:
            self._write_state(part)

    def _write_state(self, part: Path) -> None:
        save(part / "server.safetensors", self.server)
        self.memories.snapshot(part / "memories")
        RunFolder(part).write_json("progress.json", vars(self.progress))

    def _come_back(self) -> None:
        found = self.folder.latest_checkpoint()
        if found is not None:
            _, path = found
            self.progress = self.folder.progress_at(path)
            with self.folder.reading(path):
                self.server = load(path / "server.safetensors", self.wire.server)
                self.memories.restore(path / "memories")
                self.memories.refuse_damaged()
        self.progress.asked = self.folder.asked()
        for name in ("rounds.jsonl", "ledger.jsonl"):
            self.folder.rewind(name, 0 if found is None else found[0])

    def _finish(self) -> dict[str, Any]:
        rule, chosen = self.spec.evaluate.selection, self._selected()
        metrics = plain_json(
            {
                "study": self.spec.study,
                "method": self.spec.method.name,
                "seed": self.spec.seed,
                "rounds": self.spec.rounds,
                "selection": rule,
                "sites": _ordered(chosen.sites),
                # A test set that all sites share is what the study is judged on.
                "mean": chosen.sites.get(COMMON, chosen.mean),
                "seconds": round(self.progress.seconds, 3),
                "bytes_up": self.progress.bytes_up,
                "bytes_down": self.progress.bytes_down,
            }
        )
        self._keep_cases(chosen.rounds)
        findings = self.method.findings(self.server)
        if findings.affinity or findings.maps:
            maps = {name: values.tolist() for name, values in findings.maps.items()}
            told = {"affinity": findings.affinity, "maps": maps}
            self.folder.write_json("findings.json", plain_json(told))
        self.folder.write_json("selection.json", {"rule": rule, "rounds": list(chosen.rounds)})
        self.folder.write_json("metrics.json", metrics)
        return metrics  # type: ignore[no-any-return]  # JSON

    def _keep_cases(self, rounds: tuple[int, ...]) -> None:
        """Average the per-case tables of the selected rounds into `cases.json`."""
        if found := cases_of(self.folder, rounds):
            self.folder.write_json("cases.json", plain_json(_ordered(found)))


def _table(examination: Examination) -> dict[str, Any]:
    columns = zip(examination.columns, examination.values.T.tolist(), strict=True)
    return {
        "case": list(examination.case),
        "group": list(examination.group),
        "values": {name: plain_json(values) for name, values in columns},
    }


def _scalars(record: Record) -> dict[str, float]:
    return {
        name: value
        for name, value in record.body.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _ordered(sites: dict[str, Any]) -> dict[str, Any]:
    return {site: sites[site] for site in sorted(sites)}
