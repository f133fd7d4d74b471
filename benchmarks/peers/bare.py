"""FedAvg in one plain PyTorch script."""

from __future__ import annotations

import torch

from benchmarks.peers import work


def main() -> None:
    """Run all rounds."""
    torch.set_num_threads(1)
    network, sites = work.Net(), [work.data(site) for site in range(work.SITES)]
    world = {k: v.clone() for k, v in network.state_dict().items()}
    ends = []
    for _ in range(work.ROUNDS):
        sums = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in world.items()}
        for image, target in sites:
            network.load_state_dict(world)
            work.train(network, image, target)
            for key, value in network.state_dict().items():
                sums[key] += value.double() / work.SITES
        world = {key: value.to(world[key].dtype) for key, value in sums.items()}
        ends.append(work.now())
    work.tell(ends)


if __name__ == "__main__":
    main()
