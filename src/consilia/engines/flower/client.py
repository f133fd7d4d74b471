"""How a process of ours calls a SuperLink or a SuperNode, and works on a task it took up there."""

from __future__ import annotations

import logging
import threading
from typing import Any, TypeVar

import httpx
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullTaskInputRequest,
    PullTaskInputResponse,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from consilia.errors import RunError

LOG = logging.getLogger("consilia")
#: Seconds before looking again for what may come at any moment.
POLL = 0.2
#: Seconds between two signs of life.
HEARTBEAT = 10.0
#: What Flower and its HTTP client raise where the other end is gone or does not know us any more.
GONE = (httpx.HTTPError, RunNotRunningException, ConnectionError)
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
C = TypeVar("C", RuntimeHttpClient, ControlHttpClient)


class LinkLostError(RunError):
    """The SuperLink is gone, or has forgotten this run; a new Flower run goes on."""


def pause(waited: float) -> float:
    """Return how long to wait before looking again: longer, the longer nothing has come."""
    return min(1.0, max(POLL, waited / 60))


# --- clients ------------------------------------------------------------------------------------


def connect(kind: type[C], address: str, ca: bytes, *interceptors: Any) -> C:
    """Return a client of one of Flower's APIs, over TLS."""
    version = RuntimeVersionHttpInterceptor(component_name="consilia")
    return kind.from_server_address(address, False, ca, [version, *interceptors])


def connect_for_tasks(address: str, ca: bytes, secret: bytes) -> RuntimeHttpClient:
    """Return a client that may take up tasks, since it knows the secret."""
    auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
    return connect(RuntimeHttpClient, address, ca, auth)


def connect_to_task(address: str, ca: bytes, token: str) -> RuntimeHttpClient:
    """Return a client that may work on the task with this token."""
    return connect(RuntimeHttpClient, address, ca, RuntimeTokenHttpInterceptor(token))


# --- tasks --------------------------------------------------------------------------------------


def acquire(client: RuntimeHttpClient) -> AcquireTaskResponse:
    """Take up the oldest task that waits; without a token in the answer there is none."""
    return client.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))


def begin(client: RuntimeHttpClient) -> PullTaskInputResponse:
    """Return what a task is given, and work on it from here on."""
    given = client.PullTaskInput(PullTaskInputRequest())
    identify(given.task_id, given.run.run_id, given.context.node_id)
    return given


def identify(task: int, run: int, node: int) -> None:
    """Name the task of this process, which Flower's own functions look up."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


def end(client: RuntimeHttpClient, status: str, why: str = "") -> None:
    """Say how a task ended."""
    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=why))


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
