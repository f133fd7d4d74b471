"""A training step recorded as a CUDA graph, with the memory it reads and the optimiser it moves.

A graph replays kernels on fixed addresses. So batches, augmentations, rates, held tensors and the optimiser's
moments have memory that never moves, and are copied there before a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from consilia.training.batch import Batch, parts_of
from consilia.training.job import Job, Planned, backward, moved
from consilia.training.optimizers import OptimizerState, Rule

WARM_UP = 2

Step = Callable[[], None]


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
    touched = [*tensors_of(networks), *standing.tensors()]
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


def tensors_of(networks: Mapping[str, nn.Module]) -> Iterator[Tensor]:
    """Yield every parameter and buffer of networks."""
    for network in networks.values():
        yield from network.parameters()
        yield from network.buffers()
