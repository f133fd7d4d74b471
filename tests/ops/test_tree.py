"""The tree filter against a tree found by scipy and paths walked pixel by pixel."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra, minimum_spanning_tree

from consilia.ops.tree import root_tree, spanning_tree, tree_energy, tree_filter


def scipy_tree(guide):
    """Return the edges of the minimum spanning tree of one image, as pairs of pixels."""
    _, h, w = guide.shape
    first, second, cost = [], [], []
    for y in range(h):
        for x in range(w):
            for dy, dx in ((1, 0), (0, 1)):
                if y + dy < h and x + dx < w:
                    first.append(y * w + x)
                    second.append((y + dy) * w + x + dx)
                    gap = guide[:, y, x] - guide[:, y + dy, x + dx]
                    cost.append(1 + (gap**2).sum())  # scipy reads a cost of zero as no edge
    graph = coo_matrix((cost, (first, second)), shape=(h * w, h * w)).tocsr()
    found = minimum_spanning_tree(graph).tocoo()
    return found.row, found.col, found.data - 1


def brute_filter(x, guide):
    """Average every pixel over all pixels, by the length of the only path between them."""
    c, h, w = x.shape
    row, col, cost = scipy_tree(guide)
    tree = coo_matrix((cost + 1e-12, (row, col)), shape=(h * w, h * w))
    weight = np.exp(-dijkstra(tree, directed=False))
    flat = x.reshape(c, -1)
    return ((flat @ weight.T) / weight.sum(1)).reshape(c, h, w)


def drawn(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def edges_of(tree):
    """Return the tree's edges as a set of pairs."""
    _, h, w = tree.shape
    down = {(y * w + x, (y + 1) * w + x) for y in range(h) for x in range(w) if tree[2, y, x]}
    right = {(y * w + x, y * w + x + 1) for y in range(h) for x in range(w) if tree[1, y, x]}
    return down | right


@pytest.mark.parametrize("size", [(5, 7), (8, 8), (1, 6), (6, 1), (13, 4)])
def test_the_tree_is_scipys(size):
    guide = drawn(3, 2, *size)
    trees = spanning_tree(guide)
    for one, tree in zip(guide, trees, strict=True):
        row, col, _ = scipy_tree(one.numpy())
        expected = {(min(a, b), max(a, b)) for a, b in zip(row, col, strict=True)}
        assert edges_of(tree) == expected


def test_both_ends_of_an_edge_know_it():
    tree = spanning_tree(drawn(2, 1, 6, 5))
    up, right, down, left = tree.unbind(1)
    assert torch.equal(up[:, 1:], down[:, :-1])
    assert not up[:, 0].any()
    assert torch.equal(left[:, :, 1:], right[:, :, :-1])
    assert not left[:, :, 0].any()


def test_a_flat_image_still_has_a_tree():
    tree = spanning_tree(torch.zeros(1, 1, 9, 9))
    assert len(edges_of(tree[0])) == 80
    parent = root_tree(tree)[0]
    for pixel in range(81):
        for _ in range(81):
            pixel = int(parent[pixel])
        assert pixel == 0


def test_every_parent_is_a_neighbor_in_the_tree_and_all_paths_end_at_the_root():
    tree = spanning_tree(drawn(2, 3, 7, 6, seed=3))
    for edges, parents in zip(map(edges_of, tree), root_tree(tree), strict=True):
        assert int(parents[0]) == 0
        used = {tuple(sorted((i, int(p)))) for i, p in enumerate(parents) if i}
        assert used == edges


def test_the_filter_is_the_average_over_all_pairs():
    x, guide = drawn(2, 3, 6, 7, seed=1), drawn(2, 2, 6, 7, seed=2) * 2
    found = tree_filter(x, guide)
    for one, g, f in zip(x, guide, found, strict=True):
        np.testing.assert_allclose(f.numpy(), brute_filter(one.numpy(), g.numpy()), rtol=1e-7)


def test_a_constant_stays_and_a_flat_guide_gives_the_mean():
    guide = drawn(1, 1, 5, 5)
    torch.testing.assert_close(
        tree_filter(torch.full((1, 1, 5, 5), 0.3, dtype=torch.float64), guide),
        torch.full((1, 1, 5, 5), 0.3, dtype=torch.float64),
    )
    x = drawn(1, 1, 5, 5, seed=4)
    flat = tree_filter(x, torch.zeros_like(guide))
    torch.testing.assert_close(flat, x.mean().expand_as(x))


def test_it_has_the_gradient_of_the_predictions_and_of_the_features():
    x, guide = (
        drawn(1, 2, 3, 4, seed=5).requires_grad_(),
        drawn(1, 1, 3, 4, seed=6).requires_grad_(),
    )
    assert torch.autograd.gradcheck(tree_filter, (x, guide))


def test_the_energy_chains_the_scales_and_reads_only_unknown_pixels():
    p, image = drawn(1, 2, 4, 4, seed=7).softmax(1), drawn(1, 1, 4, 4, seed=8)
    coarse, fine = drawn(1, 2, 2, 2, seed=9), drawn(1, 2, 4, 4, seed=10)
    unknown = drawn(1, 4, 4, seed=11) > 0.5
    smooth = brute_filter(p[0].numpy(), np.repeat(image[0].numpy(), 3, 0) / np.sqrt(0.02))
    large = torch.nn.functional.interpolate(coarse, (4, 4), mode="bilinear", align_corners=False)
    smooth = brute_filter(smooth, large[0].numpy())
    smooth = brute_filter(smooth, fine[0].numpy())
    gap = np.abs(p[0].numpy() - smooth).sum(0)[unknown[0].numpy()]
    found = tree_energy(p, image, (coarse, fine), unknown)
    assert found.item() == pytest.approx(gap.mean(), rel=1e-6)
    nothing = tree_energy(p, image, (coarse, fine), torch.zeros_like(unknown))
    assert nothing.item() == 0


def test_long_paths_are_followed_to_their_end():
    ramp = torch.arange(64, dtype=torch.float64).reshape(1, 1, 1, 64) * 0.3
    x = drawn(1, 1, 1, 64, seed=12)
    gap = (ramp[0, 0, 0][:, None] - ramp[0, 0, 0]).abs() / 0.3 * 0.09
    weight = torch.exp(-gap)
    torch.testing.assert_close(tree_filter(x, ramp)[0, 0, 0], weight @ x[0, 0, 0] / weight.sum(1))


def test_trees_found_together_are_those_found_one_by_one():
    p, image = drawn(3, 2, 9, 8, seed=13).softmax(1), drawn(3, 3, 9, 8, seed=14)
    image[0, :, :4] = 0
    image[0, :, 4:] = 40  # an edge whose weight is zero: nothing passes
    scales = (drawn(3, 2, 9, 8, seed=15) * 3, drawn(3, 1, 9, 8, seed=16))
    smooth = tree_filter(p, image / 0.02**0.5)
    for scale in scales:
        smooth = tree_filter(smooth, scale)
    everywhere = torch.ones(3, 9, 8, dtype=torch.bool)
    found = tree_energy(p, image, scales, everywhere)
    torch.testing.assert_close(found, (p - smooth).abs().sum(1).mean(), rtol=1e-12, atol=0)
    halves = tree_filter(p[:1], image[:1] / 0.02**0.5)[0]
    np.testing.assert_allclose(halves[0, :4], p[0, 0, :4].mean().expand(4, 8), rtol=1e-9)
