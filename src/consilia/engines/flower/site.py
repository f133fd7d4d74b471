"""A site's training process: it answers what the SuperNode beside it receives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.runtime import RuntimeHttpClient

from consilia.engines.flower.client import (
    GONE,
    Heart,
    acquire,
    begin,
    connect_for_tasks,
    connect_to_task,
    end,
    pause,
)
from consilia.engines.flower.content import from_content, to_content
from consilia.engines.flower.leaving import Leaving, Note, give_back
from consilia.engines.packet import Packet
from consilia.errors import MessageError

LOG = logging.getLogger("consilia")


def serve(
    address: str,
    ca: bytes,
    secret: bytes,
    answer: Callable[[Packet], Packet],
    stopped: threading.Event,
    note: Path,
) -> None:
    """Answer what the site's SuperNode receives, one message at a time, until told to stop.

    Args:
        address: The SuperNode's own API, on loopback.
        ca: What its certificate is checked against.
        secret: What lets this process, and no other, take up tasks.
        answer: The site's half; whatever it cannot do is an answer too.
        stopped: Ends the loop.
        note: A file that tells, should this process be killed, what it had in hand.
    """
    worked = time.monotonic()
    held = Note(note)
    with closing(connect_for_tasks(address, ca, secret)) as client:
        tray = _Tray(client)
        while not stopped.is_set():
            try:
                give_back(address, ca, held)
                token = tray.take()
                if token is not None:
                    _work(address, ca, token, answer, held, tray)
                    worked = time.monotonic()
                    continue
            except GONE as error:
                LOG.debug("the SuperNode does not answer: %s", error)
                stopped.wait(1.0)
            stopped.wait(pause(time.monotonic() - worked))


class _Tray:
    """The tasks of a SuperNode, taken one at a time, the oldest first."""

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client = client
        self._next: str | None = None
        self._lock = threading.Lock()

    def take(self) -> str | None:
        """Return the token of the next task, if there is one."""
        with self._lock:
            token, self._next = self._next, None
            return token or self._acquire()

    def holds_another(self) -> bool:
        """Return whether a further task waits.

        A SuperNode turns to its next message only when it is done with the last, so whatever is still
        missing of that one will never come: its run was stopped meanwhile.
        """
        with self._lock:
            self._next = self._next or self._acquire()
            return self._next is not None

    def _acquire(self) -> str | None:
        return str(acquire(self._client).token) or None


def _work(
    address: str,
    ca: bytes,
    token: str,
    answer: Callable[[Packet], Packet],
    note: Note,
    tray: _Tray,
) -> None:
    with closing(connect_to_task(address, ca, token)) as client:
        heart = Heart(client)
        try:
            try:
                message = _receive(client, tray)
            except ObjectPullError:
                end(client, SubStatus.FAILED, "its message never came")
                return
            note.write(token, message)
            leaving = Leaving.of(reply_to(message, answer))
            note.add(leaving)
            leaving.push(client)
            end(client, SubStatus.COMPLETED)
        finally:
            heart.stop()
            note.remove()


def reply_to(message: Message, answer: Callable[[Packet], Packet]) -> Message:
    """Return a site's answer as a message; what cannot be answered is an error that tells why."""
    try:
        return Message(to_content(answer(from_content(message.content))), reply_to=message)
    except MessageError as error:
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return Message(Error(code=code, reason=str(error)), reply_to=message)


def _receive(client: RuntimeHttpClient, tray: _Tray) -> Message:
    """Return a task's message when all of it has come; the bundle of its run is not looked at."""
    given = begin(client)
    run, number = given.run.run_id, given.context.node_id
    trees = client.PullMessages(PullAppMessagesRequest()).message_object_trees
    if not trees:
        raise ObjectPullError("message", "there is none")  # noqa: EM101 - Flower's own two words
    node = ProtoNode(node_id=number)
    fetch = make_pull_object_fn_protobuf(client.PullObject, node, run)

    def pull(name: str) -> bytes:
        try:
            return fetch(name)
        except ObjectUnavailableError:
            if tray.holds_another():
                raise ObjectPullError(name, "its run has ended") from None
            raise

    message = pull_and_inflate_object_from_tree(
        trees[0],
        pull,
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run),
        return_type=Message,
        max_time=None,
        max_tries_per_object=None,
        initial_backoff=0.1,
        backoff_cap=1.0,
    )
    message.metadata.__dict__["_message_id"] = trees[0].object_id  # as Flower's own process does
    return message
