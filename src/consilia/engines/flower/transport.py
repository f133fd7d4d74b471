"""The exchange of a round: every site is asked, asked again where that helps, or given up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, MessageType

from consilia.engines.flower.client import GONE, LinkLostError, pause
from consilia.engines.flower.content import from_content, to_content
from consilia.engines.flower.session import Node, Session
from consilia.engines.packet import Packet, seal, unseal
from consilia.engines.site import SiteWorker
from consilia.engines.transport import Lost
from consilia.errors import MessageError
from consilia.payload import Record

#: Seconds between two looks at who is connected.
LOOK = 2.0
#: How often a message is sent to a site whose processes die of it.
TRIES = 3
_KINDS = {"introduce": MessageType.QUERY, "train": MessageType.TRAIN}


@dataclass
class _Awaited:
    """A message on its way."""

    record: Record
    packet: Packet
    message: str | None = None
    node: Node | None = None
    tries: int = 0
    since: float = field(default_factory=time.monotonic)

    def ask_again(self) -> None:
        """Let it be sent anew: what the site did is on its disk, so it is not done twice."""
        self.message, self.node, self.since = None, None, time.monotonic()


@dataclass
class FlowerTransport:
    """Carries the records of one run; who answers is known by the key that signed the answer.

    Attributes:
        session: The Flower run.
        key: The coordinator's key, which signs every message.
        sites: The registered public key of each site, as an object and as Flower names it.
        head: What every message says besides its record: the run and the study.
        limit: The most bytes of a reply.
        deadline: Seconds a site has to answer.
        patience: Seconds to wait for a site that is not connected.
        local: Workers at the coordinator itself, for a test set that all sites share.
    """

    session: Session
    key: ec.EllipticCurvePrivateKey
    sites: Mapping[str, tuple[ec.EllipticCurvePublicKey, bytes]]
    head: Mapping[str, Any]
    limit: int
    deadline: float = 3600.0
    patience: float = 15.0
    local: Mapping[str, SiteWorker] = field(default_factory=dict)

    def exchange(
        self, records: Iterable[Record], deadline: float | None = None
    ) -> Iterator[Record | Lost]:
        """Yield the replies as they come, and why there is none where that is known."""
        try:
            yield from self._exchange(records, deadline or self.deadline)
        except GONE as error:
            msg = f"the connection to the SuperLink was lost: {error}"
            raise LinkLostError(msg) from None

    def _exchange(self, records: Iterable[Record], deadline: float) -> Iterator[Record | Lost]:
        until = time.monotonic() + deadline
        awaited: list[_Awaited] = []
        online = self.session.online()
        for record in records:
            if record.site in self.local:
                yield self.local[record.site].handle(record)
                continue
            extra = {**self.head, "site": record.site, "since": record.since}
            one = _Awaited(record, seal(record, self.key, extra))
            self._send(one, online, until)
            awaited.append(one)
        began = looked = time.monotonic()
        while awaited:
            for one, reply in self._replies(awaited):
                yield reply
                awaited.remove(one)
            for one in self._stranded(awaited, until):
                why = "absent: it is not connected"
                if one.tries and time.monotonic() > until:
                    why = f"absent: it did not answer within {deadline:.0f} s"
                yield Lost(one.record.site, why)
                awaited.remove(one)
            if awaited:
                time.sleep(pause(time.monotonic() - began))
                if time.monotonic() > looked + LOOK:
                    self._look(awaited, until)
                    looked = time.monotonic()

    def _look(self, awaited: list[_Awaited], until: float) -> None:
        """Send what waits for its site, and again what a site forgot because it was started anew."""
        online = self.session.online()
        for one in awaited:
            node = online.get(self.sites[one.record.site][1])
            if one.node is not None and node is not None and node != one.node:
                one.ask_again()
            self._send(one, online, until)

    def _send(self, one: _Awaited, online: Mapping[bytes, Node], until: float) -> None:
        """Send a message that is not on its way, if its site is connected."""
        node = online.get(self.sites[one.record.site][1])
        if one.message is not None or node is None:
            return
        message = Message(
            to_content(one.packet),
            node.number,
            _KINDS.get(one.record.verb, MessageType.EVALUATE),
            ttl=max(1.0, until - time.monotonic()),
            group_id=str(one.record.round),
        )
        (sent,) = self.session.grid.push_messages([message])
        one.message, one.node = sent or None, node
        one.tries += 1

    def _replies(self, awaited: list[_Awaited]) -> Iterator[tuple[_Awaited, Record | Lost]]:
        sent = {one.message: one for one in awaited if one.message is not None}
        if not sent:
            return
        for name, message in self.session.pull(list(sent)).items():
            one = sent[name]
            if message is not None and not message.has_error():
                yield one, self._open(message, one)
            elif one.tries < TRIES:
                one.ask_again()
            else:
                why = message.error.reason if message is not None else "its answer was cut short"
                yield one, Lost(one.record.site, f"absent: {_plain(why)}")

    def _open(self, message: Message, one: _Awaited) -> Record | Lost:
        site, asked = one.record.site, one.record
        try:
            packet = from_content(message.content)
            reply, extra = unseal(packet, self.sites[site][0], site, self.limit)
            if extra != {"answers": one.packet.digest}:
                msg = "it answers a message that was not sent to it"
                raise MessageError(msg)
            if (reply.verb, reply.round) != (asked.verb, asked.round):
                msg = "it answers something else than it was asked"
                raise MessageError(msg)
        except MessageError as error:
            return Lost(site, f"refused: {error}")
        return reply

    def _stranded(self, awaited: list[_Awaited], until: float) -> list[_Awaited]:
        now = time.monotonic()
        return [
            one
            for one in awaited
            if now > until or (one.message is None and now > one.since + self.patience)
        ]


def _plain(reason: str | None) -> str:
    return " ".join((reason or "it failed").split())[:200]
