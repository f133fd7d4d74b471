"""A training step on a CPU: as PyTorch comes, with channels last, and with memory that is kept.

`python -m benchmarks.steps` times bare steps (forward, backward, Adam) of each network in processor seconds
of one thread. Every turn is a fresh process, because kept memory cannot be given up again; the three ways
take turns, and each is compared with the default of its own turn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch
from torch import nn

from benchmarks.harness import spread, told, write
from consilia.engines.machine import keep_memory
from consilia.networks.classifiers import DenseNet121, SmallCNN
from consilia.networks.unet import UNETS, UNet
from consilia.training.site import laid_out

#: Network, batch, side of the images.
CASES = (
    ("cnn-small", 16, 64),
    ("densenet121", 16, 64),
    ("unet-small", 8, 64),
    ("unet-fedlppa", 12, 64),
    ("unet-fedlppa", 12, 128),
    ("unet-fedia", 4, 64),
)
WAYS = ("default", "channels last", "and memory kept")
SECONDS = 2.0


def build(network: str) -> nn.Module:
    """Return a network for gray images and two outputs."""
    if network in UNETS:
        return UNet(UNETS[network], 1, 2)
    return SmallCNN(1, 2) if network == "cnn-small" else DenseNet121(1, 2)


def step_seconds(network: str, batch: int, side: int, way: str) -> float:
    """Return the processor seconds of a step, the mean of about two seconds of steps."""
    torch.set_num_threads(1)
    if way == WAYS[2]:
        keep_memory()
    module = build(network) if way == WAYS[0] else laid_out(build(network))
    adam = torch.optim.Adam(module.parameters(), fused=True)
    image = torch.rand(batch, 1, side, side)

    def step() -> None:
        adam.zero_grad()
        module(image).square().mean().backward()
        adam.step()

    for _ in range(3):
        step()
    steps, began = 0, time.process_time()
    while (spent := time.process_time() - began) < SECONDS:
        step()
        steps += 1
    return spent / steps


def in_a_process(network: str, batch: int, side: int, way: str) -> float:
    """Return the same of a fresh process."""
    words = [sys.executable, "-m", "benchmarks.steps", "--one", network, str(batch), str(side), way]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main(repeats: int = 5) -> None:
    """Print and write how many times as fast each way is as the default."""
    rows = []
    for network, batch, side in CASES:
        turns = [
            {way: in_a_process(network, batch, side, way) for way in WAYS} for _ in range(repeats)
        ]
        faster = {way: spread([turn[WAYS[0]] / turn[way] for turn in turns]) for way in WAYS[1:]}
        usual = spread([turn[WAYS[0]] for turn in turns])
        rows.append({"network": network, "batch": batch, "side": side, "s": usual, **faster})
        words = ", ".join(f"{way} x {told(found)}" for way, found in faster.items())
        print(f"{network:14s} {side:4d} px  {1e3 * usual['median']:6.1f} ms;  {words}", flush=True)
    write("steps", {"rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=4)
    given = parser.parse_args().one
    if given is None:
        main()
    else:
        print(step_seconds(given[0], int(given[1]), int(given[2]), given[3]))
