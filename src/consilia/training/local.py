"""The one local loop: every method trains through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from consilia.training.augment import POLICIES, apply, draw
from consilia.training.batch import Batch, orders
from consilia.training.seeds import seeded
from consilia.training.settings import Training
from consilia.training.site import OptimizerState, Site

Loss = Callable[[Batch], Tensor]
Correction = Callable[[str, Tensor], Tensor]
V = TypeVar("V")


@dataclass(frozen=True)
class Trained:
    """What a local training came to: the mean loss over its batches, and how much was done."""

    loss: float
    steps: int
    images: int


def train_locally(
    site: Site,
    loss: Loss | None = None,
    *,
    network: str | tuple[str, ...] = "main",
    only: Tensor | None = None,
    views: Batch | None = None,
    correct: Correction | None = None,
    after_step: Callable[[], None] | None = None,
    parameters: Iterable[str] | None = None,
    settings: Training | None = None,
    purpose: str = "batches",
) -> Trained:
    """Train a network of a site as the run file says, and report the mean loss.

    A site without any usable target does nothing, and reports no images.

    Args:
        site: Where to train; its network holds the start weights and, afterwards, the result.
        loss: What to minimise on a batch; the learner's supervised loss by default.
        network: Which of the site's networks to train; several learn together, from one loss.
        only: Indices of the images to train on; by default all that carry a usable target.
        views: All images as this round sees them, augmented beforehand; batches are cut from it.
        correct: Changes each named gradient before the step (SCAFFOLD and its kin).
        after_step: Called after each step (moving averages).
        parameters: Names of the parameters to train; the others stay fixed. Default: all.
        settings: How to train, where that is not what the run file says (other phases of a method).
        purpose: Names the random batches: a second training within a round takes another name.
    """
    settings = settings or site.training
    used = site.train.supervised() if only is None else only
    if not len(used):
        return Trained(0.0, 0, 0)
    loss = loss or site.task_loss
    names = (network,) if isinstance(network, str) else network
    modules = {name: site.bench.network(name) for name in names}
    chosen = {name: _chosen(module, parameters) for name, module in modules.items()}
    optimizer = make_optimizer(_flat(chosen), settings, _flat(site.optimizers))
    randoms = site.generator(f"{purpose} {' '.join(names)}")
    policy = POLICIES[settings.augment]
    total, steps = torch.zeros((), device=site.bench.device), 0
    for module in modules.values():
        module.train()
    with seeded(site.seed, site.name, site.round, "layers", *names):
        for positions in orders(
            len(used), settings.batch, settings.epochs, settings.steps, randoms
        ):
            images = used[positions.to(used.device)]
            if views is None:
                batch = site.train.cut(images)
                batch = apply(draw(policy, len(batch), randoms), batch)
            else:
                batch = views.take(images)
            _set_rate(optimizer, settings, site, steps)
            optimizer.zero_grad(set_to_none=True)
            value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]  # torch
            if correct is not None:
                for part in chosen.values():
                    _correct(part, correct)
            optimizer.step()
            if after_step is not None:
                after_step()
            total += value.detach()
            steps += 1
    if settings.keep_optimizer:
        for name, part in chosen.items():
            kept = site.optimizers.get(name, {})
            site.optimizers[name] = {**kept, **optimizer_state(part, optimizer)}
    return Trained(float(total) / steps, steps, len(used))


def make_optimizer(
    parameters: dict[str, nn.Parameter], settings: Training, state: OptimizerState | None = None
) -> torch.optim.Optimizer:
    """Return the optimiser of the run file, going on from a state where there is one."""
    shared: dict[str, Any] = {
        "lr": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "fused": True,
    }
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters.values(), momentum=settings.momentum, **shared)
    else:
        kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
        optimizer = kind(parameters.values(), betas=settings.betas, **shared)
    for name, kept in (state or {}).items():
        if name in parameters:
            device = parameters[name].device
            optimizer.state[parameters[name]] = {
                k: v.to(device, copy=True) for k, v in kept.items()
            }
    return optimizer


def optimizer_state(
    parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> OptimizerState:
    """Return what an optimiser remembers of each parameter, as plain tensors."""
    return {
        name: {k: v for k, v in optimizer.state[p].items() if isinstance(v, Tensor)}
        for name, p in parameters.items()
        if optimizer.state.get(p)
    }


def _flat(named: Mapping[str, Mapping[str, V]]) -> dict[str, V]:
    """Return the values of several networks in one table."""
    return {f"{net}/{name}": value for net, part in named.items() for name, value in part.items()}


def _chosen(module: nn.Module, names: Iterable[str] | None) -> dict[str, nn.Parameter]:
    every = dict(module.named_parameters())
    return every if names is None else {name: every[name] for name in names if name in every}


def _correct(parameters: dict[str, nn.Parameter], correct: Correction) -> None:
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            parameter.grad = correct(name, parameter.grad)


def _set_rate(optimizer: torch.optim.Optimizer, settings: Training, site: Site, step: int) -> None:
    if settings.schedule == "constant" or settings.steps is None:
        return
    done = ((site.round - 1) * settings.steps + step) / (site.rounds * settings.steps)
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * (1 - done) ** settings.power
