"""A Flower run at the coordinator: who is connected, and which answers have come whole."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import HttpGrid

from consilia.engines.flower.client import GONE, Heart, begin, connect_to_task, end

LOG = logging.getLogger("consilia")


class Session:
    """A Flower run whose server task is this process."""

    def __init__(self, address: str, ca: bytes, run: int, token: str) -> None:
        self.run = run
        self._coming: dict[str, _Coming] = {}
        self.grid = HttpGrid(address, False, ca, token=token)
        self.grid._retry_invoker = None  # type: ignore[assignment]  # its own ends the process
        self._client = connect_to_task(address, ca, token)
        self._heart = Heart(self._client)
        self.grid.set_run(run_from_proto(begin(self._client).run))

    def close(self, *, done: bool) -> None:
        """Say how the run ended and let go of the SuperLink, which may itself be gone."""
        self._heart.stop()
        status = SubStatus.COMPLETED if done else SubStatus.FAILED
        try:
            end(self._client, status)
        except GONE:
            LOG.debug("the SuperLink is gone")
        self.grid.close()
        self._client.close()

    def pull(self, asked: Collection[str]) -> dict[str, Message | None]:
        """Return the answers that have come whole, by what they answer; None for one cut short.

        Flower's own grid waits for every part of an answer once its first has come, for minutes where
        its sender has died; others' answers would wait, and no deadline would be kept.
        """
        self._coming = {name: one for name, one in self._coming.items() if name in asked}
        fresh = [name for name in asked if name not in self._coming]  # its head comes once only
        if fresh:
            request = PullAppMessagesRequest(message_ids=fresh)
            found = self.grid._runtime_client.PullMessages(request)
            for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                parts = dict.fromkeys(part.object_id for part in iterate_object_tree(tree))
                name = head.metadata.reply_to_message_id
                self._coming[name] = _Coming(head.metadata.message_id, parts)
        done: dict[str, Message | None] = {}
        for name, one in self._coming.items():
            try:
                if self._fetch(one):
                    done[name] = self._whole(one)
            except ObjectPullError:
                done[name] = None
        self._coming = {name: one for name, one in self._coming.items() if name not in done}
        return done

    def _fetch(self, one: _Coming) -> bool:
        """Fetch what is there of an answer and return whether that is all of it."""
        client = self.grid._runtime_client
        fetch = make_pull_object_fn_protobuf(client.PullObject, self.grid.node, self.run)
        try:
            for part in [part for part, held in one.parts.items() if held is None]:
                one.parts[part] = fetch(part)
        except ObjectUnavailableError:
            return False
        return True

    def _whole(self, one: _Coming) -> Message:
        received = ConfirmMessageReceivedRequest(
            node=self.grid.node, run_id=self.run, message_object_id=one.name
        )
        self.grid._runtime_client.ConfirmMessageReceived(received)
        parts = {part: held for part, held in one.parts.items() if held is not None}
        message = inflate_object_from_contents(one.name, parts)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = one.name  # as Flower's own grid does
        return message

    def online(self) -> dict[bytes, Node]:
        """Return the node of every connected SuperNode by its public key."""
        found = self.grid.get_nodes()
        return {bytes(n.public_key): Node(n.node_id, str(n.last_activated_at)) for n in found}


@dataclass(frozen=True)
class _Coming:
    """An answer on its way from the SuperLink: its name there, and what is here of its parts."""

    name: str
    parts: dict[str, bytes | None]


@dataclass(frozen=True)
class Node:
    """A connected SuperNode; one that was started again has another time of connection."""

    number: int
    connected: str
