"""What a site's process has in hand and hands over, on disk first: should it be killed, the next goes on."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from consilia.engines.flower.client import connect_to_task, end, identify

LOG = logging.getLogger("consilia")
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


def give_back(address: str, ca: bytes, note: Note) -> None:
    """End the task that was in hand when the last process was killed.

    An answer that had begun to leave leaves as a whole; else the coordinator is told, and asks again at
    once. Flower would notice by itself only after a minute without a heartbeat, or not at all.
    """
    held = note.read()
    if held is None:
        note.remove()
        return
    token, task, metadata = held
    identify(task, metadata.run_id, metadata.dst_node_id)
    if note.reply.is_dir():
        leaving, status, why = Leaving.read(note.reply), SubStatus.COMPLETED, ""
    else:
        lost = make_message(metadata=metadata, content=RecordDict())
        status, why = SubStatus.FAILED, "its training process was restarted"
        error = Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=why)
        leaving = Leaving.of(Message(error, reply_to=lost))
    with closing(connect_to_task(address, ca, token)) as client:
        try:
            leaving.push(client)
            end(client, status, why)
        except (httpx.HTTPStatusError, ObjectPushError):
            LOG.debug("the SuperNode had given the message up already")
    note.remove()
