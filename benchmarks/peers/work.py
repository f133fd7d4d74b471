"""The work that all frameworks do: FedAvg of one U-Net at four sites, or a round in which nobody trains.

Only PyTorch, NumPy and the network itself are used here, so that every environment can import it.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from torch import Tensor

from consilia.networks.unet import UNETS, UNet

SITES, IMAGES, SIZE, BATCH, ROUNDS, RATE = 4, 32, 64, 8, 6, 1e-3
TRAINS = "--noop" not in sys.argv


class Net(UNet):
    """The U-Net 16-256 with 1.8 million parameters, made without arguments as some frameworks ask."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(UNETS["unet-fedlppa"], 1, 1)

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:  # noqa: A002  # pfl's name
        """Return the soft Dice loss."""
        p, y = self(inputs).sigmoid().flatten(1), targets.flatten(1)
        dice: Tensor = (2 * (p * y).sum(1) + 1e-4) / (p.sum(1) + y.sum(1) + 1e-4)
        return (1 - dice).mean()

    def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, float]:  # noqa: A002
        """Return nothing: nobody is judged here."""
        return {}


def data(site: int) -> tuple[Tensor, Tensor]:
    """Return the images and masks of a site."""
    rng = np.random.default_rng(site)
    image = rng.random((IMAGES, 1, SIZE, SIZE), dtype=np.float32)
    return torch.from_numpy(image), (torch.from_numpy(image) > 0.7).float()


def train(network: Net, image: Tensor, target: Tensor) -> None:
    """Train for one epoch, unless nobody trains."""
    if not TRAINS:
        return
    optimizer = torch.optim.Adam(network.parameters(), RATE, fused=True)
    network.train()
    for index in torch.split(torch.randperm(len(image)), BATCH):
        optimizer.zero_grad()
        network.loss(image[index], target[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def tell(ends: list[tuple[float, float]]) -> None:
    """Print what each round between the first and the last took as the last line."""
    wall, work = (np.diff(each)[:-1].tolist() for each in zip(*ends, strict=True))
    print("\n" + json.dumps({"seconds": wall, "processor": work}), flush=True)


def now() -> tuple[float, float]:
    """Return the time on the wall, and what this process has worked: other processes are not in it."""
    return time.time(), time.process_time()
