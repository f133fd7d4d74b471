"""The coordinator's own SuperLink: who may connect to it, and how a Flower run begins there."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from consilia.engines.flower.client import (
    GONE,
    POLL,
    LinkLostError,
    acquire,
    connect,
    connect_for_tasks,
    connect_to_task,
    end,
)
from consilia.engines.flower.session import Session

LOG = logging.getLogger("consilia")
#: The application of our runs: Flower asks for one, and nobody opens it.
BUNDLE = {
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
        with closing(connect(ControlHttpClient, self.address, self.ca)) as client:
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def nodes(self) -> dict[bytes, str]:
        """Return the state of every registered SuperNode by its public key."""
        with closing(connect(ControlHttpClient, self.address, self.ca)) as client:
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
            with closing(connect(ControlHttpClient, self.address, self.ca)) as client:
                client.StopRun(StopRunRequest(run_id=run))
        except httpx.HTTPError:
            LOG.debug("run %d had already ended", run)

    def open(self, patience: float = 60.0) -> Session:
        """Start a Flower run and take up its server task in this process."""
        bundle, _ = build_fab_from_files(BUNDLE)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        try:
            # While this is held only our task can be waiting, so any other is a stranger's.
            with self.lock.open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                with closing(connect(ControlHttpClient, self.address, self.ca)) as control:
                    run = control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
                token = self._token(run, patience)
            return Session(self.address, self.ca, run, token)
        except GONE as error:
            msg = f"the SuperLink at {self.address} does not answer: {error}"
            raise LinkLostError(msg) from None

    def _token(self, run: int, patience: float) -> str:
        """Acquire the task of our run; a task of any other is refused, for nobody else starts runs."""
        until = time.monotonic() + patience
        with closing(connect_for_tasks(self.address, self.ca, self.secret)) as client:
            while time.monotonic() < until:
                found = acquire(client)
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
        with closing(connect_to_task(self.address, self.ca, token)) as client:
            client.PullTaskInput(PullTaskInputRequest())
            why = "refused: Consilia did not start this run"
            end(client, SubStatus.FAILED, why)
