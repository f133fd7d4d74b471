"""FedPSL's bi-level step against METHODS 5.9 and derivatives worked out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from consilia.ops.bilevel import inner_step, outer_gradient


def one(value):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def bce(body, head, x, y):
    logit = head["phi"] * body["theta"] * x
    return F.binary_cross_entropy_with_logits(logit, torch.tensor(y, dtype=torch.float64))


@pytest.mark.parametrize(
    ("second_order", "gradient", "theta"), [(True, 0.801330, 0.919867), (False, 0.806066, 0.919393)]
)
def test_the_scalar_case(second_order, gradient, theta):  # METHODS 5.9 fact 3
    body, head = {"theta": one(1.0)}, {"phi": one(0.5)}
    inner = inner_step(lambda b, h: bce(b, h, 1.0, 1.0), body, head, 0.1, second_order)
    assert inner.body["theta"].item() == pytest.approx(1.018877, abs=1e-6)
    phi = head["phi"].detach() - 0.1 * inner.head_gradient["phi"]
    assert phi.item() == pytest.approx(0.537754, abs=1e-6)
    assert inner.loss.item() == pytest.approx(math.log(1 + math.exp(-0.5)))
    found = outer_gradient(lambda b: bce(b, {"phi": phi}, 2.0, 0.0), inner, body, second_order)
    assert found["theta"].item() == pytest.approx(gradient, abs=1e-6)
    assert 1.0 - 0.1 * found["theta"].item() == pytest.approx(theta, abs=1e-6)


def test_the_scalar_case_with_the_heads_graph_would_be_another_gradient():  # METHODS 5.9 fact 3
    theta, phi = one(1.0), one(0.5)
    loss = bce({"theta": theta}, {"phi": phi}, 1.0, 1.0)
    of_theta, of_phi = torch.autograd.grad(loss, (theta, phi), create_graph=True)
    body, head = {"theta": theta - 0.1 * of_theta}, {"phi": phi - 0.1 * of_phi}
    (through_both,) = torch.autograd.grad(bce(body, head, 2.0, 0.0), theta, retain_graph=True)
    assert through_both.item() == pytest.approx(0.841044, abs=1e-6)
    held = {"phi": head["phi"].detach()}  # ours
    (through_body,) = torch.autograd.grad(bce(body, held, 2.0, 0.0), theta)
    assert through_body.item() == pytest.approx(0.801330, abs=1e-6)


def test_the_second_order_is_the_derivative_of_the_whole_step():
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 3, dtype=torch.float64), torch.randint(0, 2, (2, 6)).double()
    theta, phi = torch.randn(3, 2, dtype=torch.float64), torch.randn(2, dtype=torch.float64)

    def loss(body, head, half):
        logit = torch.tanh(x[half] @ body["w"]) @ head["v"]
        return F.binary_cross_entropy_with_logits(logit, y[half])

    body, head = {"w": theta.clone().requires_grad_()}, {"v": phi.clone().requires_grad_()}
    inner = inner_step(lambda b, h: loss(b, h, 0), body, head, 0.5, second_order=True)
    new = {"v": phi - 0.5 * inner.head_gradient["v"]}
    found = outer_gradient(lambda b: loss(b, new, 1), inner, body, second_order=True)["w"]

    def judged(w):  # the validation loss as a function of the start, with the new head held fixed
        w = w.clone().requires_grad_()
        (step,) = torch.autograd.grad(loss({"w": w}, {"v": phi}, 0), w)
        return loss({"w": w.detach() - 0.5 * step}, new, 1).item()

    for i in range(3):
        for j in range(2):
            nudge = torch.zeros_like(theta)
            nudge[i, j] = 1e-5
            slope = (judged(theta + nudge) - judged(theta - nudge)) / 2e-5
            assert found[i, j].item() == pytest.approx(slope, abs=1e-7)


def test_a_virtual_step_of_zero_is_the_plain_gradient():
    body, head = {"theta": one(1.0)}, {"phi": one(0.5)}
    inner = inner_step(lambda b, h: bce(b, h, 1.0, 1.0), body, head, 0.0, True)
    found = outer_gradient(lambda b: bce(b, {"phi": 0.5}, 2.0, 0.0), inner, body, True)
    assert found["theta"].item() == pytest.approx(0.5 * 2 / (1 + math.exp(-1)))


def test_a_tensor_that_the_loss_does_not_use_gets_a_zero():
    body, head = {"theta": one(1.0), "idle": one(3.0)}, {"phi": one(0.5)}
    inner = inner_step(lambda b, h: bce(b, h, 1.0, 1.0), body, head, 0.1, True)
    found = outer_gradient(lambda b: bce(b, {"phi": 0.5}, 2.0, 0.0), inner, body, True)
    assert found["idle"].item() == 0
    assert inner.body["idle"].item() == 3
