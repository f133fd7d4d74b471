"""The optimisers of a run file, and what they remember between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from consilia.payload import PackedWeights
from consilia.training.settings import Training

#: Per parameter, what its optimiser remembers (Adam's moments and step count).
OptimizerState = Mapping[str, Mapping[str, Tensor]]


class Rule(Protocol):
    """How a step changes parameters; equal rules make the same optimiser."""

    def __call__(
        self,
        parameters: dict[str, nn.Parameter],
        state: OptimizerState | None = None,
        rate: Tensor | None = None,
    ) -> torch.optim.Optimizer:
        """Return the optimiser of some parameters; `rate` is a tensor for steps that are recorded."""

    def __hash__(self) -> int:
        """Return a number that equal rules share."""


@dataclass(frozen=True)
class Chosen:
    """The rule of a run file."""

    settings: Training

    def __call__(
        self,
        parameters: dict[str, nn.Parameter],
        state: OptimizerState | None = None,
        rate: Tensor | None = None,
    ) -> torch.optim.Optimizer:
        """Return the run file's optimiser."""
        return make_optimizer(parameters, self.settings, state, rate)

    def _key(self) -> tuple[object, ...]:
        chosen = self.settings
        return chosen.optimizer, chosen.weight_decay, chosen.betas, chosen.momentum

    def __eq__(self, other: object) -> bool:
        """Return whether the other makes the same optimiser, whatever else its settings say."""
        return isinstance(other, Chosen) and self._key() == other._key()

    def __hash__(self) -> int:
        """Return a number that equal rules share."""
        return hash(self._key())


def make_optimizer(
    parameters: dict[str, nn.Parameter],
    settings: Training,
    state: OptimizerState | None = None,
    rate: Tensor | None = None,
) -> torch.optim.Optimizer:
    """Return the optimiser of the run file, going on from a state where there is one.

    Args:
        parameters: What it trains, by name.
        settings: The run file's choice.
        state: What an earlier one remembered of each parameter.
        rate: The learning rate as a tensor, for steps that are recorded; else the run file's number.
    """
    shared: dict[str, Any] = {
        "lr": settings.learning_rate if rate is None else rate,
        "weight_decay": settings.weight_decay,
        "fused": True,
    }
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters.values(), momentum=settings.momentum, **shared)
    else:
        kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
        recorded = rate is not None and rate.is_cuda
        optimizer = kind(parameters.values(), betas=settings.betas, capturable=recorded, **shared)
        optimizer._warned_capturable_if_run_uncaptured = True  # odd batches do run eagerly
    take_over(optimizer, parameters, state or {})
    return optimizer


def take_over(
    optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], state: OptimizerState
) -> None:
    """Let an optimiser go on from a state, on copies of it."""
    for name, kept in state.items():
        if name in parameters:
            parameter = parameters[name]
            optimizer.state[parameter] = {k: _beside(parameter, v) for k, v in kept.items()}


def _beside(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """Return a copy where a parameter lies, its numbers in the parameter's order: fused steps ask for it.

    What comes from a file has forgotten that order (channels last on a GPU).
    """
    if value.shape != parameter.shape:  # a count of steps
        return value.to(parameter.device, copy=True)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def optimizer_state(
    parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, copy: bool = False
) -> OptimizerState:
    """Return what an optimiser remembers of each parameter, as plain tensors, or as copies of them."""
    found = {
        name: {k: v for k, v in optimizer.state[p].items() if isinstance(v, Tensor)}
        for name, p in parameters.items()
        if optimizer.state.get(p)
    }
    if not copy:
        return found
    held = {f"{name} {key}": value for name, kept in found.items() for key, value in kept.items()}
    copies = PackedWeights.of(held)  # all at once, as there are hundreds of small ones
    return {name: {key: copies[f"{name} {key}"] for key in kept} for name, kept in found.items()}
