"""Several sites at a time on one GPU, in lanes that take turns.

A small network leaves most of a GPU idle, and while one site's weights are checked and packed the card
would wait. So each lane has a network, a stream and random numbers of its own, and a thread in which its
sites run. Only one thread runs at any moment: it hands over where it would wait for the card
(`Workbench.pause`). So nothing needs a lock, and results do not depend on how turns fall.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from consilia.engines.site import SiteWorker
from consilia.payload import Record


@dataclass(frozen=True)
class Lanes:
    """Hands each record to its site's worker; as many sites are under way as there are lanes.

    Attributes:
        lanes: The lane of each site: the one whose workbench its worker has.
    """

    workers: Mapping[str, SiteWorker]
    lanes: Mapping[str, Lane]

    def exchange(
        self, records: Iterable[Record], deadline: float | None = None
    ) -> Iterator[Record]:
        """Yield each site's reply, in the order of the records."""
        under_way: deque[Lane] = deque()
        for record in records:
            lane = self.lanes[record.site]
            while lane in under_way:
                yield _finished(under_way)
            lane.begin(partial(self.workers[record.site].handle, record))
            under_way.append(lane)
        while under_way:
            yield _finished(under_way)


def _finished(under_way: deque[Lane]) -> Record:
    """Let all lanes take turns until the first has ended; return its reply."""
    while not under_way[0].ended:
        for lane in under_way:
            if not lane.ended:
                lane.go_on()
    return under_way.popleft().result()


@dataclass
class RandomState:
    """The state of PyTorch's global random numbers, of the CPU and of one GPU, put aside."""

    device: torch.device
    cpu: torch.Tensor = field(init=False)
    gpu: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.cpu = torch.get_rng_state()
        if self.device.type == "cuda":
            # A state of its own: steps recorded in a lane read this lane's numbers ever after.
            self.gpu = self._generator.clone_state()

    @property
    def _generator(self) -> Any:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch
        return torch.cuda.default_generators[torch.cuda.current_device()]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Put this state in the place of the present one for a block, and keep how it ends."""
        cpu, gpu = torch.get_rng_state(), None
        torch.set_rng_state(self.cpu)
        if self.device.type == "cuda":
            gpu = self._generator.graphsafe_get_state()
            self._generator.graphsafe_set_state(self.gpu)
        try:
            yield
        finally:
            self.cpu = torch.get_rng_state()
            torch.set_rng_state(cpu)
            if gpu is not None:
                self.gpu = self._generator.graphsafe_get_state()
                self._generator.graphsafe_set_state(gpu)


class Abandoned(BaseException):
    """Ends a task whose run has ended before it; no `except Exception` may take it for a site's failure."""


class Lane:
    """A thread that runs one task at a time, in turns with whoever started it."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch
        self._numbers = RandomState(device)
        self._task: Callable[[], Record] | None = None
        self._reply: Record | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, name="lane", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the task has come to its end."""
        return self._task is None

    def begin(self, task: Callable[[], Record]) -> None:
        """Start a task and run it to its first pause."""
        self._task = task
        self.go_on()

    def go_on(self) -> None:
        """Let the task run to its next pause, or to its end."""
        with self._numbers.in_force():
            self._ours.release()
            self._theirs.acquire()

    def result(self) -> Record:
        """Return what the task has returned, or raise what it has raised."""
        reply, error = self._reply, self._error
        self._reply = self._error = None
        if error is not None:
            raise error
        assert reply is not None, "a task that has ended has a reply"
        return reply

    def pause(self) -> None:
        """Hand over, within a task, until it is this lane's turn again; elsewhere do nothing."""
        if threading.current_thread() is self._thread:
            self._theirs.release()
            self._ours.acquire()
            if self._closing:
                raise Abandoned

    def close(self) -> None:
        """End the thread, and a task that was left in the middle."""
        self._closing = True
        self._ours.release()
        self._thread.join()

    def _work(self) -> None:
        with torch.cuda.stream(self._stream):
            while True:
                self._ours.acquire()
                if self._closing:
                    return
                assert self._task is not None, "a lane has its turn only with a task"
                try:
                    self._reply = self._task()
                except Abandoned:
                    return
                except BaseException as error:
                    self._error = error  # raised again where the result is asked for
                if self._stream is not None:
                    self._stream.synchronize()  # others read what it made, on streams of their own
                self._task = None
                self._theirs.release()
