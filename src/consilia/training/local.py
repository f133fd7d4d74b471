"""The one local loop: every method trains through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from consilia.training.augment import Move, draw, policy_of
from consilia.training.batch import Batch, orders
from consilia.training.capture import Captures
from consilia.training.identity import identity, needs_host
from consilia.training.job import Job, Planned, backward
from consilia.training.optimizers import Chosen, OptimizerState, Rule, optimizer_state
from consilia.training.seeds import seeded
from consilia.training.settings import Training
from consilia.training.site import Objective, Site, Workbench

Loss = Callable[[Batch], Tensor]
Correction = Callable[[str, Tensor], Tensor]
Step = Callable[[Batch, torch.optim.Optimizer], Tensor]
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
    step: Step | None = None,
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
        step: Makes the whole update with the optimiser and returns the loss, in place of `loss` and
            `correct` (FedPSL's two steps per batch).
        parameters: Names of the parameters to train; the others stay fixed. Default: all.
        settings: How to train, where that is not what the run file says (other phases of a method).
        purpose: Names the random batches: a second training within a round takes another name.
    """
    settings = settings or site.training
    used = site.train.supervised() if only is None else only.to(site.bench.device)
    if not len(used):
        return Trained(0.0, 0, 0)
    names = (network,) if isinstance(network, str) else network
    modules = {name: site.bench.network(name) for name in names}
    chosen = {name: _chosen(module, parameters) for name, module in modules.items()}
    randoms = site.generator(f"{purpose} {' '.join(names)}")
    plan = draw_plan(used, settings, randoms, moving=views is None)
    rates = [rate_at(settings, site, step, len(plan)) for step in range(len(plan))]
    state = _flat(site.optimizers)
    job = job_of(site, loss, plan, rates, _flat(chosen), Chosen(settings), state, views)
    for module in modules.values():
        module.train()
    hooks = Hooks(correct, after_step, step)
    captures = _captures(site, loss, hooks)
    with seeded(site.seed, site.name, site.round, "layers", *names):
        total, optimizer = _train_eagerly(job, hooks) if captures is None else captures.train(job)
    if settings.keep_optimizer:
        for name, module_parameters in chosen.items():
            kept = site.optimizers.get(name, {})
            new = optimizer_state(module_parameters, optimizer, copy=captures is not None)
            site.optimizers[name] = {**kept, **new}
    site.bench.pause()
    return Trained(float(total) / len(plan), len(plan), len(used))


@dataclass(frozen=True)
class Hooks:
    """What a method does at each step besides a loss; with any of these, steps run eagerly."""

    correct: Correction | None = None
    after_step: Callable[[], None] | None = None
    step: Step | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return not (self.correct is None and self.after_step is None and self.step is None)


def train(site: Site, loss: Loss | None, job: Job) -> tuple[Tensor, torch.optim.Optimizer]:
    """Run a job, recorded where that can be; return the sum of its losses and the optimiser."""
    captures = _captures(site, loss, Hooks())
    return _train_eagerly(job, Hooks()) if captures is None else captures.train(job)


def _captures(site: Site, loss: Loss | None, hooks: Hooks) -> Captures | None:
    """Return the recorded steps, or `None` where these run eagerly; a GPU run is told once why."""
    captures = site.bench.captures
    if captures is None:
        return None
    if hooks.any:
        captures.tell_eager("the method acts on every step")
    elif _unfit(loss):
        captures.tell_eager("the method's loss needs the host")
    else:
        return captures
    return None


def draw_plan(
    used: Tensor, settings: Training, randoms: torch.Generator, *, moving: bool = True
) -> list[Planned]:
    """Draw every batch of a local training and how its images move, and send all to the device at once."""
    policy = policy_of(settings)
    orderly = orders(len(used), settings.batch, settings.epochs, settings.steps, randoms)
    positions, moves = [], []
    for part in orderly:
        positions.append(part)
        if moving:
            moves.append(draw(policy, len(part), randoms))
    sizes = [len(part) for part in positions]
    images = torch.split(used[_sent(torch.cat(positions), used.device)], sizes)
    if not moving:
        return [Planned(part, None) for part in images]
    move = Move.joined(moves).changed(lambda part: _sent(part, used.device))
    return [Planned(*each) for each in zip(images, move.split(sizes), strict=True)]


def _sent(drawn: Tensor, device: torch.device) -> Tensor:
    return drawn.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else drawn


def _task(bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
    return bench.task_loss(batch, held)


def _unfit(loss: Loss | None) -> bool:
    """Return whether a loss visibly cannot be recorded; objectives promise that they can."""
    return loss is not None and not isinstance(loss, Objective) and needs_host(loss)


def job_of(
    site: Site,
    loss: Loss | None,
    plan: list[Planned],
    rates: list[float],
    parameters: dict[str, nn.Parameter],
    rule: Rule,
    state: OptimizerState,
    views: Batch | None = None,
) -> Job:
    """Return the training of a site with all that it needs; the supervised loss where none is given."""
    loss = loss or site.objective(_task)
    objective = loss if isinstance(loss, Objective) else Objective(site.bench, _Plain(loss))
    key = identity(objective.function)
    return Job(
        loss=partial(objective.function, site.bench),
        key=getattr(loss, "__code__", None) if key is None else key,
        lasting=key is not None,
        held=objective.held,
        rows=objective.rows,
        source=site.train if views is None else views,
        plan=plan,
        rates=rates,
        parameters=parameters,
        rule=rule,
        state=state,
        networks=site.bench.networks,
        arithmetic=site.bench.arithmetic,
        pause=site.bench.pause,
    )


@dataclass(frozen=True, eq=False)
class _Plain:
    """A plain loss as an objective's function; it holds whatever it closes over."""

    loss: Loss

    def __call__(self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor]) -> Tensor:
        return self.loss(batch)


def _train_eagerly(job: Job, hooks: Hooks) -> tuple[Tensor, torch.optim.Optimizer]:
    """Train one batch after another, as PyTorch is commonly used: the reference."""
    optimizer = job.rule(job.parameters, job.state)
    total = torch.zeros((), device=job.source.image.device)
    for planned, rate in zip(job.plan, job.rates, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        if hooks.step is not None:
            value = hooks.step(job.cut(planned), optimizer)
        else:
            value = job.value(job.cut(planned))
            backward(value, job.parameters)
            if hooks.correct is not None:
                _correct(job.parameters, hooks.correct)
            optimizer.step()
        if hooks.after_step is not None:
            hooks.after_step()
        total += value.detach()
    return total, optimizer


def _flat(named: Mapping[str, Mapping[str, V]]) -> dict[str, V]:
    """Return the values of several networks in one table."""
    return {f"{net}/{name}": value for net, part in named.items() for name, value in part.items()}


def _chosen(module: nn.Module, names: Iterable[str] | None) -> dict[str, nn.Parameter]:
    every = dict(module.named_parameters())
    return every if names is None else {name: every[name] for name in names if name in every}


def _correct(parameters: dict[str, nn.Parameter], correct: Correction) -> None:
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            parameter.grad = correct(name.partition("/")[2], parameter.grad)


def rate_at(settings: Training, site: Site, step: int, steps: int) -> float:
    """Return the learning rate of one of the steps of this round; rounds are equal parts of a run."""
    if settings.schedule == "constant":
        return settings.learning_rate
    done = ((site.round - 1) * steps + step) / (site.rounds * steps)
    return float(settings.learning_rate * (1 - done) ** settings.power)
