"""Pseudo labels from two decoders: METHODS 3.9-3 and 3.9-5 by hand, and a loop over pixels."""

import pytest
import torch

from consilia.ops.dual import proposal, proposal_loss


def planes(*values):
    """Return probabilities of one image, one row of pixels: `(1, classes, 1, pixels)`."""
    return torch.tensor(values, dtype=torch.float64)[None, :, None, :]


def test_the_auxiliary_decoder_can_turn_the_decision():
    main, aux = planes([0.6], [0.4]), planes([0.05], [0.95])
    mix = torch.tensor(0.8, dtype=torch.float64)
    assert (mix * main + (1 - mix) * aux).flatten().tolist() == pytest.approx([0.49, 0.51])
    assert proposal(main, aux, mix).item() == 1
    assert proposal(main, aux, torch.tensor(1.0, dtype=torch.float64)).item() == 0


def test_a_proposal_carries_no_gradient():
    main = torch.rand(1, 2, 3, 3, requires_grad=True)
    assert not proposal(main, main, torch.tensor(0.9)).requires_grad


def test_the_squared_dice_loss_of_the_specification():
    p = [0.9, 0.6, 0.2, 0.1]
    both = planes([1 - x for x in p], p)
    target = torch.tensor([[[1, 1, 0, 0]]])
    assert proposal_loss(both, target).item() == pytest.approx((0.068323 + 0.060773) / 2, abs=2e-6)


def test_it_equals_a_loop_over_pixels_and_ignores_no_class():
    torch.manual_seed(0)
    p = torch.rand(2, 3, 4, 5).softmax(1)
    target = torch.randint(0, 2, (2, 4, 5))  # class 2 is nowhere
    total = 0.0
    for c in range(3):
        above, below = 1e-5, 1e-5
        for b in range(2):
            for y in range(4):
                for x in range(5):
                    q, t = p[b, c, y, x].item(), float(target[b, y, x] == c)
                    above, below = above + 2 * q * t, below + q * q + t * t
        total += 1 - above / below
    assert proposal_loss(p, target).item() == pytest.approx(total / 3, abs=1e-6)


def test_a_class_that_is_nowhere_and_not_predicted_costs_almost_nothing():
    p = torch.zeros(1, 2, 4, 4)
    p[:, 0] = 1
    assert proposal_loss(p, torch.zeros(1, 4, 4, dtype=torch.long)).item() == pytest.approx(
        0, abs=1e-6
    )
