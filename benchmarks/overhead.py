"""In-process FedAvg against a bare PyTorch loop of the same arithmetic: same batches, same network."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from benchmarks.harness import write
from consilia.datasets.contract import SiteData
from consilia.datasets.phantoms import load_phantom
from consilia.engines.inprocess import run_in_process
from consilia.labels import LabelView
from consilia.networks.unet import UNETS, UNet
from consilia.runs.spec import RunSpec, read_spec
from consilia.runs.store import RunFolder
from consilia.training.seeds import derive, generator
from consilia.training.site import laid_out

ROUNDS = 7  # rounds 2 to 6 are timed, with the one checkpoint that falls among them
IMAGES = 32
SITES = ("graz", "hanoi", "izmir", "jaipur")


def spec_of(rounds: int) -> RunSpec:
    """Return FedAvg on four sites, with the study's own settings and nothing but training."""
    changes = {
        "rounds": rounds,
        "learner.objective": "dice",
        "learner.network": "unet-fedlppa",
        "training.schedule": "constant",
        "training.keep_optimizer": True,
        "evaluate.selection": "last_round",
        "evaluate.every": 10_000,
        "evaluate.per_case": False,
        "engine.threads": 1,
    }
    return read_spec("phantom-lesions", changes)


def bare_loop(
    spec: RunSpec, data: dict[str, tuple[torch.Tensor, torch.Tensor]]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train and average as a careful researcher would write it in one script; return when rounds end."""
    training = spec.training
    torch.manual_seed(derive(spec.seed, "network", "main"))
    network = laid_out(UNet(UNETS[spec.learner.network], 1, 1))
    world = {k: v.clone() for k, v in network.state_dict().items()}
    moments: dict[str, dict[str, object]] = {}
    ends = []
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
            randoms = generator(spec.seed, name, number + 1, "batches main")
            torch.manual_seed(derive(spec.seed, name, number + 1, "layers", "main"))
            for index in torch.split(torch.randperm(len(image), generator=randoms), training.batch):
                x, y = image[index].float() / 255, target[index][:, None].float()
                chance = torch.rand(3, len(index), generator=randoms)
                for axis, drawn in ((-1, chance[0]), (-2, chance[1])):
                    flip = (drawn < 0.5)[:, None, None, None]
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
        ends.append(clock())
    return ends, world


def consilia_run(
    spec: RunSpec, sites: dict[str, SiteData]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Run the same through the engine, ledger, checks and log included; return when rounds end."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        listen = (lambda line: ends.append(clock()),)
        path = Path(folder)
        run_in_process(spec, path / "run", data=path, sites=sites, listeners=listen)
        found = RunFolder(path / "run").latest_checkpoint()
        assert found is not None
        state = load_file(found[1] / "server.safetensors")
    return ends, {
        k.removeprefix("weights/"): v for k, v in state.items() if k.startswith("weights/")
    }


def clock() -> float:
    """Return processor seconds: on a shared machine they tell work from waiting."""
    return time.process_time()


def main(repeats: int = 5) -> None:
    """Print and write the ratio of a round's cost; one thread, so that no thread spins and waits."""
    spec = spec_of(ROUNDS)
    names = SITES
    data, sites = {}, {}
    for name in names:
        cases = load_phantom("phantom-lesions", name)[0]
        few = cases.take(np.arange(IMAGES))
        assert few.truth is not None
        data[name] = (torch.from_numpy(few.image.copy()), torch.from_numpy(few.truth.copy()))
        view = LabelView(few.truth, np.ones((IMAGES, 1), dtype=bool))
        sites[name] = SiteData(few, view, None, cases.take(np.arange(8)))
    costs: dict[str, list[float]] = {"consilia": [], "bare": []}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    torch.set_num_threads(1)
    for turn in range(repeats + 1):
        for name in ("consilia", "bare") if turn % 2 else ("bare", "consilia"):
            run = consilia_run(spec, sites) if name == "consilia" else bare_loop(spec, data)
            ends, weights[name] = run
            if turn:  # not the first round, which starts up, nor the last, which is judged
                costs[name].append((ends[-2] - ends[0]) / (len(ends) - 2))
        same = all(
            torch.allclose(weights["bare"][k], w, atol=1e-4) for k, w in weights["consilia"].items()
        )
        assert same, "the two do not compute the same"
    ratios = [a / b for a, b in zip(costs["consilia"], costs["bare"], strict=True)]
    ratio = statistics.median(ratios)
    result = {
        "ratio": ratio,
        "low": min(ratios),
        "high": max(ratios),
        "pairs": repeats,
        "images": {name: len(image) for name, (image, _) in data.items()},
        "seconds_per_round": {name: statistics.median(values) for name, values in costs.items()},
        "clock": "processor seconds, one thread",
    }
    write("overhead", result)
    print(
        f"in-process FedAvg / bare loop, cost of a round at {len(names)} sites: {ratio:.3f} "
        f"(lowest {min(ratios):.3f}, highest {max(ratios):.3f}, {repeats} pairs)"
    )


if __name__ == "__main__":
    main()
