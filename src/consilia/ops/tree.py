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
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

#: Where each pixel's steps of growing length lead, and the weight of the way.
Steps: TypeAlias = list[tuple[Tensor, Tensor]]


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
    enlarged = (
        F.interpolate(feature, p.shape[-2:], mode="bilinear", align_corners=False)
        for feature in features
    )
    smooth = p
    for steps in _steps_to_root([guide / math.sqrt(sigma), *enlarged]):
        smooth = _filtered(smooth, steps)
    gap = (p - smooth).abs().sum(1)  # (b, h, w)
    return (gap * unknown).sum() / unknown.sum().clamp(min=1)


def tree_filter(
    x: Float[Tensor, "b c h w"], guide: Float[Tensor, "b g h w"]
) -> Float[Tensor, "b c h w"]:
    r"""Return each pixel's average of all pixels, weighed by :math:`e^{-D_{ij}}` along the guide's tree.

    :math:`D_{ij}` sums the squared differences of the guide over the edges between i and j; the weights of
    each pixel are normalised to sum to one. Two passes, leaves to root and back.
    """
    (steps,) = _steps_to_root([guide])
    return _filtered(x, steps)


def _filtered(x: Float[Tensor, "b c h w"], steps: Steps) -> Float[Tensor, "b c h w"]:
    """Return each pixel's average of all pixels, on the tree whose steps to the root are given."""
    signal = torch.cat((x, torch.ones_like(x[:, :1])), 1).flatten(2)  # (b, c + 1, n)
    up = _from_leaves(signal, steps)
    found = _from_root((1 - steps[0][1].square())[:, None] * up, steps)
    return (found[:, :-1] / found[:, -1:]).reshape(x.shape)


def _steps_to_root(guides: Sequence[Float[Tensor, "b _ h w"]]) -> list[Steps]:
    """Return of each guide's tree where 1, 2, 4, ... steps towards the root lead, and their weights.

    The trees of all guides are found together: their images do not know of each other.
    """
    h, w = guides[0].shape[-2:]
    costs = torch.cat([_edge_costs(guide.detach()) for guide in guides])
    parent = root_tree(_tree_of(costs, h, w))  # (guides and images, n)
    here = torch.arange(h * w, device=parent.device)
    weights = []
    for guide, parents in zip(guides, parent.chunk(len(guides)), strict=True):
        flat = guide.flatten(2)  # (b, g, n)
        weight = torch.exp(-(flat - _pick(flat, parents)).square().sum(1))  # (b, n)
        weights.append(weight.masked_fill(parents == here, 0.0))
    weight = torch.cat(weights)
    every: list[Steps] = [[] for _ in guides]
    for _ in range(_doublings(h * w)):
        # A weight of zero leads past the root, or beyond reach: it then leads nowhere, and not
        # thousands of pixels to one place.
        parent = torch.where(weight > 0, parent, here)
        parts = (parent.chunk(len(guides)), weight.chunk(len(guides)))
        for steps, step in zip(every, zip(*parts, strict=True), strict=True):
            steps.append(step)
        parent, weight = parent.gather(1, parent), weight * weight.gather(1, parent)
    return every


def spanning_tree(guide: Float[Tensor, "b g h w"]) -> Bool[Tensor, "b 4 h w"]:
    """Return the minimum spanning tree: for each of four directions, which pixels have an edge that way.

    Borůvka: in every round each component takes its cheapest edge out. Edges of equal cost are told
    apart by their place in the image, so that the tree is unique and never closes a circle.
    """
    return _tree_of(_edge_costs(guide), guide.shape[2], guide.shape[3])


def _edges(h: int, w: int, device: torch.device) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
    """Return both ends of every edge of the grid: those that lead down, then those to the right."""
    pixel = torch.arange(h * w, device=device).reshape(h, w)
    first = torch.cat((pixel[:-1].flatten(), pixel[:, :-1].flatten()))
    return first, torch.cat((pixel[1:].flatten(), pixel[:, 1:].flatten()))


def _edge_costs(guide: Float[Tensor, "b g h w"]) -> Float[Tensor, "b e"]:
    h, w = guide.shape[-2:]
    first, second = _edges(h, w, guide.device)
    flat = guide.flatten(2)
    return (flat[:, :, first] - flat[:, :, second]).square().sum(1)


def _tree_of(cost: Float[Tensor, "b e"], h: int, w: int) -> Bool[Tensor, "b 4 h w"]:
    b, n, device = len(cost), h * w, cost.device
    first, second = _edges(h, w, device)
    here = torch.arange(n, device=device)
    edge = cost.argsort(dim=1, stable=True)  # the edge of each rank
    edges = edge.shape[1]
    places = torch.arange(edges, device=device).expand(b, edges)
    rank = torch.empty_like(edge).scatter(1, edge, places)  # one order of all, without ties
    component = here.expand(b, n)
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
        itself = here.expand(b, n)
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


def _from_leaves(x: Float[Tensor, "b c n"], steps: Steps) -> Float[Tensor, "b c n"]:
    r"""Return :math:`A_i = x_i + \sum_{children} w_c A_c`, twice as far with every step."""
    for parent, weight in steps:
        x = x.scatter_add(2, parent[:, None].expand_as(x), x * weight[:, None])
    return x


def _from_root(x: Float[Tensor, "b c n"], steps: Steps) -> Float[Tensor, "b c n"]:
    r"""Return :math:`S_i = x_i + w_i S_{parent}`, twice as far with every step."""
    for parent, weight in steps:
        x = x + weight[:, None] * _pick(x, parent)
    return x


def _pick(x: Float[Tensor, "b c n"], index: Int[Tensor, "b n"]) -> Float[Tensor, "b c n"]:
    return x.gather(2, index[:, None].expand_as(x))


def _doublings(count: int) -> int:
    """Return how often a step must be doubled to cross so many pixels."""
    return max(1, math.ceil(math.log2(max(2, count))))
