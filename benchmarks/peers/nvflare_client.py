"""What an NVFlare client runs; site-1 notes when each round's model comes."""

from __future__ import annotations

import os
from pathlib import Path

import nvflare.client as flare
import torch

from benchmarks.peers import work


def main() -> None:
    """Train whenever a model comes."""
    torch.set_num_threads(1)
    flare.init()
    name = flare.get_site_name()
    network, held = work.Net(), work.data(int(name.rpartition("-")[2]) - 1)
    while flare.is_running():
        given = flare.receive()
        if given is None:
            break
        if name == "site-1":
            with Path(os.environ["ROUNDS_FILE"]).open("a") as file:
                wall, processor = work.now_all()
                file.write(f"{wall} {processor}\n")
        network.load_state_dict(given.params)
        work.train(network, *held)
        meta = {"NUM_STEPS_CURRENT_ROUND": work.IMAGES}
        flare.send(flare.FLModel(params=network.state_dict(), metrics={"accuracy": 0.5}, meta=meta))


if __name__ == "__main__":
    main()
