"""The one loop that learns how far a site follows the server: used by FedALA, FedICRA and FedLPPA."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from consilia.ops.personal import improve, interpolate, steady
from consilia.payload import Weights, picked
from consilia.training.local import Loss, draw_plan, job_of, train
from consilia.training.optimizers import OptimizerState, optimizer_state, take_over
from consilia.training.seeds import seeded
from consilia.training.site import Site
from consilia.training.transfer import fetch, sent


def learn_shares(
    site: Site,
    own: Weights,
    server: Weights,
    shares: Weights,
    loss: Loss | None = None,
    *,
    eta: float = 1.0,
    batches: int | None = None,
    passes: int = 1,
    threshold: float | None = None,
    portion: float = 1.0,
) -> Weights:
    """Return new shares W after some local batches, and leave the mixture in the main network.

    The network must hold the rest of the weights, which stay as they are; so do its buffers.

    Args:
        site: Where; a site without a usable image only loads the mixture.
        own: The site's tensors of its last round, with at least the names that have shares.
        server: The server's tensors, with at least the names that have shares.
        shares: The matrix W of each parameter that is mixed; ones follow the server.
        loss: What a batch costs; the learner's own loss by default.
        eta: The step size.
        batches: Train on so many batches; `None` for whole passes.
        passes: The most passes over the images, where `batches` is not given.
        threshold: Stop when the losses of the last ten passes have a smaller standard deviation.
        portion: The part of the images that is used, drawn anew in each call.
    """
    network, device = site.network, site.bench.device
    mine, theirs, mix = (sent(picked(part, shares), device) for part in (own, server, shares))
    mixed = {f"main/{name}": p for name, p in network.named_parameters() if name in mix}
    kept = network.state_dict()
    buffers = {name: b.clone() for name, b in network.named_buffers() if name in kept}
    randoms = site.generator("shares")
    used = site.train.supervised()
    if portion < 1 and len(used):
        count = max(1, int(portion * len(used)))
        used = used[torch.randperm(len(used), generator=randoms)[:count].to(used.device)]
    once = site.training.model_copy(update={"epochs": 1, "steps": None})
    rule, means, done = Follow(eta), list[float](), 0
    site.load(interpolate(mine, theirs, mix))
    network.train()
    with seeded(site.seed, site.name, site.round, "shares"):
        while len(used) and (len(means) < passes if batches is None else done < batches):
            plan = draw_plan(used, once, randoms)
            plan = plan if batches is None else plan[: batches - done]
            state = {
                f"main/{name}": {"own": mine[name], "server": theirs[name], "share": share}
                for name, share in mix.items()
            }
            job = job_of(site, loss, plan, [eta] * len(plan), mixed, rule, state)
            total, optimizer = train(site, loss, job)
            found = optimizer_state(mixed, optimizer)
            mix = {name: found[f"main/{name}"]["share"] for name in mix}
            done += len(plan)
            means.append(float(total) / len(plan))
            if threshold is not None and steady(means, threshold=threshold):
                break
    site.load(buffers)
    for parameter in mixed.values():
        parameter.grad = None
    return fetch(mix)


@dataclass(frozen=True)
class Follow:
    """The rule by which shares are learned."""

    eta: float

    def __call__(
        self,
        parameters: dict[str, nn.Parameter],
        state: OptimizerState | None = None,
        rate: Tensor | None = None,
    ) -> torch.optim.Optimizer:
        """Return the optimiser of the mixed parameters."""
        optimizer = Mixer(parameters.values(), self.eta)
        take_over(optimizer, parameters, state or {})
        return optimizer


class Mixer(torch.optim.Optimizer):
    """Moves each parameter between a site's own value and the server's, by learning its share."""

    def __init__(self, parameters: Iterable[nn.Parameter], eta: float) -> None:
        super().__init__(parameters, {"lr": eta})
        self._eta = eta
        for group in self.param_groups:
            for p in group["params"]:  # until told otherwise: everything as it is
                held = {"own": p.detach().clone(), "server": p.detach().clone()}
                self.state[p] = {**held, "share": torch.ones_like(p)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Improve the shares by the gradients at the mixture, and mix anew."""
        learning = {
            str(at): p
            for at, p in enumerate(p for group in self.param_groups for p in group["params"])
            if p.grad is not None
        }
        own, server, share = (
            {at: self.state[p][key] for at, p in learning.items()}
            for key in ("own", "server", "share")
        )
        slopes = {at: p.grad for at, p in learning.items()}
        better = improve(share, slopes, own, server, self._eta)
        mixture = interpolate(own, server, better)
        goals = [*share.values(), *learning.values()]
        if goals:
            values = [*better.values(), *(mixture[at] for at in learning)]
            torch._foreach_copy_(goals, values)
