"""In-process FedAvg against a bare PyTorch loop of the same arithmetic: same batches, same network."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.harness import paired_ratio, plain, write
from consilia.datasets.phantoms import load_phantom
from consilia.engines.inprocess import run_in_process
from consilia.networks.unet import UNETS, UNet
from consilia.runs.spec import RunSpec, read_spec

ROUNDS = 4
SITES = ("graz", "hanoi", "izmir", "jaipur")


def spec_of(rounds: int) -> RunSpec:
    """Return FedAvg on four sites, with the study's own settings and nothing but training."""
    changes = {
        "rounds": rounds,
        "learner.objective": "dice",
        "learner.network": "unet-fedlppa",
        "training.keep_optimizer": True,
        "evaluate.selection": "last_round",
        "evaluate.every": 10_000,
        "evaluate.per_case": False,
    }
    return read_spec("phantom-lesions", changes)


def bare_loop(spec: RunSpec, data: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Train and average as a careful researcher would write it in one script."""
    training = spec.training
    network = UNet(UNETS[spec.learner.network], 1, 1)
    world = {k: v.clone() for k, v in network.state_dict().items()}
    moments: dict[str, dict[str, object]] = {}
    for number in range(spec.rounds):
        sums = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in world.items()}
        total = sum(len(image) for image, _ in data.values())
        for name, (image, target) in data.items():
            network.load_state_dict(world)
            optimizer = torch.optim.Adam(
                network.parameters(),
                lr=training.learning_rate,
                weight_decay=training.weight_decay,
                betas=training.betas,
                fused=True,
            )
            if name in moments:
                optimizer.load_state_dict(moments[name])
            network.train()
            generator = torch.Generator().manual_seed(number)
            for index in torch.split(
                torch.randperm(len(image), generator=generator), training.batch
            ):
                x, y = image[index].float() / 255, target[index][:, None].float()
                for axis in (-1, -2):
                    flip = (torch.rand(len(index), generator=generator) < 0.5)[:, None, None, None]
                    x, y = torch.where(flip, x.flip(axis), x), torch.where(flip, y.flip(axis), y)
                optimizer.zero_grad()
                p, y = F.sigmoid(network(x)).flatten(1), y.flatten(1)
                loss = (1 - (2 * (p * y).sum(1) + 1e-4) / (p.sum(1) + y.sum(1) + 1e-4)).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            moments[name] = optimizer.state_dict()
            for key, value in network.state_dict().items():
                sums[key] += value.double() * (len(image) / total)
        world = {key: value.to(world[key].dtype) for key, value in sums.items()}
    with torch.inference_mode():  # the run judges its last round; so does the loop
        network.load_state_dict(world)
        network.eval()
        for name in SITES:
            test = torch.from_numpy(load_phantom("phantom-lesions", name)[1].image.copy())
            for part in test.split(32):  # type: ignore[no-untyped-call]
                network(part.float() / 255)


def main(repeats: int = 7) -> None:
    """Print and write the ratio."""
    spec = spec_of(ROUNDS)
    data = {
        name: (
            torch.from_numpy(load_phantom("phantom-lesions", name)[0].image.copy()),
            torch.from_numpy(load_phantom("phantom-lesions", name)[0].truth.copy()),  # type: ignore[union-attr]
        )
        for name in SITES
    }
    torch.set_num_threads(torch.get_num_threads())

    def consilia() -> None:
        folder = Path(tempfile.mkdtemp())
        run_in_process(spec, folder / "run", data=folder)
        shutil.rmtree(folder)

    ratio, low, high, timings = paired_ratio(
        {"consilia": consilia, "bare": lambda: bare_loop(spec, data)}, "consilia", "bare", repeats
    )
    images = {name: len(image) for name, (image, _) in data.items()}
    result = {
        "ratio": ratio,
        "low": low,
        "high": high,
        "rounds": ROUNDS,
        "images": images,
        "seconds": plain(timings),
    }
    write("overhead", result)
    print(
        f"in-process FedAvg / bare loop: {ratio:.3f} (lowest {low:.3f}, highest {high:.3f}, {repeats} pairs)"
    )


if __name__ == "__main__":
    main()
