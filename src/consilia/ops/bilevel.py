r"""FedPSL's one-step bi-level learning: features are judged by a half batch that did not train them.

For a body :math:`\theta` and a head :math:`\phi` (Algorithm 1, lines 6-9):

.. math:: \theta' = \theta - \alpha \nabla_\theta L_{train}(\theta, \phi), \quad
          \phi \leftarrow \phi - \alpha \nabla_\phi L_{train}(\theta, \phi), \quad
          \theta \leftarrow \theta - \beta \nabla_\theta L_{val}(\theta', \phi)

The first is only thought of, a plain step or all of Adam's; the other two are real, and an optimizer's.
In the last the new :math:`\phi` is a constant, or has the slope of a step that is thought of like the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Named = Mapping[str, Tensor]
#: Where a step that is only thought of takes a tensor: of its name, its numbers and their gradient.
Move = Callable[[str, Tensor, Tensor], Tensor]

#: What a second moment of 0 counts as, for there a root has no finite slope.
LEAST = 1e-16


@dataclass(frozen=True)
class Plain:
    """A step against the gradient; its size is one number, or one for each number of a tensor."""

    size: float | Named

    def __call__(self, name: str, old: Tensor, gradient: Tensor) -> Tensor:
        """Return a tensor after the step."""
        size = self.size[name] if isinstance(self.size, Mapping) else self.size
        return old - size * gradient


@dataclass(frozen=True)
class Moments:
    """What Adam remembers of a tensor: both moments of its gradients, and of how many."""

    first: Tensor
    second: Tensor
    steps: Tensor


@dataclass(frozen=True)
class Adam:
    r"""The whole step that Adam would make, all of it in the graph, as the package `higher` has it.

    Both moments count the present gradient, and that includes weight decay λ, as in the real step.

    .. math:: g = \nabla_\theta L + \lambda \theta, \quad m' = \beta_1 m + (1 - \beta_1) g, \quad
              v' = \beta_2 v + (1 - \beta_2) g^2, \quad
              \theta' = \theta - \alpha \frac{m' / (1 - \beta_1^t)}{\sqrt{v' / (1 - \beta_2^t)} + \epsilon}
    """

    size: float
    betas: tuple[float, float]
    eps: float
    decay: float
    kept: Mapping[str, Moments]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, parameters: Named, size: float) -> Adam:
        """Return the next step, of another size, of a real Adam, which is left as it is."""
        kept = {}
        for name, parameter in parameters.items():
            state, none = optimizer.state.get(parameter, {}), torch.zeros(())
            kept[name] = Moments(*(state.get(k, none) for k in ("exp_avg", "exp_avg_sq", "step")))
        group = optimizer.param_groups[0]
        return cls(size, group["betas"], group["eps"], group["weight_decay"], kept)

    def __call__(self, name: str, old: Tensor, gradient: Tensor) -> Tensor:
        """Return a tensor after the step."""
        kept, (one, two) = self.kept[name], self.betas
        steps = kept.steps.double() + 1
        gradient = gradient + self.decay * old
        first = one * kept.first + (1 - one) * gradient
        second = two * kept.second + (1 - two) * gradient.square()
        second = torch.where(second == 0, LEAST, second)
        root = (second / (1 - two**steps)).sqrt()
        return old - self.size / (1 - one**steps) * first / (root + self.eps)


@dataclass(frozen=True)
class Inner:
    """The inner step: the body as it would be, the head's gradient, and the training loss.

    Attributes:
        head: The head as it would be, with its graph; empty where the outer gradient leaves that out.
    """

    body: dict[str, Tensor]
    head: dict[str, Tensor]
    head_gradient: dict[str, Tensor]
    loss: Tensor

    def judged_with(self, head: Named) -> dict[str, Tensor]:
        """Return the head after its real step, a constant or with the slope of the one thought of."""
        constant = {name: real.detach() for name, real in head.items()}
        slopes = {name: thought - thought.detach() for name, thought in self.head.items()}
        return constant | {name: constant[name] + slope for name, slope in slopes.items()}


def inner_step(
    loss: Callable[[Named, Named], Tensor],
    body: Named,
    head: Named,
    move: Move,
    second_order: bool,
    through_head: bool = False,
) -> Inner:
    """Return the virtual body after one step, and the gradient for the head's real one.

    Args:
        loss: The training loss of a body and a head.
        body: Its tensors; they need gradients.
        head: Its tensors; they need gradients and must not change until the outer gradient is taken.
        move: The virtual step.
        second_order: Whether the outer gradient will run through this step.
        through_head: Whether it will then run through the head's step too.
    """
    value = loss(body, head)
    found = _gradients(value, [*body.values(), *head.values()], second_order)
    gradients = dict(zip([*body, *head], found, strict=True))
    moved = {name: move(name, old, gradients[name]) for name, old in body.items()}
    thought = {}
    if not second_order:
        moved = {name: new.detach().requires_grad_() for name, new in moved.items()}
    elif through_head:
        thought = {name: move(name, old, gradients[name]) for name, old in head.items()}
    of_head = {name: gradients[name].detach() for name in head}
    return Inner(moved, thought, of_head, value.detach())


def outer_gradient(
    loss: Callable[[Named], Tensor], inner: Inner, body: Named, second_order: bool
) -> dict[str, Tensor]:
    """Return the gradient of the validation loss at the virtual body, with respect to the real one.

    Without the second order the virtual step's own derivative is left out.
    """
    value = loss(inner.body)
    wanted = body if second_order else inner.body
    return dict(zip(body, _gradients(value, [*wanted.values()], keep=False), strict=True))


def adam_rates(parameters: Named, optimizer: torch.optim.Optimizer, alpha: float) -> Named:
    """Return α over the root of Adam's second moment, as constants; α where there is none yet."""
    rates = {}
    for name, parameter in parameters.items():
        kept = optimizer.state.get(parameter, {})
        rates[name] = torch.full_like(parameter, alpha)
        if "exp_avg_sq" in kept:
            group = optimizer.param_groups[0]
            moment = kept["exp_avg_sq"] / (1 - group["betas"][1] ** kept["step"])
            rates[name] /= moment.sqrt() + group["eps"]
    return rates


def _gradients(value: Tensor, wanted: list[Tensor], keep: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        value, wanted, create_graph=keep, allow_unused=True, materialize_grads=True
    )
