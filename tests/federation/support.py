"""A federation in one process: real desks and the real transport, Flower's grid replaced by a table.

What goes wrong with messages is tried here; what goes wrong with processes in `test_processes.py`.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

from consilia.engines.quiet import hush
from consilia.testing import toy_sites, toy_spec

hush(Path(tempfile.mkdtemp(prefix="consilia-flower-")))

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from consilia.engines import flower
from consilia.engines.flower import FlowerTransport, Node, from_content, reply_to, to_content
from consilia.engines.inprocess import make_bench, make_start
from consilia.engines.memory import MemoryStore
from consilia.engines.rounds import Rounds
from consilia.federation import desk as desk_module
from consilia.federation.across import limit
from consilia.federation.desk import Desk
from consilia.federation.keys import new_key, public_text
from consilia.federation.study import VERBS, as_federation, for_sites
from consilia.methods import make_method
from consilia.runs.store import RunFolder

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
RUN = "0123456789abcdef0123456789abcdef"
MIXED = [{"name": "anna", "supervision": "mask"}, {"name": "bo", "supervision": "box"}]
INCOMPLETE = [
    {"name": "anna", "supervision": "mask"},
    {"name": "bo", "supervision": "mask", "complete": False},
]


def spec_for(method="fedavg", **changes):
    """Return a toy run without per-case rows, which sites do not give unasked."""
    evaluate = {"every": 1, "pictures": 0, "per_case": False, **changes.pop("evaluate", {})}
    return toy_spec(method={"name": method}, evaluate=evaluate, **changes)


class Grid:
    """Stands in for Flower's: hands each message to its site's desk when the replies are asked for."""

    def __init__(self, wire):
        self.wire = wire
        self.sent = {}
        self.count = 0

    def push_messages(self, messages):
        (message,) = messages
        self.count += 1
        name = f"message-{self.count}"
        message.metadata.__dict__["_message_id"] = name
        self.sent[name] = message
        return [name]

    def pull(self, names):
        found = {}
        for name in names:
            message = self.sent.pop(name, None)
            reply = None if message is None else self.wire.deliver(message)
            if reply is not None:
                found[name] = reply
        return found


@dataclass
class Wire:
    """Sites by node number, and what happens to messages on the way."""

    desks: dict
    offline: dict = field(default_factory=dict)
    silent: dict = field(default_factory=dict)
    tamper: object = None
    crash: object = None
    round: int = 0
    packets: list = field(default_factory=list)

    def __post_init__(self):
        self.grid = Grid(self)
        self.names = sorted(self.desks)

    def online(self):
        keys = {public_text(d.key.public_key()).encode(): n for n, d in self.desks.items()}
        return {
            key: Node(self.names.index(name) + 2, "now")
            for key, name in keys.items()
            if self.round not in self.offline.get(name, ())
        }

    def deliver(self, message):
        name = self.names[message.metadata.dst_node_id - 2]
        asked = from_content(message.content)
        told = json.loads(asked.manifest)
        self.round = told["round"]
        if self.round in self.silent.get(name, ()) and told["verb"] == "train":
            return None
        if self.crash is not None and self.crash(name, told):
            return Message(Error(code=8, reason="ClientApp stopped responding."), reply_to=message)
        answered = reply_to(message, self.desks[name].answer)
        if answered.has_error():
            return answered
        reply = from_content(answered.content)
        if self.tamper is not None:
            reply = self.tamper(name, told, asked, reply) or reply
        self.packets.append((name, told, asked, reply))
        return Message(to_content(reply), reply_to=message)


class Federation:
    """A coordinator's run and its sites, in this process."""

    def __init__(self, spec, path, monkeypatch, allow=VERBS):
        self.spec, self.path = as_federation(spec), path
        data = toy_sites(spec)
        monkeypatch.setattr(desk_module, "load_own", lambda spec, f, name, root: data[name])
        monkeypatch.setattr(flower.client, "POLL", 0.001)
        monkeypatch.setattr(flower.transport, "LOOK", 0.001)
        self.key = new_key()
        self.desks = {}
        for name in spec.federation.sites:
            folder = path / name
            folder.mkdir(parents=True)
            self.desks[name] = self.desk(name, folder, allow)
        self.wire = Wire(self.desks)
        self.wires = [self.wire]

    def desk(self, name, folder, allow=VERBS, key=None):
        own = self.spec.federation.model_copy(update={"site": (self.spec.federation[name],)})
        return Desk(
            name,
            folder,
            key=key or new_key(),
            coordinator=self.key.public_key(),
            federation=own,
            allow=allow,
        )

    def restart(self, name):
        """Start a site's training process anew: what it knew is what its disk holds."""
        old = self.desks[name]
        self.desks[name] = self.desk(name, old.folder, old.allow, old.key)

    def transport(self, **options):
        parts = {"grid": self.wire.grid, "pull": self.wire.grid.pull, "online": self.wire.online}
        session = SimpleNamespace(**parts)
        keys = {
            name: (d.key.public_key(), public_text(d.key.public_key()).encode())
            for name, d in self.desks.items()
        }
        head = {"run": RUN, "study": for_sites(self.spec)}
        times = {"deadline": 0.3, "patience": 0.05, **options}
        bench = make_bench(self.spec, self.method, self.spec.federation)
        return FlowerTransport(session, self.key, keys, head, limit(bench.layout), **times), bench

    @property
    def method(self):
        return make_method(self.spec.method.name, self.spec.method.settings)

    def run(self, name="run", **options):
        transport, bench = self.transport(**options)
        folder = RunFolder.create(self.path / name, self.spec)
        rounds = Rounds(
            method=self.method,
            spec=self.spec,
            federation=self.spec.federation,
            start=make_start(self.spec, self.spec.federation, bench),
            layout=bench.layout,
            transport=transport,
            memories=MemoryStore(self.path / name / ".memories", 1 << 20),
            folder=folder,
        )
        return rounds.run()


def lines(path, name="rounds.jsonl"):
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


def events(path, round_):
    return [(e["site"], e["event"]) for e in lines(path)[round_ - 1]["events"]]


def final_bytes(path, rounds):
    return (path / "checkpoints" / f"round-{rounds:06d}" / "server.safetensors").read_bytes()


def without_times(value):
    return {key: held for key, held in value.items() if key != "seconds"}
