"""The captured step: one training step recorded as a CUDA graph and replayed for all sites.

A small network's step is bound by the launching of its kernels, not by arithmetic. So on a GPU the step
is recorded once, on memory that never moves (`Recorded`), and replayed: batches, augmentations, rates,
held tensors and the optimiser's moments are copied into that memory first. What cannot be recorded, or
comes too seldom to pay, runs eagerly on the same optimiser; the eager loop is the reference.
"""

from __future__ import annotations

import dis
import inspect
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from consilia.training.augment import Move, apply
from consilia.training.batch import Batch, ResidentCases, parts_of
from consilia.training.optimizers import OptimizerState, Rule

LOG = logging.getLogger("consilia")

#: After so many steps of one kind, recording costs less than it saves.
PAYS = 8
#: The same for a loss that is not recognised again, and so is recorded anew in each call.
PAYS_ONCE = 24
#: The most recorded steps that are kept; the least recently used are dropped.
KEPT = 64
#: Names whose use in a plain loss says that it needs the host, or changes something there.
HOST = frozenset({"append", "cpu", "extend", "generator", "item", "numpy", "tolist"})
WARM_UP = 2

Step = Callable[[], None]


@dataclass(frozen=True)
class Planned:
    """One step to come: which images of the site, and how they move."""

    images: Tensor
    move: Move | None

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Job:
    """One local training, ready to run.

    Attributes:
        loss: Returns the loss of a batch, given the tensors of `held` and of `rows` by name.
        key: Equal for losses that are the same function.
        lasting: Whether it stays the same function in later calls, with other `held` and `rows`; a
            plain closure does not, for what it closes over is its own.
        source: Where batches are cut: a site's images, or views of them made beforehand.
        rates: The learning rate of each step.
        networks: Every network of the workbench: a loss may read those that do not learn.
        arithmetic: Returns the context in which networks and losses compute.
    """

    loss: Callable[[Batch, Mapping[str, Tensor]], Tensor]
    key: Hashable
    lasting: bool
    held: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]
    source: ResidentCases | Batch
    plan: list[Planned]
    rates: list[float]
    parameters: dict[str, nn.Parameter]
    rule: Rule
    state: OptimizerState
    networks: Mapping[str, nn.Module]
    arithmetic: Callable[[], AbstractContextManager[object]]

    def cut(self, planned: Planned) -> Batch:
        """Return the batch of a step."""
        return moved(planned, self.source.take(planned.images))

    def value(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        rows = {name: value[batch.index] for name, value in self.rows.items()}
        with self.arithmetic():
            return self.loss(batch, {**self.held, **rows})


def moved(planned: Planned, taken: ResidentCases | Batch) -> Batch:
    """Return images as a batch, opened and moved as the step says."""
    batch = taken.opened(planned.images) if isinstance(taken, ResidentCases) else taken
    return batch if planned.move is None else apply(planned.move, batch)


def backward(value: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
    """Find the gradients of these parameters, and of no others."""
    learning = [parameter for parameter in parameters.values() if parameter.requires_grad]
    value.backward(inputs=learning)  # type: ignore[no-untyped-call]  # torch


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
        for planned, rate in zip(job.plan, job.rates, strict=True):
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
        if (self._seen[kind] < PAYS) if job.lasting else (count < PAYS_ONCE):
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
        if not self._refused:
            text = str(error).strip().partition("\n")[0]
            LOG.warning("a training step runs eagerly, for it cannot be captured: %s", text)
        LOG.debug("not captured", exc_info=error)
        self._refused.add(kind)
        if isinstance(error, BrokenRecordingError):
            self._recorded.clear()


class StandingOptimizer:
    """An optimiser whose moments never move, so that recorded steps of all sites share it."""

    def __init__(self, parameters: dict[str, nn.Parameter], rule: Rule) -> None:
        device = next(iter(parameters.values())).device
        self.parameters = parameters
        self.total = torch.zeros((), device=device)
        self.rate = torch.zeros((), device=device)
        self._rate: float | None = None
        self.optimizer = rule(parameters, rate=self.rate)
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # at rate 0: makes the moments, moves nothing
        self.optimizer.zero_grad(set_to_none=True)

    def begin(self, state: OptimizerState) -> None:
        """Take over the moments a site has kept, or none."""
        goals, kept, others = [], [], [self.total]
        for name, parameter in self.parameters.items():
            before = state.get(name, {})
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor) and key in before:
                    goals.append(value)
                    kept.append(before[key])
                elif isinstance(value, Tensor):
                    others.append(value)
        # All at once: one by one, hundreds of small tensors cost more than a step.
        torch._foreach_zero_(others)
        if goals:
            torch._foreach_copy_(goals, kept)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        if rate != self._rate:
            self.rate.fill_(rate)
            self._rate = rate

    def learn(self, value: Tensor) -> None:
        """Make one step down a loss, and add the loss to the total."""
        backward(value, self.parameters)
        self.optimizer.step()
        self.total += value.detach()

    def tensors(self) -> Iterator[Tensor]:
        """Yield what a step changes, besides the networks."""
        yield self.total
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


class Recorded:
    """One recorded step, with the memory it reads: a batch, how it moves, held tensors, rows."""

    def __init__(
        self,
        job: Job,
        standing: StandingOptimizer,
        planned: Planned,
        record: Callable[[Step], Step],
    ) -> None:
        def batch_of(value: Tensor) -> Tensor:
            return value.new_empty((len(planned), *value.shape[1:]))

        self._parts = {name: batch_of(part) for name, part in parts_of(job.source).items()}
        self._rows = {name: batch_of(value) for name, value in job.rows.items()}
        self._held = {name: value.clone() for name, value in job.held.items()}
        self._planned = Planned(
            planned.images.clone(),
            None if planned.move is None else planned.move.changed(torch.clone),
        )
        # The step keeps no site's images alive: only its own memory, of one batch.
        self._taken = (
            job.source.filled(self._planned.images, self._parts)
            if isinstance(job.source, Batch)
            else job.source.filled(self._parts)
        )
        self._loss, self._arithmetic, self._standing = job.loss, job.arithmetic, standing
        self._learning = [p for network in job.networks.values() for p in network.parameters()]
        self._gradients: list[Tensor] = []
        self._fill(job, planned)
        self._replay = record(self._step)
        for parameter in self._learning:
            parameter.grad = None

    def begin(self, job: Job) -> None:
        """Take over the tensors that the loss holds in this call."""
        for name, value in job.held.items():
            self._held[name].copy_(value)

    def run(self, job: Job, planned: Planned) -> None:
        """Make the planned step."""
        self._fill(job, planned)
        self._replay()

    def _fill(self, job: Job, planned: Planned) -> None:
        for name, part in parts_of(job.source).items():
            torch.index_select(part, 0, planned.images, out=self._parts[name])
        index = planned.images
        if isinstance(job.source, Batch):
            index = job.source.index[index]
        self._planned.images.copy_(index)
        for name, value in job.rows.items():
            torch.index_select(value, 0, index, out=self._rows[name])
        if self._planned.move is not None and planned.move is not None:
            self._planned.move.fill(planned.move)

    def _step(self) -> None:
        for parameter in self._learning:  # the backward pass makes them anew, in the graph's memory
            parameter.grad = None
        batch = moved(self._planned, self._taken)
        with self._arithmetic():
            value = self._loss(batch, {**self._held, **self._rows})
        self._standing.learn(value)
        self._gradients = [p.grad for p in self._learning if p.grad is not None]


class BrokenRecordingError(RuntimeError):
    """A recording failed half-way; what was recorded before can no longer be trusted."""


class CudaRecorder:
    """Warms a step up and records it as a CUDA graph; all graphs share one pool of memory."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._pool: Any = None

    def __call__(self, step: Step) -> Step:
        """Return what replays the step; nothing is run for good."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch
            self._pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.current_stream()
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            step()  # what is made only once may wait: choosing kernels, compiling
            with never_waiting():
                for _ in range(WARM_UP):
                    step()
        before.wait_stream(self._stream)
        numbers = torch.cuda.default_generators[torch.cuda.current_device()]
        spare = numbers.clone_state()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                step()
        except Exception as error:
            # PyTorch leaves its generator waiting for the end of a capture that will not come.
            torch.cuda.set_stream(before)
            numbers.graphsafe_set_state(spare)
            self._stream = self._pool = None
            raise BrokenRecordingError(str(error)) from error
        return graph.replay


@contextmanager
def never_waiting() -> Iterator[None]:
    """Let everything fail that makes the host wait for the GPU: it could not be recorded."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def compiled(networks: Mapping[str, nn.Module]) -> Iterator[None]:
    """Let the parts of networks run compiled: small operations are fused, random numbers stay as they are.

    Only here: what a recording has taken over stays compiled, and other shapes never compile anew.
    """
    parts = [part for network in networks.values() for part in network.children()]
    for part in parts:
        part.forward = torch.compile(part.forward, dynamic=False, options={"fallback_random": True})
    try:
        yield
    finally:
        for part in parts:
            del part.forward  # the class's own appears again


@contextmanager
def unchanged(networks: Mapping[str, nn.Module], standing: StandingOptimizer) -> Iterator[None]:
    """Undo what a block does to networks, optimiser and random numbers: a warm-up leaves no trace."""
    touched = [*_tensors_of(networks), *standing.tensors()]
    copies = [tensor.detach().clone() for tensor in touched]
    cuda = standing.total.is_cuda
    numbers = torch.random.get_rng_state(), torch.cuda.get_rng_state() if cuda else None
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(touched, copies, strict=True):
                tensor.copy_(copy)
        torch.random.set_rng_state(numbers[0])
        if numbers[1] is not None:
            torch.cuda.set_rng_state(numbers[1])


def identity(function: Callable[..., Any]) -> Hashable | None:
    """Return what two equal pure functions have in common, or `None` where one cannot say.

    Methods of equal frozen objects are equal, partials of them by their arguments, and functions
    that close over nothing by their code.
    """
    key: Hashable
    if isinstance(function, partial):
        inner = identity(function.func)
        if inner is None:
            return None
        key = (inner, function.args, tuple(sorted(function.keywords.items())))
    elif inspect.ismethod(function):
        key = (function.__func__, function.__self__)
    elif inspect.isfunction(function) and not function.__closure__:
        key = (function.__code__, function.__defaults__)
    else:
        return None
    try:
        hash(key)
    except TypeError:
        return None
    return key


def needs_host(loss: Callable[..., Any]) -> bool:
    """Return whether a plain loss visibly reads from the GPU, draws there or changes what it closes over.

    A warm-up runs its step and takes back what that did to networks, but not to anything else.
    """
    code = getattr(loss, "__code__", None)
    if code is None:
        return True
    assigns = ("STORE_DEREF", "STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR")
    held = inspect.getclosurevars(loss).nonlocals.values()
    return (
        bool(HOST & set(code.co_names))
        or any(each.opname in assigns for each in dis.get_instructions(code))
        or any(isinstance(value, torch.Generator) for value in held)
    )


def _tensors_of(networks: Mapping[str, nn.Module]) -> Iterator[Tensor]:
    for network in networks.values():
        yield from network.parameters()
        yield from network.buffers()


def _memory_of(networks: Mapping[str, nn.Module]) -> Hashable:
    """Return where the networks' tensors lie, which of them learn, and who trains."""
    return (
        tuple((tensor.data_ptr(), tensor.requires_grad) for tensor in _tensors_of(networks)),
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
