"""Listening in on a network: what goes into some of its layers, and what comes out; its statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from consilia.training.learner import NORMALISATION
from consilia.training.site import Site


@contextmanager
def tapped(layers: Sequence[nn.Module], side: str = "out") -> Iterator[dict[nn.Module, Tensor]]:
    """Yield a table that holds, after each forward pass, the last input or output of every layer.

    Args:
        layers: The layers to listen to.
        side: "in" for what a layer is given, "out" for what it returns.
    """
    heard: dict[nn.Module, Tensor] = {}

    def note(layer: nn.Module, given: tuple[Tensor, ...], returned: Tensor) -> None:
        heard[layer] = given[0] if side == "in" else returned

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def settle(site: Site, images: Tensor, network: str = "main") -> None:
    """Give a network's batch normalisation the statistics of some images of a site, as they are.

    For weights that came without any: under another model's statistics features grow from layer to layer.
    A single image has none to give.

    Args:
        site: Where.
        images: Positions of the images.
        network: Whose statistics are replaced; it is left in evaluation mode.
    """
    module = site.bench.network(network).eval()
    layers = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not layers or len(images) < 2:
        return
    usual = [layer.momentum for layer in layers]
    parts = torch.tensor_split(images, -(-len(images) // 32))  # of almost equal size
    with torch.no_grad(), site.bench.arithmetic():
        for done, part in enumerate(parts, start=1):
            for layer in layers:
                layer.train().momentum = 1 / done  # the mean over all parts so far
            site.learner.logits(module, site.train.cut(part).image)
    for layer, momentum in zip(layers, usual, strict=True):
        layer.eval().momentum = momentum


def norm_statistics(site: Site) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return mean and standard deviation of each channel that enters a normalisation layer, by layer.

    Over all training images as they are, in evaluation mode; only of layers below the decoder.
    """
    network, upper = site.network, set(site.learner.upper(site.network))
    layers: dict[nn.Module, str] = {
        layer: name
        for name, layer in network.named_modules()
        if isinstance(layer, NORMALISATION) and f"{name}.weight" not in upper
    }
    sums: dict[str, list[Tensor]] = {name: [] for name in layers.values()}
    network.eval()
    with torch.no_grad(), site.bench.arithmetic(), tapped(tuple(layers), "in") as heard:
        for part in torch.split(site.train.image, 32):
            site.learner.logits(network, part.float() / 255)
            for layer, x in heard.items():
                flat = x.double().transpose(0, 1).flatten(1)  # (channels, images and positions)
                count = torch.full_like(flat[:, 0], flat.shape[1])
                sums[layers[layer]].append(torch.stack((flat.sum(1), flat.square().sum(1), count)))
    means, deviations = {}, {}
    for name, parts in sums.items():
        total, squares, count = torch.stack(parts).sum(0)
        means[name] = (total / count).float().cpu()
        spread = (squares / count - (total / count).square()).clamp(min=0)
        deviations[name] = spread.sqrt().float().cpu()
    return means, deviations
