"""FedPSL's bi-level step against METHODS 5.9 and derivatives worked out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from consilia.ops.bilevel import Adam, Moments, Plain, inner_step, outer_gradient


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
    inner = inner_step(lambda b, h: bce(b, h, 1.0, 1.0), body, head, Plain(0.1), second_order)
    assert inner.body["theta"].item() == pytest.approx(1.018877, abs=1e-6)
    phi = head["phi"].detach() - 0.1 * inner.head_gradient["phi"]
    assert phi.item() == pytest.approx(0.537754, abs=1e-6)
    assert inner.loss.item() == pytest.approx(math.log(1 + math.exp(-0.5)))
    found = outer_gradient(lambda b: bce(b, {"phi": phi}, 2.0, 0.0), inner, body, second_order)
    assert found["theta"].item() == pytest.approx(gradient, abs=1e-6)
    assert 1.0 - 0.1 * found["theta"].item() == pytest.approx(theta, abs=1e-6)


@pytest.mark.parametrize(("through_head", "gradient"), [(True, 0.841044), (False, 0.801330)])
def test_the_scalar_case_with_the_heads_graph_is_another_gradient(through_head, gradient):
    """METHODS 5.9, fact 3."""
    body, head = {"theta": one(1.0)}, {"phi": one(0.5)}
    inner = inner_step(
        lambda b, h: bce(b, h, 1.0, 1.0), body, head, Plain(0.1), True, through_head=through_head
    )
    new = inner.judged_with({"phi": head["phi"] - 0.1 * inner.head_gradient["phi"]})
    assert new["phi"].item() == pytest.approx(0.537754, abs=1e-6)
    found = outer_gradient(lambda b: bce(b, new, 2.0, 0.0), inner, body, True)
    assert found["theta"].item() == pytest.approx(gradient, abs=1e-6)


def test_without_the_second_order_the_head_is_a_constant_too():
    body, head = {"theta": one(1.0)}, {"phi": one(0.5)}
    inner = inner_step(
        lambda b, h: bce(b, h, 1.0, 1.0), body, head, Plain(0.1), False, through_head=True
    )
    new = inner.judged_with({"phi": head["phi"] - 0.1 * inner.head_gradient["phi"]})
    assert not new["phi"].requires_grad
    found = outer_gradient(lambda b: bce(b, new, 2.0, 0.0), inner, body, False)
    assert found["theta"].item() == pytest.approx(0.806066, abs=1e-6)


@pytest.mark.parametrize("earlier", [0, 1, 5])
def test_adams_virtual_step_is_the_real_one(earlier):
    randoms = torch.Generator().manual_seed(0)
    w = torch.randn(4, 3, generator=randoms, dtype=torch.float64, requires_grad=True)
    real = torch.optim.Adam([w], 0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    for _ in range(earlier):
        w.grad = torch.randn(4, 3, generator=randoms, dtype=torch.float64)
        real.step()
    w.grad = torch.randn(4, 3, generator=randoms, dtype=torch.float64)
    adam = Adam.of(real, {"w": w}, 0.1)
    thought = adam("w", w.detach().clone(), w.grad)
    assert torch.equal(thought, adam("w", w.detach().clone(), w.grad))  # nothing is remembered
    half = Adam.of(real, {"w": w}, 0.05)("w", w.detach().clone(), w.grad)
    torch.testing.assert_close(half, (thought + w.detach()) / 2)
    real.step()
    torch.testing.assert_close(thought, w.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("earlier", [0, 3])
def test_the_gradient_runs_through_all_of_adams_step_and_through_the_heads(earlier):
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 3, dtype=torch.float64), torch.randint(0, 2, (2, 6)).double()
    w = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, dtype=torch.float64, requires_grad=True)
    real = torch.optim.Adam([w, v], 0.1, eps=1e-2, weight_decay=0.3)
    for _ in range(earlier):
        w.grad, v.grad = (torch.randn_like(p) for p in (w, v))
        real.step()

    def loss(body, head, half):
        logit = torch.tanh(x[half] @ body["w"]) @ head["v"]
        return F.binary_cross_entropy_with_logits(logit, y[half])

    adam = Adam.of(real, {"w": w, "v": v}, 0.1)
    inner = inner_step(lambda b, h: loss(b, h, 0), {"w": w}, {"v": v}, adam, True, True)
    # The real step of the head may be of another size; its value counts, and the virtual slope.
    new = {"v": v.detach() - 0.2}
    head = inner.judged_with(new)
    assert torch.equal(head["v"], new["v"])
    found = outer_gradient(lambda b: loss(b, head, 1), inner, {"w": w}, True)["w"]
    shift = new["v"] - inner.head["v"].detach()

    def judged(start):  # real steps from another start, judged by the other half
        body, head = (p.detach().clone().requires_grad_() for p in (start, v))
        other = torch.optim.Adam([body, head], 0.1, eps=1e-2, weight_decay=0.3)
        for old, copy in ((w, body), (v, head)):
            other.state[copy] = {k: t.clone() for k, t in real.state.get(old, {}).items()}
        loss({"w": body}, {"v": head}, 0).backward()
        other.step()
        return loss({"w": body}, {"v": head + shift}, 1).item()

    for i in range(3):
        for j in range(2):
            nudge = torch.zeros(3, 2, dtype=torch.float64)
            nudge[i, j] = 1e-5
            slope = (judged(w + nudge) - judged(w - nudge)) / 2e-5
            assert found[i, j].item() == pytest.approx(slope, abs=1e-7)


def test_a_second_moment_of_zero_has_a_finite_slope():
    zero = Moments(torch.zeros(()), torch.zeros(()), torch.zeros(()))
    adam = Adam(0.1, (0.9, 0.999), 1e-8, 0.0, {"theta": zero})
    body, head = {"theta": one(1.0)}, {"phi": one(0.5)}
    inner = inner_step(lambda b, h: 0 * b["theta"] ** 2 * h["phi"], body, head, adam, True)
    assert inner.body["theta"].item() == 1
    found = outer_gradient(lambda b: bce(b, {"phi": 0.5}, 2.0, 0.0), inner, body, True)
    assert found["theta"].item() == pytest.approx(0.5 * 2 / (1 + math.exp(-1)))


def test_the_second_order_is_the_derivative_of_the_whole_step():
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 3, dtype=torch.float64), torch.randint(0, 2, (2, 6)).double()
    theta, phi = torch.randn(3, 2, dtype=torch.float64), torch.randn(2, dtype=torch.float64)

    def loss(body, head, half):
        logit = torch.tanh(x[half] @ body["w"]) @ head["v"]
        return F.binary_cross_entropy_with_logits(logit, y[half])

    body, head = {"w": theta.clone().requires_grad_()}, {"v": phi.clone().requires_grad_()}
    inner = inner_step(lambda b, h: loss(b, h, 0), body, head, Plain(0.5), second_order=True)
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
    inner = inner_step(lambda b, h: bce(b, h, 1.0, 1.0), body, head, Plain(0.0), True)
    found = outer_gradient(lambda b: bce(b, {"phi": 0.5}, 2.0, 0.0), inner, body, True)
    assert found["theta"].item() == pytest.approx(0.5 * 2 / (1 + math.exp(-1)))


def test_a_tensor_that_the_loss_does_not_use_gets_a_zero():
    body, head = {"theta": one(1.0), "idle": one(3.0)}, {"phi": one(0.5)}
    inner = inner_step(lambda b, h: bce(b, h, 1.0, 1.0), body, head, Plain(0.1), True)
    found = outer_gradient(lambda b: bce(b, {"phi": 0.5}, 2.0, 0.0), inner, body, True)
    assert found["idle"].item() == 0
    assert inner.body["idle"].item() == 3
