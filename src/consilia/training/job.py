"""One local training, ready to run: which images in which step, how they move, and what is minimised."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor, nn

from consilia.training.augment import Move, apply
from consilia.training.batch import Batch, ResidentCases
from consilia.training.optimizers import OptimizerState, Rule


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
        pause: Lets other sites have the device while this one's steps wait there.
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
    pause: Callable[[], None]

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
