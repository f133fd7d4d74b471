"""On a GPU: does the captured step compute what the eager loop computes, and how much faster is it?

Run on a machine with a GPU: `PYTHONPATH=src python -m benchmarks.gpu` (about ten minutes; `--quick` two).
Every figure is from one process: a bare PyTorch loop of the same arithmetic, Consilia's eager path and
its captured path, on the same images that already lie on the card.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import logging
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from benchmarks.harness import write
from consilia.datasets.contract import Cases, SiteData
from consilia.engines.inprocess import load_sites, run_in_process
from consilia.labels import LabelView
from consilia.methods import METHODS, labels_seen, make_method
from consilia.runs.spec import RunSpec, read_spec
from consilia.runs.store import RunFolder
from consilia.training.learner import PlainLearner
from consilia.training.seeds import derive, generator

SITES = ("one", "two", "three", "four")
BATCH, ROUNDS = 12, 4  # the first round starts up, the last one is judged
#: Rounds that are unlike the later ones: FedLPPA's second learns its shares until they are steady.
STARTING = {"fedlppa": 2}
AGREE = (
    ("phantom-lesions", "fedavg"),
    ("phantom-lesions", "fedprox"),
    ("phantom-lesions", "fedia"),
    ("phantom-mixed@ubl", "fedmix"),
    ("phantom-mixed@uul", "fedst"),
    ("phantom-disc", "fedlppa"),
    ("phantom-findings", "fedavg"),
)

MAIN = ("fedavg", "fedmix", "fedia", "fedlppa")
#: Network, size, images a site, methods, and whether also in a quick run. Enough images that every lane
#: has recorded its steps in the first round.
CASES = (
    ("unet-fedlppa", 128, 240, MAIN, True),
    ("unet-fedlppa", 256, 120, MAIN, False),
    ("unet-fedia", 128, 120, MAIN[:1], True),
    ("densenet121", 64, 120, MAIN[:1], True),
    ("unet-small", 128, 240, MAIN[:1], False),
    ("unet-fedia", 256, 120, MAIN[:1], False),
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU it only tries itself out

Sites = dict[str, SiteData]


# --- agreement ---


def finished(
    spec: RunSpec, sites: Sites, path: Path
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Run, and return the server's last tensors and the mean loss of every round."""
    losses: list[float] = []

    def listen(line: dict[str, Any]) -> None:
        told = [site["loss"] for site in line["sites"].values() if "loss" in site]
        losses.append(statistics.fmean(told) if told else float("nan"))  # some methods send none

    run_in_process(spec, path, data=path, sites=sites, listeners=(listen,))
    found = RunFolder(path).latest_checkpoint()
    assert found is not None
    return load_file(found[1] / "server.safetensors"), losses


def far(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the distance of two servers' tensors, relative to their length."""
    names = [n for n, t in one.items() if t.is_floating_point() and n in other]
    square = sum(float((one[n].double() - other[n].double()).square().sum()) for n in names)
    return (square / sum(float(one[n].double().square().sum()) for n in names)) ** 0.5


def agreement(study: str, method: str) -> dict[str, object]:
    """Compare captured with eager training after 3 rounds, and eager training with itself."""
    spec = read_spec(study, {"method.name": method, "rounds": 3, "evaluate.every": 100})
    federation = labels_seen(make_method(method), spec.federation)
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        sites = load_sites(spec, federation, Path(folder))
        ways = {"eager": ("off", 1), "again": ("off", 1), "captured": ("auto", 4)}
        for name, (capture, lanes) in ways.items():
            table = spec.model_dump()
            table["engine"] |= {"capture": capture, "lanes": lanes, "device": DEVICE}
            table["engine"]["checkpoint_every"] = 1
            told[name] = finished(RunSpec.model_validate(table), sites, Path(folder) / name)
    own = far(told["eager"][0], told["again"][0])
    apart = far(told["eager"][0], told["captured"][0])
    return {
        "study": study,
        "method": method,
        "eager_to_itself": own,
        "captured_to_eager": apart,
        "losses": {name: losses for name, (_, losses) in told.items()},
        "agrees": apart <= max(10 * own, 1e-3),
    }


# --- speed ---


def made(spec: RunSpec, images: int, classes: bool) -> Sites:
    """Return drawn images and targets for every site."""
    rng = np.random.default_rng(0)
    (height, width), labels = spec.federation.image.size, len(spec.federation.labels)
    sites = {}
    for name in SITES:
        image = rng.integers(0, 255, (images, 1, height, width), dtype=np.uint8)
        shape = (images, labels) if classes else (images, height, width)
        truth = (rng.random(shape) > 0.7).astype(np.uint8)
        cases = Cases(image, truth, *[tuple(map(str, range(images)))] * 2)
        view = LabelView(truth, np.ones((images, labels), dtype=bool))
        sites[name] = SiteData(cases, view, None, cases.take(np.arange(1)))
    return sites


def spec_of(network: str, size: int, method: str, images: int, **engine: str | int) -> RunSpec:
    """Return a run of one method with nothing but training."""
    classes = network == "densenet121"
    form = "image" if classes else "mask"
    forms = dict.fromkeys(SITES, form)
    settings: dict[str, object] = {}
    if method == "fedmix":  # half of the sites without labels, every image selected
        forms |= {"three": "none", "four": "none"}
        settings = {"epsilon": 0.0}
    return RunSpec.model_validate(
        {
            "study": "gpu",
            "federation": {
                "name": "gpu",
                "task": "classification" if classes else "segmentation",
                "labels": ["a", "b", "c"] if classes else ["lesion"],
                "exclusive": not classes,
                "image": {"size": [size, size]},
                "site": [{"name": n, "data": "made", "supervision": forms[n]} for n in SITES],
            },
            "rounds": ROUNDS,
            "method": {"name": method, "settings": settings},
            "learner": {"network": network},
            "training": {"batch": BATCH, "augment": "flips"},
            "evaluate": {"every": 10_000, "pictures": 0},
            "engine": {"checkpoint_every": 10_000, "device": DEVICE, "memory_mib": 8192, **engine},
        }
    )


def clock() -> float:
    """Return the time when the card has done all it was asked to."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_per_round(run: Callable[[Callable[[], None]], None], starting: int = 1) -> float:
    """Return the median time of the rounds between those that start up and the last."""
    ends: list[float] = []
    run(lambda: ends.append(clock()))
    return statistics.median(np.diff(ends)[starting - 1 : -1])


def consilia(spec: RunSpec, sites: Sites) -> float:
    """Return the seconds of a round, ledger, checks and aggregation included."""
    starting = STARTING.get(spec.method.name, 1)
    spec = spec.model_copy(update={"rounds": ROUNDS + starting - 1})

    def run(ended: Callable[[], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            listen = (lambda line: ended(),)
            run_in_process(spec, path / "run", data=path, sites=sites, listeners=listen)

    return seconds_per_round(run, starting)


def bare(spec: RunSpec, sites: Sites) -> float:
    """Return the seconds of a FedAvg round as a careful researcher writes it in one eager script."""
    training = spec.training
    learner = PlainLearner.of(spec.learner, spec.federation)
    classes = spec.federation.task == "classification"
    data = {
        name: (
            torch.from_numpy(site.train.image.copy()).to(DEVICE),
            torch.from_numpy(np.asarray(site.train.truth).copy()).to(DEVICE),
        )
        for name, site in sites.items()
    }

    def run(ended: Callable[[], None]) -> None:
        torch.manual_seed(derive(spec.seed, "network", "main"))
        network = learner.build().to(DEVICE)
        world = {k: v.clone() for k, v in network.state_dict().items()}
        for number in range(ROUNDS):
            sums = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in world.items()}
            for name, (image, target) in data.items():
                network.load_state_dict(world)
                optimizer = torch.optim.Adam(
                    network.parameters(), training.learning_rate, fused=True, weight_decay=1e-4
                )
                network.train()
                randoms = generator(0, name, number)
                for index in torch.split(torch.randperm(len(image), generator=randoms), BATCH):
                    index = index.to(DEVICE)
                    x, y = image[index].float() / 255, target[index].float()
                    if not classes:
                        y = y[:, None]
                    for axis in (-1, -2):
                        flip = (torch.rand(len(index), generator=randoms) < 0.5).to(DEVICE)
                        flip = flip[:, None, None, None]
                        x = torch.where(flip, x.flip(axis), x)
                        y = y if classes else torch.where(flip, y.flip(axis), y)
                    optimizer.zero_grad()
                    z = network(x)
                    if classes:
                        loss = F.binary_cross_entropy_with_logits(z, y)
                    else:
                        p, t = z.sigmoid().flatten(1), y.flatten(1)
                        both = p.sum(1) + t.sum(1)
                        loss = (1 - (2 * (p * t).sum(1) + 1e-4) / (both + 1e-4)).mean()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                for key, value in network.state_dict().items():
                    sums[key] += value.double() / len(data)
            world = {key: value.to(world[key].dtype) for key, value in sums.items()}
            ended()

    return seconds_per_round(run)


def memory_gib() -> float:
    """Return the most memory of the card that was in use."""
    return torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0


def trained_images(method: str, images: int) -> int:
    """Return how many images a round trains on, each network's counted."""
    return len(SITES) * images * (2 if method == "fedmix" else 1)


ENGINES: dict[str, dict[str, Any]] = {
    "eager": {"capture": "off", "lanes": 1},
    "captured": {"capture": "auto", "lanes": 1},
    "lanes": {"capture": "auto"},
    "compiled": {"capture": "auto", "compile": "on"},
    "bf16": {"capture": "auto", "precision": "bf16"},
    "bf16-compiled": {"capture": "auto", "compile": "on", "precision": "bf16"},
}


def speed(
    network: str, size: int, methods: tuple[str, ...], images: int, engines: tuple[str, ...]
) -> list[dict[str, object]]:
    """Return images per second of the bare loop and of Consilia's paths."""
    rows = []
    first = spec_of(network, size, "fedavg", images)
    sites = made(first, images, network == "densenet121")
    reference = trained_images("fedavg", images) / bare(first, sites)
    for method in methods:
        if method not in METHODS:
            continue
        row: dict[str, Any] = {
            "network": network,
            "size": size,
            "method": method,
            "bare": reference,
        }
        for name in engines:
            spec = spec_of(network, size, method, images, **ENGINES[name])
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
            try:
                row[name] = trained_images(method, images) / consilia(spec, sites)
            except Exception as error:  # one method's failure must not hide the others' figures
                row[name], row[f"{name}_error"] = float("nan"), f"{type(error).__name__}: {error}"
            row[f"{name}_gib"] = memory_gib()
            row[f"{name}_to_bare"] = row[name] / reference
        rows.append(row)
        told = "  ".join(
            f"{name} {row[name]:6.0f} (x{row[f'{name}_to_bare']:.2f})" for name in engines
        )
        print(f"{network:14s} {size:4d} px {method:10s} bare {reference:6.0f}  {told}", flush=True)
    return rows


def profile(images: int) -> str:
    """Return where the host spends its time in captured FedAvg rounds."""
    spec = spec_of("unet-fedlppa", 128, "fedavg", images, lanes=1)
    sites = made(spec, images, classes=False)
    profiler = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:

        def listen(line: dict[str, Any]) -> None:
            clock()
            if line["round"] == 1:
                profiler.enable()  # from the end of the first round on

        path = Path(folder)
        run_in_process(spec, path / "run", data=path, sites=sites, listeners=(listen,))
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(22)
    lines = [line.strip()[:130] for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join(lines)


def named(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Return names that commas part; one that is not known ends the benchmark with a sentence."""
    names = tuple(filter(None, text.split(",")))
    for name in names:
        if name not in known:
            message = f"benchmarks.gpu: there is no {name!r}, only {', '.join(known)}"
            raise SystemExit(message)
    return names


def default_paths(given: argparse.Namespace) -> tuple[str, ...]:
    """Return the paths that are timed where none are named."""
    paths = ("captured", "lanes") if given.quick else ("eager", "captured", "lanes", "bf16")
    return (*paths, "compiled") if given.compile else paths


def main() -> None:
    """Print both tables and write benchmarks/results/gpu.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer images and networks")
    parser.add_argument("--compile", action="store_true", help="also with compiled networks")
    parser.add_argument("--only", choices=("agreement", "speed"))
    parser.add_argument("--methods", default="", help="such as fedavg,fedmix; default: all")
    parser.add_argument("--cases", default="", help="such as unet-fedia:128; default: all")
    parser.add_argument("--paths", default="", help=f"of {','.join(ENGINES)}; default: most")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    started = time.perf_counter()
    chosen = set(filter(None, given.methods.split(",")))
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else "none",
        "agreement": [],
        "speed": [],
    }
    if given.only != "speed":
        print("study              method     eager to itself  captured to eager")
        for study, method in AGREE:
            if method in METHODS and method in (chosen or METHODS):
                try:
                    row = agreement(study, method)
                except Exception as error:  # the other rows are still worth having
                    row = {
                        "study": study,
                        "method": method,
                        "error": f"{type(error).__name__}: {error}",
                    }
                    print(f"{study:18s} {method:10s} {row['error']}", flush=True)
                else:
                    print(
                        f"{study:18s} {method:10s} {row['eager_to_itself']:15.2e} "
                        f"{row['captured_to_eager']:18.2e}  {'agrees' if row['agrees'] else 'DIFFERS'}",
                        flush=True,
                    )
                result["agreement"].append(row)
    if given.only != "agreement":
        paths = named(given.paths, ENGINES) or default_paths(given)
        wanted = named(given.cases, [f"{network}:{size}" for network, size, *_ in CASES])
        print("images/s, and how many times the bare loop's")
        for network, size, images, methods, always in CASES:
            if f"{network}:{size}" in wanted or (not wanted and (always or not given.quick)):
                each = tuple(method for method in methods if method in (chosen or methods))
                result["speed"] += speed(network, size, each, images, paths)
        if not given.cases:
            result["profile"] = profile(CASES[0][2])
            print(result["profile"])
    result["seconds"] = time.perf_counter() - started
    write("gpu", result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
