"""Flower as a transport: the only file that imports it.

Flower carries packets between the coordinator's SuperLink and the hospitals' SuperNodes, and it
never runs code: a Flower run needs an application bundle, and ours is empty. Both ends are started
with `--isolation process` and a secret, so that the only processes which may take up tasks are
Consilia's own: the round loop at the coordinator (`Session`), the training process at a site
(`serve`). Both run what is installed there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from consilia.engines.packet import Packet, seal, unseal
from consilia.engines.quiet import QUIET
from consilia.engines.site import SiteWorker
from consilia.engines.transport import Lost
from consilia.errors import MessageError, RunError
from consilia.payload import Record

if any(os.environ.get(name) != value for name, value in QUIET.items()):
    msg = "call consilia.engines.quiet.hush() before importing consilia.engines.flower"
    raise ImportError(msg)

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    Metadata,
    RecordDict,
)
from flwr.app.message import make_message, remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import fab_to_proto, message_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

LOG = logging.getLogger("consilia")
POLL = 0.2
LOOK = 2.0
HEARTBEAT = 10.0
#: How often a message is sent to a site whose processes die of it.
TRIES = 3
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
_METADATA = (
    "run_id",
    "message_id",
    "src_node_id",
    "dst_node_id",
    "reply_to_message_id",
    "group_id",
    "created_at",
    "ttl",
    "message_type",
)
_KINDS = {"introduce": MessageType.QUERY, "train": MessageType.TRAIN}
#: What Flower and its HTTP client raise where the other end is gone or does not know us any more.
GONE = (httpx.HTTPError, RunNotRunningException, ConnectionError)
_BUNDLE = {
    "pyproject.toml": b"""[build-system]
requires = []
build-backend = "none"

[project]
name = "consilia-bundle"
version = "1.0.0"
description = "Holds no code: a Consilia site runs only what its hospital has installed."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "consilia"

[tool.flwr.app.components]
serverapp = "consilia_bundle:nothing"
clientapp = "consilia_bundle:nothing"

[tool.flwr.app.config]
""",
    "consilia_bundle/__init__.py": b'"""Holds no code."""\n\nnothing = None\n',
    "LICENSE": b"Apache-2.0\n",
}
C = TypeVar("C", RuntimeHttpClient, ControlHttpClient)


class LinkLostError(RunError):
    """The SuperLink is gone, or has forgotten this run; a new Flower run goes on."""


# --- packets in Flower's messages ---------------------------------------------------------------


def to_content(packet: Packet) -> RecordDict:
    """Return a packet as the content of a Flower message: two records, whatever it holds."""
    buffer = np.frombuffer(packet.buffer, np.uint8)
    head = ConfigRecord({"manifest": packet.manifest, "signature": packet.signature})
    return RecordDict({"head": head, "body": ArrayRecord({"buffer": Array(buffer)})})


def from_content(content: RecordDict) -> Packet:
    """Return the packet that a Flower message holds, or refuse it."""
    try:
        head, body = content["head"], content["body"]
        manifest, signature, held = head["manifest"], head["signature"], body["buffer"]
        if not isinstance(held, Array):
            raise TypeError
        buffer = held.numpy()
        if set(content) != {"head", "body"} or set(head) != {"manifest", "signature"}:
            raise KeyError
        if not isinstance(manifest, str) or not isinstance(signature, bytes) or len(body) != 1:
            raise TypeError
        if buffer.dtype != np.uint8 or buffer.ndim != 1:
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError):
        msg = "a message holds something else than a packet"
        raise MessageError(msg) from None
    return Packet(manifest, buffer.tobytes(), signature)


# --- the coordinator ----------------------------------------------------------------------------


def _client(kind: type[C], address: str, ca: bytes, *interceptors: Any) -> C:
    version = RuntimeVersionHttpInterceptor(component_name="consilia")
    return kind.from_server_address(address, False, ca, [version, *interceptors])


@dataclass(frozen=True)
class Link:
    """How the coordinator reaches its own SuperLink, on loopback."""

    address: str
    ca: bytes
    secret: bytes
    lock: Path

    def register(self, key: bytes, name: str) -> None:
        """Let the SuperNode with this public key connect; one that may already is left as it is."""
        if key in self.nodes():
            return
        with closing(_client(ControlHttpClient, self.address, self.ca)) as client:
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def nodes(self) -> dict[bytes, str]:
        """Return the state of every registered SuperNode by its public key."""
        with closing(_client(ControlHttpClient, self.address, self.ca)) as client:
            found = client.ListNodes(ListNodesRequest()).nodes_info
        gone = ("unregistered",)
        return {bytes(n.public_key): str(n.status) for n in found if n.status not in gone}

    def alive(self) -> bool:
        """Return whether the SuperLink answers."""
        try:
            self.nodes()
        except httpx.HTTPError:
            return False
        return True

    def stop(self, run: int) -> None:
        """Stop a Flower run that was left behind."""
        try:
            with closing(_client(ControlHttpClient, self.address, self.ca)) as client:
                client.StopRun(StopRunRequest(run_id=run))
        except httpx.HTTPError:
            LOG.debug("run %d had already ended", run)

    def open(self, patience: float = 60.0) -> Session:
        """Start a Flower run and take up its server task in this process."""
        bundle, _ = build_fab_from_files(_BUNDLE)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        try:
            # While this is held only our task can be waiting, so any other is a stranger's.
            with self.lock.open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                with closing(_client(ControlHttpClient, self.address, self.ca)) as control:
                    run = control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
                token = self._token(run, patience)
            return Session(self, run, token)
        except GONE as error:
            msg = f"the SuperLink at {self.address} does not answer: {error}"
            raise LinkLostError(msg) from None

    def _token(self, run: int, patience: float) -> str:
        """Acquire the task of our run; a task of any other is refused, for nobody else starts runs."""
        auth = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=_ACQUIRE)
        until = time.monotonic() + patience
        with closing(_client(RuntimeHttpClient, self.address, self.ca, auth)) as client:
            while time.monotonic() < until:
                wanted = AcquireTaskRequest(supported_task_types=list(TaskType))
                found = client.AcquireTask(wanted)
                if found.token and found.task.run_id == run:
                    return str(found.token)
                if found.token:
                    LOG.warning("refused run %d, which Consilia did not start", found.task.run_id)
                    self._refuse(str(found.token))
                    continue
                time.sleep(POLL)
        msg = f"the SuperLink at {self.address} did not start the run within {patience:.0f} s"
        raise LinkLostError(msg)

    def _refuse(self, token: str) -> None:
        with closing(_task_client(self.address, self.ca, token)) as client:
            client.PullTaskInput(PullTaskInputRequest())
            why = "refused: Consilia did not start this run"
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=why))


def _task_client(address: str, ca: bytes, token: str) -> RuntimeHttpClient:
    return _client(RuntimeHttpClient, address, ca, RuntimeTokenHttpInterceptor(token))


class Session:
    """A Flower run whose server task is this process."""

    def __init__(self, link: Link, run: int, token: str) -> None:
        self.run = run
        self._coming: dict[str, _Coming] = {}
        self.grid = HttpGrid(link.address, False, link.ca, token=token)
        self.grid._retry_invoker = None  # type: ignore[assignment]  # its own ends the process
        self._client = _task_client(link.address, link.ca, token)
        self._heart = Heart(self._client)
        given = self._client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        self.grid.set_run(run_from_proto(given.run))

    def close(self, *, done: bool) -> None:
        """Say how the run ended and let go of the SuperLink, which may itself be gone."""
        self._heart.stop()
        status = SubStatus.COMPLETED if done else SubStatus.FAILED
        try:
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
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


class Heart:
    """Tells Flower every few seconds that a task is still worked on."""

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client = client
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT):
            try:
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except GONE:
                LOG.debug("a heartbeat was not heard")

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        self._thread.join()


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
                time.sleep(_pause(time.monotonic() - began))
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


def _pause(waited: float) -> float:
    """Return how long to wait before looking again: longer, the longer nothing has come."""
    return min(1.0, max(POLL, waited / 60))


def _plain(reason: str | None) -> str:
    return " ".join((reason or "it failed").split())[:200]


# --- a site -------------------------------------------------------------------------------------


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
    auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
    worked = time.monotonic()
    held = Note(note)
    with closing(_client(RuntimeHttpClient, address, ca, auth)) as client:
        tray = _Tray(client)
        while not stopped.is_set():
            try:
                _give_back(address, ca, held)
                token = tray.take()
                if token is not None:
                    _work(address, ca, token, answer, held, tray)
                    worked = time.monotonic()
                    continue
            except GONE as error:
                LOG.debug("the SuperNode does not answer: %s", error)
                stopped.wait(1.0)
            stopped.wait(_pause(time.monotonic() - worked))


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
        wanted = AcquireTaskRequest(supported_task_types=list(TaskType))
        return str(self._client.AcquireTask(wanted).token) or None


def _work(
    address: str,
    ca: bytes,
    token: str,
    answer: Callable[[Packet], Packet],
    note: Note,
    tray: _Tray,
) -> None:
    with closing(_task_client(address, ca, token)) as client:
        heart = Heart(client)
        try:
            try:
                message = _receive(client, tray)
            except ObjectPullError:
                why = "its message never came"
                failed = PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=why)
                client.PushTaskOutput(failed)
                return
            note.write(token, message)
            leaving = Leaving.of(reply_to(message, answer))
            note.add(leaving)
            leaving.push(client)
            done = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            client.PushTaskOutput(done)
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
    given = client.PullTaskInput(PullTaskInputRequest())
    run, number = given.run.run_id, given.context.node_id
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, run, number
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


@dataclass(frozen=True)
class Leaving:
    """An answer in the parts in which Flower takes it.

    Once a SuperNode knows of an answer it waits for all its parts, for ever; so should this process be
    killed between two of them, the next one hands over the rest.
    """

    head: bytes
    tree: bytes
    parts: Mapping[str, bytes]

    @classmethod
    def of(cls, message: Message) -> Leaving:
        """Return a message in parts."""
        message.metadata.__dict__["_message_id"] = message.object_id
        head = message_to_proto(remove_content_from_message(message)).SerializeToString()
        with no_object_id_recompute():
            tree = get_object_tree(message).SerializeToString()
            parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        return cls(head, tree, parts)

    @classmethod
    def read(cls, folder: Path) -> Leaving:
        """Return what `write` wrote."""
        parts = {path.name: path.read_bytes() for path in (folder / "parts").iterdir()}
        return cls((folder / "head").read_bytes(), (folder / "tree").read_bytes(), parts)

    def write(self, folder: Path) -> None:
        """Keep it in a folder that appears whole or not at all."""
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        (part / "parts").mkdir(mode=0o700, parents=True)
        (part / "head").write_bytes(self.head)
        (part / "tree").write_bytes(self.tree)
        for name, content in self.parts.items():
            (part / "parts" / name).write_bytes(content)
        part.rename(folder)

    def push(self, client: RuntimeHttpClient) -> None:
        """Hand the SuperNode what it does not have of this answer."""
        head, tree = ProtoMessage.FromString(self.head), ObjectTree.FromString(self.tree)
        request = PushAppMessagesRequest(messages_list=[head], message_object_trees=[tree])
        told = client.PushMessages(request)
        node, run = ProtoNode(node_id=head.metadata.src_node_id), head.metadata.run_id
        push = make_push_object_fn_protobuf(client.PushObject, node, run, told.session_id)
        for name in told.objects_to_push:
            push(name, self.parts[name])


@dataclass(frozen=True)
class Note:
    """What a process has in hand, written down for the next one, should it be killed."""

    path: Path

    @property
    def reply(self) -> Path:
        """Where the answer is kept while it leaves."""
        return self.path.with_suffix(".reply")

    def write(self, token: str, message: Message) -> None:
        """Note a task that was taken up."""
        held = {name: getattr(message.metadata, name) for name in _METADATA}
        table = {"token": token, "task": TaskIdentity.task_id, "metadata": held}
        try:
            self.path.touch(mode=0o600)
            self.path.write_text(json.dumps(table), encoding="utf-8")
        except OSError as error:  # it helps only the next process
            LOG.warning("cannot note what is in hand: %s", error)

    def add(self, leaving: Leaving) -> None:
        """Note the answer that is about to leave."""
        try:
            leaving.write(self.reply)
        except OSError as error:
            LOG.warning("cannot note what leaves: %s", error)

    def read(self) -> tuple[str, int, Metadata] | None:
        """Return the token, number and message of the task that was in hand, if there was one."""
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            return held["token"], held["task"], Metadata(**held["metadata"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Forget it."""
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.reply, ignore_errors=True)


def _give_back(address: str, ca: bytes, note: Note) -> None:
    """End the task that was in hand when the last process was killed.

    An answer that had begun to leave leaves as a whole; else the coordinator is told, and asks again at
    once. Flower would notice by itself only after a minute without a heartbeat, or not at all.
    """
    held = note.read()
    if held is None:
        note.remove()
        return
    token, task, metadata = held
    TaskIdentity.task_id = task
    TaskIdentity.run_id, TaskIdentity.node_id = metadata.run_id, metadata.dst_node_id
    if note.reply.is_dir():
        leaving, status, why = Leaving.read(note.reply), SubStatus.COMPLETED, ""
    else:
        lost = make_message(metadata=metadata, content=RecordDict())
        status, why = SubStatus.FAILED, "its training process was restarted"
        error = Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=why)
        leaving = Leaving.of(Message(error, reply_to=lost))
    with closing(_task_client(address, ca, token)) as client:
        try:
            leaving.push(client)
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=why))
        except (httpx.HTTPStatusError, ObjectPushError):
            LOG.debug("the SuperNode had given the message up already")
    note.remove()
