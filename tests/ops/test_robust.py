"""The robust losses: METHODS 6.5 facts 4, 5 and 8, loops over pixels, limit cases."""

import math

import pytest
import torch

from consilia.ops.losses import dice_squared
from consilia.ops.robust import (
    class_offsets,
    clipped,
    crossed_distillation,
    crossed_small_loss,
    distilled_loss,
    early_learning_term,
    mean_known,
    noise_robust_dice_loss,
    pixel_losses,
    smallest,
    temporal_target,
    two_rows,
)


def drawn(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def marks(*shape, seed=1):
    return drawn(*shape, seed=seed) < 0.3


def test_one_row_is_a_score_against_zero():
    z = drawn(2, 1, 3, 3) * 8 - 4
    torch.testing.assert_close(two_rows(z).softmax(1)[:, 1:], z.sigmoid())
    both = drawn(2, 2, 3, 3)
    assert two_rows(both) is both


def test_noise_robust_dice():  # fact 4
    p = torch.tensor([0.9, 0.6, 0.2, 0.1]).reshape(1, 1, 2, 2)
    g = torch.tensor([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 2, 2)
    assert float(noise_robust_dice_loss(p, g, 1.5)) == pytest.approx(0.125984, abs=1e-6)
    assert float(noise_robust_dice_loss(p, g, 2.0)) == pytest.approx(0.068323, abs=1e-6)


def test_noise_robust_dice_with_gamma_two_is_the_squared_dice_loss():
    p, g = drawn(3, 1, 5, 5), marks(3, 1, 5, 5).float()
    expected = 1 - dice_squared(p, g, smooth=0.0).mean()
    torch.testing.assert_close(noise_robust_dice_loss(p, g, 2.0, smooth=0.0), expected)


def test_noise_robust_dice_averages_labels_and_skips_unknown_pixels():
    p, g = drawn(2, 2, 3, 3), marks(2, 2, 3, 3).float()
    known = marks(2, 2, 3, 3, seed=5)
    each = []
    for label in range(2):
        wrong = under = 0.0
        for b in range(2):
            for y in range(3):
                for x in range(3):
                    if known[b, label, y, x]:
                        q, t = float(p[b, label, y, x]), float(g[b, label, y, x])
                        wrong += abs(q - t) ** 1.5
                        under += q * q + t * t
        each.append(wrong / (under + 1e-5))
    found = noise_robust_dice_loss(p, g, 1.5, known)
    assert float(found) == pytest.approx(sum(each) / 2, rel=1e-5)


def test_early_learning():  # fact 5
    p = torch.tensor([0.7, 0.3]).reshape(1, 2, 1, 1)
    t = torch.tensor([0.6, 0.4]).reshape(1, 2, 1, 1)
    assert float(early_learning_term(p, t)) == pytest.approx(-0.776529, abs=1e-6)
    found = temporal_target(t, p, 0.99).flatten().tolist()
    assert found == pytest.approx([0.601, 0.399])


def test_the_early_learning_term_pulls_towards_the_target():
    logits = torch.zeros(1, 2, 1, 1, requires_grad=True)
    t = torch.tensor([0.1, 0.9]).reshape(1, 2, 1, 1)
    early_learning_term(logits.softmax(1), t).backward()
    assert logits.grad[0, 1] < 0 < logits.grad[0, 0]  # a step downhill raises the second class


def test_probabilities_are_clipped_and_targets_use_what_sums_to_one():
    p = clipped(torch.tensor([0.0, 0.5, 1.0]))
    assert p.tolist() == pytest.approx([1e-4, 0.5, 1 - 1e-4])
    uneven = torch.tensor([0.5, 1.5]).reshape(1, 2, 1, 1)
    found = temporal_target(torch.zeros(1, 2, 1, 1), uneven, 0.0).flatten().tolist()
    assert found == [0.25, 0.75]


def test_mean_of_known_pixels():
    each, known = drawn(1, 2, 2), torch.tensor([[[True, False], [False, True]]])
    assert float(mean_known(each, known)) == pytest.approx(float(each[known].mean()))
    assert float(mean_known(each, torch.zeros(1, 2, 2, dtype=torch.bool))) == 0


def test_logit_adjustment():  # fact 8
    found = class_offsets(torch.tensor([90.0, 10.0])).tolist()
    assert found == pytest.approx([-0.105361, -2.302585], abs=1e-6)
    assert torch.isfinite(class_offsets(torch.tensor([90.0, 0.0]))).all()


def test_distillation_in_a_loop():
    logits, soft = drawn(1, 2, 2, 2) * 4, drawn(1, 2, 2, 2, seed=2)
    soft = soft / soft.sum(1, keepdim=True)
    target = torch.tensor([[[0, 1], [1, 0]]])
    divergence = entropy = 0.0
    for y in range(2):
        for x in range(2):
            e = [math.exp(v) for v in logits[0, :, y, x].tolist()]
            p, q = [v / sum(e) for v in e], soft[0, :, y, x].tolist()
            divergence += sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 4
            entropy -= math.log(p[int(target[0, y, x])]) / 4
    found = float(distilled_loss(logits, target, soft, 0.3))
    assert found == pytest.approx(0.3 * divergence + 0.7 * entropy, rel=1e-5)
    certain = torch.tensor([1.0, 0.0]).reshape(1, 2, 1, 1)  # a teacher that is sure is no trouble
    assert torch.isfinite(distilled_loss(logits[..., :1, :1], target[..., :1, :1], certain, 1.0))


def test_the_smallest_part():
    values = torch.tensor([0.3, 0.1, 0.2, 0.1])
    assert smallest(values, 0.5).tolist() == [1, 3]
    assert smallest(values, 1.0).tolist() == [1, 3, 2, 0]
    assert smallest(values, 0.0).tolist() == []


def test_each_network_learns_on_what_is_easy_for_the_other():
    one, other = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([8.0, 5.0, 6.0, 7.0])
    first, second = crossed_small_loss(one, other, 0.5)
    assert float(first) == pytest.approx((2.0 + 3.0) / 2)  # pixels 1 and 2 are easy for the other
    assert float(second) == pytest.approx((8.0 + 5.0) / 2)
    first, second = crossed_small_loss(one, other, 1.0)
    assert (float(first), float(second)) == pytest.approx((2.5, 6.5))
    assert float(crossed_small_loss(one, other, 0.0)[0]) == 0


def test_distillation_takes_the_other_networks_steady_pixels():
    strong = [drawn(1, 2, 2, 2, seed=s) * 4 for s in (1, 2)]
    plain = [drawn(1, 2, 2, 2, seed=s) * 4 for s in (3, 4)]
    for scores in (*strong, *plain):
        scores.requires_grad_()
    found = crossed_distillation((strong[0], plain[0]), (strong[1], plain[1]), 0.5)

    def margin(scores):
        scores = scores.detach()
        return [float(scores[0, 1, i // 2, i % 2] - scores[0, 0, i // 2, i % 2]) for i in range(4)]

    for me, you in ((0, 1), (1, 0)):
        change = [
            (a - b) ** 2 for a, b in zip(margin(strong[you]), margin(plain[you]), strict=True)
        ]
        steady = sorted(range(4), key=change.__getitem__)[:2]
        total = 0.0
        for i in steady:
            p, q = (1 / (1 + math.exp(-margin(s)[i])) for s in (strong[me], plain[you]))
            total += q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        assert float(found[me].detach()) == pytest.approx(total / 2, rel=1e-4)
    (found[0] + found[1]).backward()
    assert plain[0].grad is None  # the teacher is not taught
    assert strong[0].grad.abs().sum() > 0


def test_pixel_losses():
    p, y = torch.tensor([[[0.25, 1.0]]]), torch.tensor([[[True, True]]])
    assert pixel_losses(p, y).flatten().tolist() == pytest.approx([math.log(4), 0.0])
