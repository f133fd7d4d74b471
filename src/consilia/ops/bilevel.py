r"""FedPSL's one-step bi-level learning: features are judged by a half batch that did not train them.

For a body :math:`\theta` and a head :math:`\phi` (Algorithm 1, lines 6-9):

.. math:: \theta' = \theta - \alpha \nabla_\theta L_{train}(\theta, \phi), \quad
          \phi \leftarrow \phi - \alpha \nabla_\phi L_{train}(\theta, \phi), \quad
          \theta \leftarrow \theta - \beta \nabla_\theta L_{val}(\theta', \phi)

The first is a plain step that is only thought of; the other two are real, and an optimizer's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Inner:
    """The inner step: the body as it would be, the head's gradient, and the training loss."""

    body: dict[str, Tensor]
    head_gradient: dict[str, Tensor]
    loss: Tensor


def inner_step(
    loss: Callable[[Named, Named], Tensor],
    body: Named,
    head: Named,
    rate: float | Named,
    second_order: bool,
) -> Inner:
    """Return the virtual body after one plain step, and the gradient for the head's real one.

    Args:
        loss: The training loss of a body and a head.
        body: Its tensors; they need gradients.
        head: Its tensors; they need gradients and must not change until the outer gradient is taken.
        rate: The step size of the virtual step: one, or one for each number of the body.
        second_order: Whether the outer gradient will run through this step.
    """
    value = loss(body, head)
    gradients = _gradients(value, [*body.values(), *head.values()], second_order)
    rates = rate if isinstance(rate, Mapping) else dict.fromkeys(body, rate)
    moved = {
        name: old - rates[name] * step
        for (name, old), step in zip(body.items(), gradients, strict=False)
    }
    if not second_order:
        moved = {name: new.detach().requires_grad_() for name, new in moved.items()}
    of_head = {name: step.detach() for name, step in zip(head, gradients[len(body) :], strict=True)}
    return Inner(moved, of_head, value.detach())


def outer_gradient(
    loss: Callable[[Named], Tensor], inner: Inner, body: Named, second_order: bool
) -> dict[str, Tensor]:
    """Return the gradient of the validation loss at the virtual body, with respect to the real one.

    Without the second order the virtual step's own derivative is left out.
    """
    value = loss(inner.body)
    wanted = body if second_order else inner.body
    return dict(zip(body, _gradients(value, [*wanted.values()], keep=False), strict=True))


def _gradients(value: Tensor, wanted: list[Tensor], keep: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        value, wanted, create_graph=keep, allow_unused=True, materialize_grads=True
    )
