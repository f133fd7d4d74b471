"""The captured step: one training step recorded as a CUDA graph and replayed for all sites.

A small network's step is bound by the launching of its kernels, not by arithmetic. So on a GPU the step
is recorded once, on memory that never moves (`Recorded`), and replayed: batches, augmentations, rates,
held tensors and the optimiser's moments are copied into that memory first. What cannot be recorded, or
comes too seldom to pay, runs eagerly on the same optimiser; the eager loop is the reference.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor, nn

from consilia.training.batch import ResidentCases, parts_of
from consilia.training.job import Job, Planned
from consilia.training.recording import (
    BrokenRecordingError,
    CudaRecorder,
    Recorded,
    StandingOptimizer,
    Step,
    compiled,
    tensors_of,
    unchanged,
)

LOG = logging.getLogger("consilia")

#: After so many steps of one kind, recording costs less than it saves.
PAYS = 8
#: The same for a loss that is not recognised again, and so is recorded anew in each call.
PAYS_ONCE = 24
TOO_FEW = f"the loss is recorded anew in each call, and fewer than {PAYS_ONCE} batches of a size do not pay"
#: The most recorded steps that are kept; the least recently used are dropped.
KEPT = 64
#: So many steps are handed to the device before other sites have their turn.
QUEUED = 16


class Captures:
    """The recorded steps of a workbench, and the optimisers they act on.

    Attributes:
        record: Records a step and returns what replays it; tests put a plain function here.
        compile: Whether networks are compiled for the recorded steps.
    """

    def __init__(
        self, record: Callable[[Step], Step] | None = None, compile_: bool = False
    ) -> None:
        self.record = CudaRecorder() if record is None else record
        self.compile = compile_
        self._optimizers: OrderedDict[Hashable, StandingOptimizer] = OrderedDict()
        self._recorded: OrderedDict[Hashable, Recorded] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._refused: set[Hashable] = set()
        self._told: set[str] = set()

    def train(self, job: Job) -> tuple[Tensor, torch.optim.Optimizer]:
        """Run a job; return the sum of its losses, on the device, and the optimiser at its end."""
        where = _memory_of(job.networks)
        standing = self._standing(job, where)
        standing.begin(job.state)
        counts = Counter(map(len, job.plan))
        of_size: dict[int, Recorded | None] = {}
        for step, (planned, rate) in enumerate(zip(job.plan, job.rates, strict=True)):
            if step % QUEUED == QUEUED - 1:
                job.pause()
            standing.set_rate(rate)
            size = len(planned)
            if size not in of_size:
                of_size[size] = self._find(job, standing, planned, counts[size], where)
            recorded = of_size[size]
            if recorded is None:
                standing.optimizer.zero_grad(set_to_none=True)
                standing.learn(job.value(job.cut(planned)))
            else:
                recorded.run(job, planned)
        return standing.total, standing.optimizer

    def forget(self) -> None:
        """Let recorded steps go, and the memory of theirs; they hold the workbench that holds them."""
        self._recorded.clear()
        self._optimizers.clear()

    def tell_eager(self, why: str) -> None:
        """Say once for each reason that steps which could have been recorded run eagerly."""
        if why not in self._told:
            self._told.add(why)
            LOG.warning("training steps run eagerly, not captured: %s", why)

    def _standing(self, job: Job, where: Hashable) -> StandingOptimizer:
        key = (where, tuple(job.parameters), job.rule)
        if key not in self._optimizers:
            self._optimizers[key] = StandingOptimizer(job.parameters, job.rule)
        self._optimizers.move_to_end(key)
        while len(self._optimizers) > KEPT:
            self._optimizers.popitem(last=False)
        return self._optimizers[key]

    def _find(
        self, job: Job, standing: StandingOptimizer, planned: Planned, count: int, where: Hashable
    ) -> Recorded | None:
        """Return the recorded step of this kind, recording it where that pays; `None`: run eagerly."""
        kind = (where, id(standing), job.key, _shapes(job, planned))
        if kind in self._refused:
            return None
        if kind in self._recorded:
            self._recorded.move_to_end(kind)
            self._recorded[kind].begin(job)
            return self._recorded[kind]
        self._seen[kind] += count
        if job.lasting and self._seen[kind] < PAYS:
            return None  # for now: the next call goes on counting
        if not job.lasting and count < PAYS_ONCE:
            self.tell_eager(TOO_FEW)
            return None
        recorded = self._recorded_compiled(job, standing, planned) if self.compile else None
        try:
            if recorded is None:
                with unchanged(job.networks, standing):
                    recorded = Recorded(job, standing, planned, self.record)
        except Exception as error:  # whatever cannot be recorded still trains, eagerly
            self._refuse(kind, error)
            return None
        if job.lasting:
            self._recorded[kind] = recorded
            while len(self._recorded) > KEPT:
                self._recorded.popitem(last=False)
        return recorded

    def _recorded_compiled(
        self, job: Job, standing: StandingOptimizer, planned: Planned
    ) -> Recorded | None:
        """Return the step with compiled networks; `None`, from now on, where that fails."""
        try:
            with unchanged(job.networks, standing), compiled(job.networks):
                return Recorded(job, standing, planned, self.record)
        except Exception as error:  # without a compiler one can still record
            LOG.warning("networks run uncompiled: %s", str(error).strip().partition("\n")[0])
            LOG.debug("not compiled", exc_info=error)
            self.compile = False
            if isinstance(error, BrokenRecordingError):
                self._recorded.clear()
            return None

    def _refuse(self, kind: Hashable, error: Exception) -> None:
        text = str(error).strip().partition("\n")[0]
        if text not in self._told:
            self._told.add(text)
            LOG.warning("a training step runs eagerly, for it cannot be captured: %s", text)
        LOG.debug("not captured", exc_info=error)
        self._refused.add(kind)
        if isinstance(error, BrokenRecordingError):
            self._recorded.clear()


def _memory_of(networks: Mapping[str, nn.Module]) -> Hashable:
    """Return where the networks' tensors lie, which of them learn, and who trains."""
    return (
        tuple((tensor.data_ptr(), tensor.requires_grad) for tensor in tensors_of(networks)),
        tuple((name, network.training) for name, network in networks.items()),
    )


def _shapes(job: Job, planned: Planned) -> Hashable:
    """Return everything about the data that a recorded step takes for granted."""

    def rows(named: Mapping[str, Tensor], first: int) -> Hashable:
        return tuple((name, part.shape[first:], part.dtype) for name, part in named.items())

    source = job.source
    exclusive = source.exclusive if isinstance(source, ResidentCases) else None
    return (
        len(planned),
        (type(source), source.labels, exclusive, rows(parts_of(source), 1)),
        None if planned.move is None else planned.move.kinds(),
        (rows(job.held, 0), rows(job.rows, 1)),
    )
