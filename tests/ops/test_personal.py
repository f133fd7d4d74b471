"""Learnable aggregation: METHODS 3.9-2 by hand, the chain rule by autograd, FedALA's stopping rule."""

import pytest
import torch

from consilia.ops.personal import improve, interpolate, steady


def one(value):
    return {"w": torch.tensor([value])}


def test_a_quarter_of_the_way_to_the_server():
    assert interpolate(one(1.0), one(3.0), one(0.25))["w"].item() == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("eta", "slope", "share", "mixed"), [(1.0, -0.1, 0.45, 1.9), (0.1, 2.0, 0.0, 1.0)]
)
def test_a_step_of_the_shares(eta, slope, share, mixed):
    after = improve(one(0.25), one(slope), one(1.0), one(3.0), eta)
    assert after["w"].item() == pytest.approx(share)
    assert interpolate(one(1.0), one(3.0), after)["w"].item() == pytest.approx(mixed)


def test_one_is_the_server_and_zero_is_the_site_to_the_bit():
    torch.manual_seed(0)
    own, server = {"w": torch.randn(50)}, {"w": 1e4 * torch.randn(50)}
    assert torch.equal(interpolate(own, server, {"w": torch.ones(50)})["w"], server["w"])
    assert torch.equal(interpolate(own, server, {"w": torch.zeros(50)})["w"], own["w"])


def test_what_has_no_shares_is_the_servers():
    own = {"w": torch.zeros(2), "steps": torch.tensor(3)}
    server = {"w": torch.ones(2), "steps": torch.tensor(5)}
    mixed = interpolate(own, server, {"w": torch.full((2,), 0.5)})
    assert mixed["steps"].item() == 5
    assert mixed["w"].tolist() == [0.5, 0.5]


def test_the_step_is_the_gradient_of_the_loss_by_the_shares():
    torch.manual_seed(1)
    own, server, share = (torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 3))
    x = torch.randn(3)

    def loss(w):
        return (w @ x).tanh().square().sum()

    mixed = interpolate({"w": own}, {"w": server}, {"w": share})["w"].requires_grad_()
    (slope,) = torch.autograd.grad(loss(mixed), mixed)
    got = improve({"w": share}, {"w": slope}, {"w": own}, {"w": server}, 0.05)["w"]

    direct = share.clone().requires_grad_()
    loss(own + (server - own) * direct).backward()
    torch.testing.assert_close(got, (share - 0.05 * direct.grad).clamp(0, 1))


def test_shares_stay_between_zero_and_one():
    torch.manual_seed(2)
    parts = [{"w": 10 * torch.randn(100)} for _ in range(3)]
    after = improve({"w": torch.rand(100)}, *parts, 1.0)["w"]
    assert after.min() == 0
    assert after.max() == 1


def test_it_is_steady_after_eleven_alike_losses():
    assert not steady([0.5] * 10)
    assert steady([0.5] * 11)
    assert steady([9.0, *[0.5] * 10])
    assert not steady([0.5] * 5 + [1.0] * 6)
    assert steady([0.5] * 5 + [1.0] * 6, threshold=0.3)
