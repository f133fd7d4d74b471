"""How answers cross Flower in parts: what a killed sender leaves behind keeps nobody waiting."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from consilia.engines.packet import Packet
from consilia.errors import MessageError
from tests.federation.support import flower

PACKET = Packet('{"a": 1}', bytes(range(256)) * 64, b"signature")
ASKED = Metadata(
    run_id=5,
    message_id="asked",
    src_node_id=1,
    dst_node_id=7,
    reply_to_message_id="",
    group_id="2",
    created_at=1.0,
    ttl=1e9,
    message_type="train",
)


def answer():
    return flower.reply_to(question(), lambda packet: PACKET)


def question():
    return make_message(metadata=ASKED, content=flower.to_content(PACKET))


class Killed(BaseException):
    """Stands in for `kill -9`."""


class SuperNode:
    """Keeps an answer as Flower's does: known by its head, whole when every part is there."""

    def __init__(self):
        self.heads, self.wanted, self.parts, self.status = {}, {}, {}, None
        self.dies_after = None

    def PushMessages(self, request):  # noqa: N802 - Flower's name
        (head,), (tree,) = request.messages_list, request.message_object_trees
        name = head.metadata.message_id
        self.heads[name] = head
        self.wanted[name] = (tree, [t.object_id for t in iterate_object_tree(tree)])
        missing = [part for part in self.wanted[name][1] if part not in self.parts]
        return PushAppMessagesResponse(
            message_ids=[name], objects_to_push=missing, session_id="session"
        )

    def PushObject(self, request):  # noqa: N802
        if self.dies_after is not None and len(self.parts) >= self.dies_after:
            raise Killed
        self.parts[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PushTaskOutput(self, request):  # noqa: N802
        self.status = request.sub_status

    def close(self):
        pass

    def whole(self):
        return [n for n, (_, parts) in self.wanted.items() if all(p in self.parts for p in parts)]


@pytest.fixture
def node(monkeypatch):
    found = SuperNode()
    monkeypatch.setattr(flower.leaving, "connect_to_task", lambda address, ca, token: found)
    return found


PARTS = len(flower.leaving.Leaving.of(answer()).parts)


@pytest.mark.parametrize("after", range(PARTS))
def test_an_answer_whose_sender_was_killed_between_two_parts_leaves_whole(node, tmp_path, after):
    note = flower.leaving.Note(tmp_path / "in-hand.json")
    note.write("token", question())
    leaving = flower.leaving.Leaving.of(answer())
    note.add(leaving)
    node.dies_after = after
    with pytest.raises(Killed):
        leaving.push(node)
    assert node.whole() == []
    node.dies_after = None  # the next process
    flower.leaving.give_back("x", b"", flower.leaving.Note(tmp_path / "in-hand.json"))
    (name,) = node.whole()
    assert node.status == "completed"
    sent = inflate_object_from_contents(name, dict(node.parts))
    assert flower.from_content(sent.content) == PACKET
    assert sent.metadata.reply_to_message_id == "asked"
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_was_not_answered_yet_is_given_back_as_an_error(node, tmp_path):
    note = flower.leaving.Note(tmp_path / "in-hand.json")
    note.write("token", question())
    flower.leaving.give_back("x", b"", note)
    (name,) = node.whole()
    sent = inflate_object_from_contents(name, dict(node.parts))
    assert sent.error.reason == "its training process was restarted"
    assert node.status == "failed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "x"}', json.dumps({"metadata": 1})])
def test_half_a_note_is_forgotten(node, tmp_path, text):
    (tmp_path / "in-hand.json").write_text(text)
    flower.leaving.give_back("x", b"", flower.leaving.Note(tmp_path / "in-hand.json"))
    assert node.heads == {}
    assert list(tmp_path.iterdir()) == []


def test_a_note_that_cannot_be_written_stops_nothing(tmp_path):
    note = flower.leaving.Note(tmp_path / "no such folder" / "in-hand.json")
    note.write("token", question())
    note.add(flower.leaving.Leaving.of(answer()))
    note.remove()


def test_what_cannot_be_answered_is_an_error_with_its_reason():
    def refuses(packet):
        raise MessageError("no")

    assert flower.reply_to(question(), refuses).error.reason == "no"
    empty = make_message(metadata=ASKED, content=RecordDict())
    assert "something else than a packet" in flower.reply_to(empty, refuses).error.reason


class SuperLink:
    """Hands out the parts of answers as far as they have come."""

    def __init__(self):
        self.new, self.parts, self.lost, self.received = [], {}, set(), []
        self.given = set()

    def has(self, message, parts):
        leaving = flower.leaving.Leaving.of(message)
        self.new.append(leaving)
        self.parts |= dict(list(leaving.parts.items())[:parts])
        return leaving

    def PullMessages(self, request):  # noqa: N802
        new, self.new = self.new, []
        asked = set(request.message_ids)
        assert not asked & self.given, "what was given once is unknown from then on"
        self.given |= asked if new else set()
        return PullAppMessagesResponse(
            messages_list=[ProtoMessage.FromString(one.head) for one in new],
            message_object_trees=[ObjectTree.FromString(one.tree) for one in new],
        )

    def PullObject(self, request):  # noqa: N802
        name = request.object_id
        if name in self.lost:
            return PullObjectResponse(object_found=False)
        content = self.parts.get(name)
        return PullObjectResponse(
            object_found=True, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.received.append(request.message_object_id)


@pytest.fixture
def session():
    made = flower.Session.__new__(flower.Session)
    made.run, made._coming = 5, {}
    node = ProtoNode(node_id=1)
    made.grid = SimpleNamespace(_runtime_client=SuperLink(), node=node)
    return made


def test_half_an_answer_keeps_nobody_waiting(session):
    link = session.grid._runtime_client
    held = link.has(answer(), 2)
    assert session.pull(["asked"]) == {}
    assert session.pull(["asked"]) == {}
    link.parts |= held.parts
    (message,) = session.pull(["asked"]).values()
    assert isinstance(message, Message)
    assert flower.from_content(message.content) == PACKET
    assert link.received == [message.metadata.message_id]
    assert session.pull([]) == {}


def test_half_an_answer_whose_rest_will_never_come_is_told(session):
    link = session.grid._runtime_client
    held = link.has(answer(), 2)
    assert session.pull(["asked"]) == {}
    link.lost = set(held.parts)
    assert session.pull(["asked"]) == {"asked": None}
    assert link.received == []


def test_half_an_answer_that_is_not_awaited_any_more_is_forgotten(session):
    link = session.grid._runtime_client
    held = link.has(answer(), 2)
    assert session.pull(["asked"]) == {}
    assert session.pull([]) == {}
    link.parts |= held.parts
    assert session.pull(["another"]) == {}
    assert link.received == []
