"""The gated CRF loss against a double loop over pixels."""

import numpy as np
import pytest
import torch

from consilia.ops.crf import gated_crf


def looped(p, image, xy, rgb, radius):
    b, _, h, w = p.shape
    total = 0.0
    for n in range(b):
        for y in range(h):
            for x in range(w):
                for v in range(max(0, y - radius), min(h, y + radius + 1)):
                    for u in range(max(0, x - radius), min(w, x + radius + 1)):
                        if (v, u) == (y, x):
                            continue
                        far = ((v - y) ** 2 + (u - x) ** 2) / (2 * xy**2)
                        gap = image[n, :, y, x] - image[n, :, v, u]
                        kernel = np.exp(-far - (gap**2).sum() / (2 * rgb**2))
                        total += kernel * (1 - (p[n, :, y, x] * p[n, :, v, u]).sum())
    return total / (b * h * w)


def drawn(*shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("radius", "channels"), [(1, 1), (2, 3), (5, 1)])
def test_it_is_the_double_loop(radius, channels):
    p, image = drawn(2, 3, 5, 6, seed=0).softmax(1), drawn(2, channels, 5, 6, seed=1)
    expected = looped(p.numpy(), image.numpy(), 6.0, 0.1, radius)
    assert gated_crf(p, image, 6.0, 0.1, radius).item() == pytest.approx(expected, rel=1e-10)


def test_one_sure_label_everywhere_costs_nothing_and_an_edge_costs_less_where_the_image_has_one():
    sure = torch.zeros(1, 2, 6, 6)
    sure[:, 0] = 1
    image = torch.zeros(1, 1, 6, 6)
    image[..., 3:] = 1
    assert gated_crf(sure, image).item() == 0
    right, wrong = sure.clone(), sure.clone()
    right[..., 3:], wrong[..., 2:] = right[..., 3:].flip(1), wrong[..., 2:].flip(1)
    assert gated_crf(right, image) < gated_crf(wrong, image)


def test_its_gradient():
    p = drawn(1, 2, 4, 3, seed=2).requires_grad_()
    image = drawn(1, 1, 4, 3, seed=3)
    assert torch.autograd.gradcheck(lambda q: gated_crf(q, image, 6.0, 0.5, 2), (p,))
