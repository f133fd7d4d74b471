"""The work that all frameworks do: FedAvg of one U-Net at four sites, or a round in which nobody trains.

Only PyTorch, NumPy and the network itself are used here, so that every environment can import it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consilia.networks.unet import UNETS, UNet

SITES, IMAGES, SIZE, BATCH, ROUNDS, RATE = 4, 32, 64, 8, 6, 1e-3
TRAINS = "--noop" not in sys.argv
#: Set by `run.py` to something of its own for each run.
MARKER = "CONSILIA_PEER_RUN"


class Net(UNet):
    """The U-Net 16-256 with 1.8 million parameters, made without arguments as some frameworks ask.

    It lies in memory as ours does, so that frameworks are compared and not layouts.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(UNETS["unet-fedlppa"], 1, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch

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


def now_all() -> tuple[float, float]:
    """Return the time on the wall, and what all processes of this run have worked, to a hundredth.

    They are known by a variable that `run.py` sets and that children inherit; what a process that has
    ended worked is told by the one that waited for it.
    """
    marker = f"{MARKER}={os.environ[MARKER]}".encode()
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        except OSError:  # it has just ended
            continue
    return time.time(), ticks / os.sysconf("SC_CLK_TCK")
