"""A site's portrait: its features on shared directions, and how far it follows the server."""

from __future__ import annotations

import torch
from torch import Tensor

from consilia.datasets.contract import Cases
from consilia.engines.messages import Portrait
from consilia.payload import Weights
from consilia.training.seeds import generator
from consilia.training.site import Workbench

DIRECTIONS = 8  # so many numbers of an image leave
MOST = 200  # of so many images of a site at most
BINS = 10
BATCH = 32


def portray(bench: Workbench, weights: Weights, cases: Cases, follow: Weights) -> Portrait:
    """Return what a site shows of itself: no image, no label, no feature vector, no single share.

    Args:
        bench: The network, placed at the site.
        weights: The model the site is judged by.
        cases: Its training cases; evenly spaced ones are taken where there are many.
        follow: How far each number of its decoders follows the server, where a method learns that.
    """
    network, device = bench.network(), bench.device
    state = network.state_dict()
    chosen = torch.linspace(0, len(cases) - 1, min(MOST, len(cases))).long().tolist()
    with torch.inference_mode():
        for name, value in weights.items():
            state[name].copy_(value)
        network.eval()
        parts = [
            bench.learner.embed(
                network, torch.from_numpy(cases.image[at]).to(device).float().div_(255)
            ).cpu()
            for at in (chosen[i : i + BATCH] for i in range(0, len(chosen), BATCH))
        ]
    features = torch.cat(parts) if parts else torch.zeros(0, DIRECTIONS)
    return Portrait(project(features, bench.seed), histograms(follow))


def project(features: Tensor, seed: int) -> Tensor:
    """Return features on a few random orthonormal directions, the same at every site of a run.

    Distances between images are kept roughly (Johnson and Lindenstrauss), so that the pictures drawn
    of all sites' points resemble those of the features, which stay.
    """
    width = features.shape[1]
    drawn = torch.randn(width, width, generator=generator(seed, "portrait"), dtype=torch.float64)
    directions: Tensor = torch.linalg.qr(drawn).Q[:, :DIRECTIONS]  # (width, at most DIRECTIONS)
    return torch.matmul(features.double(), directions).float()


def histograms(follow: Weights) -> dict[str, tuple[int, ...]]:
    """Return, for the main and the auxiliary decoder, how many shares lie in each tenth of [0, 1]."""
    parts: dict[str, list[Tensor]] = {}
    for name, share in follow.items():
        parts.setdefault("auxiliary" if name.startswith("aux.") else "main", []).append(share)
    return {
        part: tuple(int(n) for n in sum(torch.histc(s.float(), BINS, 0, 1) for s in shares))  # type: ignore[union-attr]  # a sum of tensors
        for part, shares in parts.items()
    }
