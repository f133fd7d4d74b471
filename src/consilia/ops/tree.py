"""Tree energy: how far a prediction is from its own average along the trees that an image spans.

Pixels are joined by the minimum spanning tree of the 4-connected grid, whose edges cost what
neighboring pixels differ. Everything here works on whole batches without leaving the device and
without waiting for it: the tree is found by Borůvka's rounds, rooted by its Euler tour, and filtered by
pointer doubling, so that the number of steps grows with the logarithm of the number of pixels.
Directions are up, right, down, left: the opposite of d is (d + 2) % 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def tree_energy(
    p: Float[Tensor, "b c h w"],
    image: Float[Tensor, "b i h w"],
    features: Sequence[Float[Tensor, "b _ _ _"]],
    unknown: Bool[Tensor, "b h w"],
    sigma: float = 0.02,
) -> Float[Tensor, ""]:
    r"""Return the multi-scale recurrent tree energy of FedICRA over the pixels nobody marked.

    .. math:: \hat P_0 = F_{low}(P), \quad \hat P_s = F_{high, s}(\hat P_{s-1}), \quad
              \ell = \frac{1}{|U|} \sum_{i \in U} \sum_c |P_{i,c} - \hat P_{S,i,c}|

    Each :math:`F` averages along the minimum spanning tree of its guide, with weights
    :math:`e^{-D/\sigma}` on the image and :math:`e^{-D}` on features, D the squared differences summed along
    the path. The tree is fixed; the loss has a gradient in the predictions and in the features.

    Args:
        p: Probabilities of every class, background included.
        image: The image, between 0 and 1; a gray one counts as three equal channels.
        features: Coarse score maps of each scale, coarsest first; enlarged to the image.
        unknown: The set U; where it is empty the loss is 0.
        sigma: Scale σ of the image's differences.
    """
    guide = image.expand(-1, 3, -1, -1) if image.shape[1] == 1 else image
    smooth = tree_filter(p, guide / math.sqrt(sigma))
    for feature in features:
        enlarged = F.interpolate(feature, p.shape[-2:], mode="bilinear", align_corners=False)
        smooth = tree_filter(smooth, enlarged)
    gap = (p - smooth).abs().sum(1)  # (b, h, w)
    return (gap * unknown).sum() / unknown.sum().clamp(min=1)


def tree_filter(
    x: Float[Tensor, "b c h w"], guide: Float[Tensor, "b g h w"]
) -> Float[Tensor, "b c h w"]:
    r"""Return each pixel's average of all pixels, weighed by :math:`e^{-D_{ij}}` along the guide's tree.

    :math:`D_{ij}` sums the squared differences of the guide over the edges between i and j; the weights of
    each pixel are normalised to sum to one. Two passes, leaves to root and back.
    """
    parent = root_tree(spanning_tree(guide.detach()))  # (b, n)
    flat = guide.flatten(2)  # (b, g, n)
    weight = torch.exp(-(flat - _pick(flat, parent)).square().sum(1))  # (b, n)
    weight = weight.masked_fill(parent == torch.arange(parent.shape[1], device=x.device), 0.0)
    signal = torch.cat((x, torch.ones_like(x[:, :1])), 1).flatten(2)  # (b, c + 1, n)
    up = _from_leaves(signal, parent, weight)
    found = _from_root((1 - weight.square())[:, None] * up, parent, weight)
    return (found[:, :-1] / found[:, -1:]).reshape(x.shape)


def spanning_tree(guide: Float[Tensor, "b g h w"]) -> Bool[Tensor, "b 4 h w"]:
    """Return the minimum spanning tree: for each of four directions, which pixels have an edge that way.

    Borůvka: in every round each component takes its cheapest edge out. Edges of equal cost are told
    apart by their place in the image, so that the tree is unique and never closes a circle.
    """
    b, _, h, w = guide.shape
    n, device = h * w, guide.device
    pixel = torch.arange(n, device=device).reshape(h, w)
    first = torch.cat((pixel[:-1].flatten(), pixel[:, :-1].flatten()))  # edges down, then right
    second = torch.cat((pixel[1:].flatten(), pixel[:, 1:].flatten()))
    flat = guide.flatten(2)
    cost = (flat[:, :, first] - flat[:, :, second]).square().sum(1)  # (b, e)
    edge = cost.argsort(dim=1, stable=True)  # the edge of each rank
    edges = edge.shape[1]
    places = torch.arange(edges, device=device).expand(b, edges)
    rank = torch.empty_like(edge).scatter(1, edge, places)  # one order of all, without ties
    component = pixel.flatten().expand(b, n)
    taken = torch.zeros((b, edges + 1), dtype=torch.bool, device=device)
    for left in range(_doublings(n), 0, -1):
        one, two = component[:, first], component[:, second]  # (b, e)
        inner = one == two
        offer = torch.where(inner, edges, rank)
        best = torch.full((b, n), edges, device=device)  # by component: the rank of its edge out
        for end, pixels in ((one, first), (two, second)):
            # An inner edge offers nothing: to its pixel, lest all wait in line at a large component.
            best = best.scatter_reduce(1, torch.where(inner, pixels, end), offer, "amin")
        if device.type == "cpu" and not bool((best < edges).any()):
            break  # one component is left; a GPU is not waited for
        chosen = F.pad(edge, (0, 1), value=edges).gather(1, best)  # `edges` where there is none
        taken = taken.scatter(1, chosen, value=True)
        # Hook each component to the one across its edge; of a pair that chose each other the smaller stays.
        itself = pixel.flatten().expand(b, n)
        across = F.pad(one + two, (0, 1)).gather(1, chosen) - itself
        above = torch.where(best < edges, across, itself)
        mutual = (above.gather(1, above) == itself) & (itself < above)
        above = torch.where(mutual, itself, above)
        for _ in range(left):
            above = above.gather(1, above)
        component = above.gather(1, component)
    down = F.pad(taken[:, : (h - 1) * w].reshape(b, h - 1, w), (0, 0, 0, 1))
    right = F.pad(taken[:, (h - 1) * w : edges].reshape(b, h, w - 1), (0, 1))
    return torch.stack((down.roll(1, 1), right, down, right.roll(1, 2)), 1)


def root_tree(tree: Bool[Tensor, "b 4 h w"]) -> Int[Tensor, "b n"]:
    """Return every pixel's parent when the tree hangs from pixel 0, whose parent is itself.

    The Euler tour walks each edge there and back; its first arc into a pixel comes from the parent.
    """
    b, _, h, w = tree.shape
    n, device = h * w, tree.device
    has = tree.flatten(2)  # (b, 4, n)
    pixel = torch.arange(n, device=device)
    leads = [(pixel + step).clamp(0, n - 1) for step in (-w, 1, w, -1)]  # 4 x (n,)
    follow = torch.stack([_next_arc(has, leads[d], d) for d in range(4)], 1).flatten(1)  # (b, 4 n)
    arc = torch.arange(4 * n, device=device).expand(b, -1)
    first = has[:, :, 0].int().argmax(1)[:, None] * n  # the arc that leaves pixel 0 first
    walks = has.flatten(1) & (follow != first)  # the tour ends before it would begin again
    follow, to_come = torch.where(walks, follow, arc), walks.int()
    for _ in range(_doublings(2 * n)):
        to_come = to_come + to_come.gather(1, follow)
        follow = follow.gather(1, follow)
    left = to_come.reshape(b, 4, n)
    parent = pixel.expand(b, n)
    for d in range(4):  # an arc is taken later than its way back: it leads to the parent
        upward = has[:, d] & (left[:, (d + 2) % 4, leads[d]] > left[:, d])
        parent = torch.where(upward, leads[d], parent)
    return parent


def _next_arc(has: Bool[Tensor, "b 4 n"], leads: Int[Tensor, " n"], d: int) -> Int[Tensor, "b n"]:
    """Return the arc that follows the arc in direction d: at its end, the next edge round the pixel."""
    there = has[:, :, leads]  # (b, 4, n): the edges at the pixel it leads to
    back = (d + 2) % 4
    way = torch.full_like(there[:, 0], back, dtype=torch.int64)  # a leaf: back again
    for turn in (3, 2, 1):
        other = (back + turn) % 4
        way = torch.where(there[:, other], other, way)
    return way * has.shape[2] + leads


def _from_leaves(
    x: Float[Tensor, "b c n"], parent: Int[Tensor, "b n"], weight: Float[Tensor, "b n"]
) -> Float[Tensor, "b c n"]:
    r"""Return :math:`A_i = x_i + \sum_{children} w_c A_c`, twice as far with every step."""
    for _ in range(_doublings(x.shape[2])):
        parent = _home_at_zero(parent, weight)
        x = x.scatter_add(2, parent[:, None].expand_as(x), x * weight[:, None])
        parent, weight = parent.gather(1, parent), weight * weight.gather(1, parent)
    return x


def _from_root(
    x: Float[Tensor, "b c n"], parent: Int[Tensor, "b n"], weight: Float[Tensor, "b n"]
) -> Float[Tensor, "b c n"]:
    r"""Return :math:`S_i = x_i + w_i S_{parent}`, twice as far with every step."""
    for _ in range(_doublings(x.shape[2])):
        parent = _home_at_zero(parent, weight)
        x = x + weight[:, None] * _pick(x, parent)
        parent, weight = parent.gather(1, parent), weight * weight.gather(1, parent)
    return x


def _home_at_zero(parent: Int[Tensor, "b n"], weight: Float[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Return parents, a pixel's own place where its weight is zero: past the root, or beyond reach.

    What is added there is zero all the same, but not by thousands of pixels to one place.
    """
    return torch.where(weight > 0, parent, torch.arange(parent.shape[1], device=parent.device))


def _pick(x: Float[Tensor, "b c n"], index: Int[Tensor, "b n"]) -> Float[Tensor, "b c n"]:
    return x.gather(2, index[:, None].expand_as(x))


def _doublings(count: int) -> int:
    """Return how often a step must be doubled to cross so many pixels."""
    return max(1, math.ceil(math.log2(max(2, count))))
