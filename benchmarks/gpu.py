"""On a GPU: does the captured step compute what the eager loop computes, and how much faster is it?

Run on a machine with a GPU: `PYTHONPATH=src python -m benchmarks.gpu` (about half an hour; `--quick` two
minutes). Every figure is from one process: a bare PyTorch loop of FedAvg's arithmetic and Consilia's paths
take turns on the same images, which already lie on the card, and each path is divided by the bare loop of
its own turn. The result is written anew after every turn of every path, so that what was measured is there
whatever happens later; `--out FILE` says where.

`--methods fedpsl,fedlsm,fixmatch --cases densenet121:64,cnn-small:64:120` times other methods that fit a
network's task, FedAvg first. A case is a network, a size and, if one likes, the images of a site. Without a
GPU nothing is captured, and a small case only shows that all runs:
`--device cpu --quick --only speed --cases unet-tiny:16:24 --methods fedavg`.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import json
import logging
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from benchmarks.bare import Place, fedia, fedlppa, fedmix, fedmix_masks
from benchmarks.costs import FAMILIES, SHORT
from benchmarks.harness import spread, told, write
from consilia.datasets.contract import Cases, SiteData
from consilia.engines.inprocess import load_sites, make_bench, make_start, run_in_process
from consilia.engines.machine import why_no_kernels
from consilia.methods import METHODS, labels_seen, make_method, why_not
from consilia.runs.spec import RunSpec, read_spec
from consilia.runs.store import RunFolder
from consilia.training.batch import ResidentCases
from consilia.training.learner import CLASSIFIERS, NETWORKS, PlainLearner
from consilia.training.seeds import derive, generator
from consilia.training.site import Site, laid_out
from consilia.weaken import weaken

SITES = ("one", "two", "three", "four")
BATCH = 12
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
    ("phantom-findings@a", "fedlsm"),
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

#: Half of these methods' sites have no labels, as in the study of their family.
HALF = frozenset(FAMILIES["phantom-mixed@uul"].split()) - {"fedavg"}
#: Labels that may co-occur: what each site marks, so that methods for label sets have something to do.
MARKED = {"one": ["a", "b"], "two": ["b", "c"], "three": ["a", "c"], "four": ["a", "b", "c"]}
#: Settings under which the rounds that are timed are of the method's main stage.
SETTINGS: dict[str, dict[str, object]] = {
    **{name: SHORT[name] for name in ("fedmix", "fedala", "fedicra", "fedlppa")},
    **{name: {"warmup": 0.0} for name in ("fedst", "fedrgd", "fssl")},
    "fednoro": {"warmup": 1},
}

Sites = dict[str, SiteData]


@dataclass(frozen=True)
class Given:
    """Where to time, how many turns each path has, and of how many rounds.

    The first round of a turn starts up, and the last one is judged; those between are timed.
    """

    device: str
    repeats: int
    rounds: int = 4


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


def compared(spec: RunSpec, sites: Sites, device: str, kernels: str = "auto") -> dict[str, Any]:
    """Compare captured training in lanes with eager training, and eager training with itself."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        eager = {"capture": "off", "lanes": 1, "kernels": "off"}
        ways = {"eager": eager, "again": eager, "captured": {"lanes": 4, "kernels": kernels}}
        for name, engine in ways.items():
            table = spec.model_dump()
            table["engine"] |= {**engine, "device": device, "checkpoint_every": 1}
            found[name] = finished(RunSpec.model_validate(table), sites, Path(folder) / name)
    own = far(found["eager"][0], found["again"][0])
    apart = far(found["eager"][0], found["captured"][0])
    return {
        "eager_to_itself": own,
        "captured_to_eager": apart,
        "losses": {name: losses for name, (_, losses) in found.items()},
        "agrees": apart <= max(10 * own, 1e-3),
    }


def agreement(study: str, method: str, device: str, kernels: str) -> dict[str, Any]:
    """Return how well captured and eager training of a study agree after 3 rounds."""
    spec = read_spec(study, {"method.name": method, "rounds": 3, "evaluate.every": 100})
    federation = labels_seen(make_method(method), spec.federation)
    sites = load_sites(spec, federation, Path())
    return {"study": study, "method": method, **compared(spec, sites, device, kernels)}


# --- speed ---


def made(spec: RunSpec, images: int) -> Sites:
    """Return drawn images for every site, with the targets that it declares."""
    rng = np.random.default_rng(0)
    federation = spec.federation
    (height, width), labels = federation.image.size, len(federation.labels)
    sites = {}
    for name in SITES:
        image = rng.integers(0, 255, (images, 1, height, width), dtype=np.uint8)
        classes = federation.task == "classification"
        shape = (images, labels) if classes else (images, height, width)
        truth = (rng.random(shape) > 0.7).astype(np.uint8)
        cases = Cases(image, truth, *[tuple(map(str, range(images)))] * 2)
        view, _ = weaken(
            cases,
            federation.labels,
            federation[name],
            seed=0,
            exclusive=federation.exclusive,
            margin=spec.simulate.margin,
        )
        sites[name] = SiteData(cases, view, None, cases.take(np.arange(1)))
    return sites


def spec_of(
    network: str, size: int, method: str, rounds: int = Given.rounds, **engine: str | int
) -> RunSpec:
    """Return a run of one method with nothing but training."""
    classes = network in CLASSIFIERS
    forms = dict.fromkeys(SITES, "image" if classes else "mask")
    if method in HALF:
        forms |= {"three": "none", "four": "none"}
    marked = {name: {"annotates": MARKED[name]} if classes else {} for name in SITES}
    sites = [{"name": n, "data": "made", "supervision": forms[n], **marked[n]} for n in SITES]
    return RunSpec.model_validate(
        {
            "study": "gpu",
            "federation": {
                "name": "gpu",
                "task": "classification" if classes else "segmentation",
                "labels": ["a", "b", "c"] if classes else ["lesion"],
                "exclusive": not classes,
                "image": {"size": [size, size]},
                "site": sites,
            },
            "rounds": rounds,
            "method": {"name": method, "settings": SETTINGS.get(method, {})},
            "learner": {"network": network},
            "training": {"batch": BATCH, "augment": "flips"},
            "evaluate": {"every": 10_000, "pictures": 0},
            "engine": {"checkpoint_every": 10_000, "memory_mib": 8192, **engine},
        }
    )


def clock() -> float:
    """Return the time when the card has done all it was asked to."""
    if torch.cuda.is_initialized():
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
    spec = spec.model_copy(update={"rounds": spec.rounds + starting - 1})

    def run(ended: Callable[[], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            listen = (lambda line: ended(),)
            run_in_process(spec, path / "run", data=path, sites=sites, listeners=listen)

    return seconds_per_round(run, starting)


def bare(spec: RunSpec, sites: Sites) -> float:
    """Return the seconds of a FedAvg round as a careful researcher writes it in one eager script."""
    training, device = spec.training, spec.engine.device
    learner = PlainLearner.of(spec.learner, spec.federation)
    classes = spec.federation.task == "classification"
    data = {
        name: (
            torch.from_numpy(site.train.image.copy()).to(device),
            torch.from_numpy(np.asarray(site.train.truth).copy()).to(device),
        )
        for name, site in sites.items()
    }

    def run(ended: Callable[[], None]) -> None:
        torch.manual_seed(derive(spec.seed, "network", "main"))
        network = laid_out(learner.build().to(device))
        world = {k: v.clone() for k, v in network.state_dict().items()}
        for number in range(spec.rounds):
            sums = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in world.items()}
            for name, (image, target) in data.items():
                network.load_state_dict(world)
                optimizer = torch.optim.Adam(
                    network.parameters(), training.learning_rate, fused=True, weight_decay=1e-4
                )
                network.train()
                randoms = generator(0, name, number)
                for index in torch.split(torch.randperm(len(image), generator=randoms), BATCH):
                    index = index.to(device)
                    x, y = image[index].float() / 255, target[index].float()
                    if not classes:
                        y = y[:, None]
                    for axis in (-1, -2):
                        flip = (torch.rand(len(index), generator=randoms) < 0.5).to(device)
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


def own_bare(spec: RunSpec, sites: Sites) -> float:
    """Return the seconds of a round of the method's own arithmetic in one eager script, without averaging."""
    made, before = make_method(spec.method.name, spec.method.settings), OWN[spec.method.name][1]
    federation = labels_seen(made, spec.federation)
    bench = make_bench(spec, made, federation)
    cases = {
        name: ResidentCases.of(data.train, data.view, bench.device, federation.exclusive)
        for name, data in sites.items()
    }

    def site(name: str, number: int) -> Site:
        bench.enter(name)
        place = (name, federation, bench, cases[name], spec.training, spec.seed, number)
        return Site(*place, spec.rounds)

    server = made.start(
        make_start(spec, federation, bench), {n: made.introduce(site(n, 1)) for n in sites}
    )
    memories: dict[str, Any] = dict.fromkeys(sites)
    for number in range(1, before + 1):
        ups = {}
        for name in sites:
            down = made.broadcast(server, name)
            ups[name], memories[name] = made.local_update(down, memories[name], site(name, number))
        server = made.aggregate(server, ups)
    downs = {name: made.broadcast(server, name) for name in sites}
    names = ("main", "second") if spec.method.name == "fedmix" else ("main",)
    networks = {name: laid_out(bench.learner.build().to(bench.device)) for name in names}

    def run(ended: Callable[[], None]) -> None:
        for _ in range(spec.rounds):
            for name in sites:
                for network in networks.values():
                    bench.learner.place(network, federation, name)
                given = (downs[name], memories[name])
                place = Place(spec, name, before + 1, cases[name], networks, *given)
                marked = spec.federation[name].supervision != "none"
                loop = fedmix_masks if marked and len(names) > 1 else OWN[spec.method.name][0]
                loop(place)
            ended()

    return seconds_per_round(run)


def memory_gib() -> float:
    """Return the most memory of the card that was in use."""
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_initialized() else 0.0


def trained_images(method: str, images: int) -> int:
    """Return how many images a round trains on: all, and FedMix's for each of its two networks."""
    return len(SITES) * images * (2 if method == "fedmix" else 1)


#: Bare loops of methods' own arithmetic, and the rounds that come before one like those that are timed.
OWN: dict[str, tuple[Callable[[Place], Any], int]] = {
    "fedmix": (fedmix, 1),
    "fedia": (fedia, 1),
    "fedlppa": (fedlppa, 2),
}

ENGINES: dict[str, dict[str, Any]] = {
    "eager": {"capture": "off", "lanes": 1, "kernels": "off"},
    "captured": {"capture": "auto", "lanes": 1, "kernels": "off"},
    "lanes": {"capture": "auto", "kernels": "off"},
    "kernels": {"capture": "auto", "kernels": "on"},
    "searched": {"capture": "auto", "kernels": "off"},  # cuDNN times its algorithms first
    "compiled": {"capture": "auto", "compile": "on"},
    "bf16": {"capture": "auto", "precision": "bf16"},
    "bf16-compiled": {"capture": "auto", "compile": "on", "precision": "bf16"},
}


def released() -> None:
    """Give the card back what earlier paths recorded, so that each begins with it empty."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def turns(
    network: str,
    size: int,
    method: str,
    images: int,
    paths: tuple[str, ...],
    given: Given,
    note: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Let the bare loop and the paths of one method take turns; return images per second, and ratios."""
    plain = spec_of(network, size, "fedavg", given.rounds, device=given.device)
    bare_sites, sites = made(plain, images), made(spec_of(network, size, method), images)
    beside = ("bare", "own") if method in OWN else ("bare",)
    rates: dict[str, list[float]] = {name: [] for name in (*beside, *paths)}
    row: dict[str, Any] = {"network": network, "size": size, "images": images, "method": method}
    for turn in range(given.repeats):
        for name in [*rates][:: -1 if turn % 2 else 1]:
            released()
            torch.backends.cudnn.benchmark = name == "searched"
            try:
                if name == "bare":
                    rate = trained_images("fedavg", images) / bare(plain, bare_sites)
                elif name == "own":
                    engine = {"capture": "off", "kernels": "off", "device": given.device}
                    spec = spec_of(network, size, method, given.rounds, **engine)
                    rate = trained_images(method, images) / own_bare(spec, sites)
                else:
                    engine = {**ENGINES[name], "device": given.device}
                    spec = spec_of(network, size, method, given.rounds, **engine)
                    if name == "kernels":
                        row["no_kernels"] = why_no_kernels(spec, torch.device(given.device))
                    rate = trained_images(method, images) / consilia(spec, sites)
            except Exception as error:  # one path's failure must not hide the others' figures
                rate, row[f"{name}_error"] = float("nan"), f"{type(error).__name__}: {error}"
            rates[name].append(rate)
            note({**{k: row[k] for k in PLACE}, "path": name, "turn": turn, "rate": rate})
            row[f"{name}_gib"] = max(row.get(f"{name}_gib", 0.0), memory_gib())
    for name, each in rates.items():
        row[name] = statistics.median(each)
        for loop, suffix in zip(beside, ("", "_own"), strict=False):
            if name not in beside:
                pairs = zip(each, rates[loop], strict=True)
                row[f"{name}_ratios{suffix}"] = spread([mine / base for mine, base in pairs])
        if name not in beside:
            row[f"{name}_to_bare"] = row[f"{name}_ratios"]["median"]
    return row


#: What names a row.
PLACE = ("network", "size", "images", "method")


def unfit(method: str, network: str, size: int) -> str | None:
    """Return why a method is not timed with a network, or `None` if it is."""
    if METHODS[method].method.data == "pooled":
        return "pools the images of all sites"
    return why_not(method, spec_of(network, size, method).federation)


def speed(
    network: str,
    size: int,
    methods: tuple[str, ...],
    images: int,
    paths: tuple[str, ...],
    given: Given,
    note: Callable[[dict[str, Any]], None],
) -> Iterator[dict[str, Any]]:
    """Yield images per second of the bare loop and of Consilia's paths, each method beside FedAvg."""
    first: dict[str, Any] | None = None
    for method in methods:
        why = unfit(method, network, size)
        if why is not None:
            print(f"{network:14s} {size:4d} px {method:10s} not timed: it {why}", flush=True)
            continue
        row = turns(network, size, method, images, paths, given, note)
        first = first or row
        own = f", with its own arithmetic {row['own']:6.0f}" if "own" in row else ""
        print(f"{network:14s} {size:4d} px {method:10s} bare {row['bare']:6.0f}{own}", flush=True)
        for name in paths:
            line = f"  {name:12s} {row[name]:6.0f}, x {told(row[f'{name}_ratios'])}"
            if first["method"] == "fedavg":  # both over the bare loop beside them
                beside = row[f"{name}_to_bare"] / first[f"{name}_to_bare"]
                row[f"{name}_to_fedavg"] = beside
                line += f", {beside:.2f} of FedAvg's"
            if "own" in row:
                line += f"; of its own bare loop x {told(row[f'{name}_ratios_own'])}"
            wrong = row.get(f"{name}_error") or (name == "kernels" and row["no_kernels"]) or ""
            print(f"{line}  {wrong}".rstrip(), flush=True)
        yield row


def profile(images: int, device: str) -> str:
    """Return where the host spends its time in captured FedAvg rounds."""
    spec = spec_of("unet-fedlppa", 128, "fedavg", lanes=1, device=device)
    sites = made(spec, images)
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
    paths = ("captured", "lanes", "kernels")
    if not given.quick:
        paths = ("eager", *paths, "bf16")
    return (*paths, "compiled") if given.compile else paths


def cases(text: str, quick: bool) -> list[tuple[str, int, int, tuple[str, ...]]]:
    """Return network, size, images a site and usual methods of the named cases, or of the usual ones."""
    usual = {(network, size): (images, methods) for network, size, images, methods, _ in CASES}
    found = []
    for each in filter(None, text.split(",")):
        network, _, rest = each.partition(":")
        size, _, images = rest.partition(":")
        if not size.isdigit() or not (images or "1").isdigit():
            message = f"benchmarks.gpu: '{each}' is no case; write it as unet-fedia:128 or :128:240"
            raise SystemExit(message)
        named(network, NETWORKS)
        many, methods = usual.get((network, int(size)), (120, MAIN[:1]))
        found.append((network, int(size), int(images or many), methods))
    every = [(n, s, i, m) for n, s, i, m, always in CASES if always or not quick]
    return found or every


def agreements(chosen: tuple[str, ...], device: str, kernels: str) -> Iterator[dict[str, Any]]:
    """Print and yield how well captured and eager training agree, by study."""
    print("study              method     eager to itself  captured to eager")
    for study, method in AGREE:
        if chosen and method not in chosen:
            continue
        try:
            row = agreement(study, method, device, kernels)
        except Exception as error:  # the other rows are still worth having
            row = {"study": study, "method": method, "error": f"{type(error).__name__}: {error}"}
            print(f"{study:18s} {method:10s} {row['error']}", flush=True)
        else:
            print(
                f"{study:18s} {method:10s} {row['eager_to_itself']:15.2e} "
                f"{row['captured_to_eager']:18.2e}  {'agrees' if row['agrees'] else 'DIFFERS'}",
                flush=True,
            )
        yield row


def main() -> None:
    """Print both tables and write them, to benchmarks/results unless told otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn, and fewer networks")
    parser.add_argument(
        "--repeats", type=int, help="turns of the bare loop and each path; default: 3"
    )
    parser.add_argument("--rounds", type=int, default=Given.rounds, help="rounds of a turn, from 3")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/gpu.json or the like")
    parser.add_argument("--compile", action="store_true", help="also with compiled networks")
    parser.add_argument(
        "--kernels",
        choices=("auto", "on", "off"),
        default="auto",
        help="agreement is tried with them",
    )
    parser.add_argument("--only", choices=("agreement", "speed"))
    parser.add_argument("--methods", default="", help="such as fedmix,fedlsm; default: each case's")
    parser.add_argument("--cases", default="", help="such as unet-fedia:128,cnn-small:64:120")
    parser.add_argument("--paths", default="", help=f"of {','.join(ENGINES)}; default: most")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: a GPU where there is one"
    )
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    started = time.perf_counter()
    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    given = Given(device, asked.repeats or (1 if asked.quick else 3), max(asked.rounds, 3))
    chosen = named(asked.methods, METHODS)
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "none",
        "repeats": given.repeats,
        "rounds": given.rounds,
        "agreement": [],
        "turns": [],
        "speed": [],
    }

    def keep() -> None:
        result["seconds"] = time.perf_counter() - started
        write("gpu" if device == "cuda" else "gpu-cpu", result, asked.out)

    def note(turn: dict[str, Any]) -> None:
        result["turns"].append(turn)
        keep()

    if asked.only != "speed":
        for row in agreements(chosen, device, asked.kernels):
            result["agreement"].append(row)
            keep()
    if asked.only != "agreement":
        paths = named(asked.paths, ENGINES) or default_paths(asked)
        print("images/s, and how many times those of the bare loop beside it")
        for network, size, images, usual in cases(asked.cases, asked.quick):
            methods = tuple(dict.fromkeys(("fedavg", *chosen))) if chosen else usual
            for row in speed(network, size, methods, images, paths, given, note):
                result["speed"].append(row)
                keep()
        if not asked.cases:
            result["profile"] = profile(CASES[0][2], device)
            print(result["profile"])
    keep()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
