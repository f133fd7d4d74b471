"""What methods cost: against the arithmetic they need, beside FedAvg, and as in FedLPPA's Table IX.

`python -m benchmarks.costs` (some minutes on one core) times two things in processor seconds of one thread.
*Arithmetic*: one round's work at a site, against a bare loop that makes the same passes and no more
(`benchmarks/bare.py`); both must come to the same weights where they draw the same random numbers.
*Rounds*: a round of every method in `METHODS`, on a small study of its family, beside FedAvg's.

`python -m benchmarks.costs --table` makes that table for every method that fits `phantom-disc@weak`: how many
numbers a network has, bytes each way per site, seconds a round and test images a second, on a CPU or a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import bare
from benchmarks.harness import RESULTS, spread, told, write
from consilia.datasets.contract import SiteData
from consilia.engines.inprocess import (
    load_own,
    load_sites,
    make_bench,
    make_start,
    run_in_process,
)
from consilia.methods import METHODS, labels_seen, make_method, why_not
from consilia.runs.spec import RunSpec, read_spec
from consilia.training.batch import ResidentCases
from consilia.training.site import Site, images_at_once, laid_out

GOAL, SECOND_ORDER_GOAL = 1.15, 1.2
QUIET: dict[str, object] = {
    "evaluate.every": 10_000,
    "evaluate.pictures": 0,
    "evaluate.selection": "last_round",
    "engine.threads": 1,
    "engine.checkpoint_every": 10_000,
}


# --- against the arithmetic ---


@dataclass(frozen=True)
class Case:
    """A method at a site of a study, the loop that does the same, and what the method needs in words.

    Attributes:
        before: How often the site has trained already, for methods that begin differently.
        exact: Whether both draw the same random numbers, so that they must come to the same weights.
    """

    study: str
    site: str
    needs: str
    loop: Callable[[bare.Place], bare.Weights]
    settings: Mapping[str, object] = field(default_factory=dict)
    changes: Mapping[str, object] = field(default_factory=dict)
    networks: tuple[str, ...] = ("main",)
    before: int = 0
    exact: bool = True
    goal: float = GOAL


MASKED = {"unknown": "masked", "rows": "labelled"}
HALVES = {"training.batch": 32, "training.augment": "none"}
CASES: dict[str, Case] = {
    "fedavg": Case("phantom-lesions", "graz", "a network trained", bare.fedavg),
    "fedprox": Case(
        "phantom-lesions", "graz", "a network trained, its distance at each step", bare.fedprox
    ),
    "fedia": Case("phantom-lesions", "graz", "a network trained, one inference pass", bare.fedia),
    "fedmix": Case(
        "phantom-mixed@uul",
        "ashford",
        "two networks trained, two inference passes",
        bare.fedmix,
        {"epsilon": 0.0},
        networks=("main", "second"),
    ),
    "fedst": Case(
        "phantom-mixed@uul",
        "ashford",
        "a network trained, each batch looked at first",
        bare.fedst,
        {"warmup": 0.0},
    ),
    "fedbn": Case("phantom-disc", "almeria", "a network trained", bare.fedbn, before=1),
    "fedala": Case(
        "phantom-disc",
        "almeria",
        "0.8 of a pass forward and backward for the shares, a network trained",
        bare.fedala,
        {"longest": 1},
        before=2,
    ),
    "fedlppa": Case(
        "phantom-disc",
        "almeria",
        "two batches for the shares, a network with two decoders trained",
        bare.fedlppa,
        {"la_passes": 1},
        before=2,
    ),
    "moon": Case(
        "phantom-findings@a",
        "kyoto",
        "a network trained, two more look at each batch",
        bare.moon,
        MASKED,
        networks=("main", "global", "previous"),
        before=1,
    ),
    "fixmatch": Case(
        "phantom-findings@a", "kyoto", "a network trained on two views of each batch", bare.fixmatch
    ),
    "fedlsm": Case(
        "phantom-findings@a",
        "kyoto",
        "an inference pass; strong views, a teacher's look, blends, a moving average",
        bare.fedlsm,
        networks=("main", "teacher"),
        before=1,
        exact=False,
    ),
    "fedpsl": Case(
        "phantom-findings@a",
        "kyoto",
        "two half batches forward and backward, backward through the first step",
        bare.fedpsl,
        changes=HALVES,
        goal=SECOND_ORDER_GOAL,
    ),
}


def arithmetic_spec(method: str, case: Case, steps: int) -> RunSpec:
    """Return a few steps of a study, with flips and Adam everywhere."""
    return read_spec(
        case.study,
        {
            "method.name": method,
            "training.steps": steps,
            "training.augment": "flips",
            "training.optimizer": "adam",
            "training.schedule": "constant",
            "training.keep_optimizer": False,
            "engine.device": "cpu",
            **case.changes,
        },
    )


def pair(method: str, case: Case, steps: int) -> dict[str, Callable[[], bare.Weights]]:
    """Return the method's work at the site and the bare loop's, each from what came down."""
    spec = arithmetic_spec(method, case, steps)
    made = make_method(method, case.settings)
    federation = labels_seen(made, spec.federation)
    bench = make_bench(spec, made, federation)
    data = load_own(spec, federation, case.site, Path())
    cases = ResidentCases.of(data.train, data.view, bench.device, federation.exclusive)
    bench.enter(case.site)

    def site(number: int) -> Site:
        place = (case.site, federation, bench, cases, spec.training, spec.seed, number, spec.rounds)
        return Site(*place, weighs=spec.learner.class_weight)

    server = made.start(make_start(spec, federation, bench), {case.site: made.introduce(site(1))})
    memory = None
    for number in range(1, case.before + 1):
        up, memory = made.local_update(made.broadcast(server, case.site), memory, site(number))
        server = made.aggregate(server, {case.site: up})
    down, now = made.broadcast(server, case.site), case.before + 1
    networks = {name: laid_out(bench.learner.build()) for name in case.networks}
    for network in networks.values():
        bench.learner.place(network, federation, case.site)
    place = bare.Place(spec, case.site, now, cases, networks, down, memory)

    def ours() -> bare.Weights:
        made.local_update(down, memory, site(now))
        return {name: value.detach() for name, value in bench.network().state_dict().items()}

    return {"bare": lambda: case.loop(place), "ours": ours}


def apart(one: bare.Weights, other: bare.Weights) -> float:
    """Return the distance of two networks, relative to the length of one."""
    names = [name for name, value in one.items() if value.is_floating_point() and name in other]
    square = sum(float((one[n] - other[n]).double().square().sum()) for n in names)
    own = sum(float(one[n].double().square().sum()) for n in names)
    return float((square / own) ** 0.5)


def measured(method: str, case: Case, repeats: int, steps: int) -> dict[str, Any]:
    """Return the ratio of the method's processor seconds to the bare loop's; the first turn warms up."""
    ways = pair(method, case, steps)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    weights: dict[str, dict[str, Tensor]] = {}
    for turn in range(repeats + 1):
        for way in [*ways][:: 1 if turn % 2 else -1]:
            began = time.process_time()
            found = ways[way]()
            if turn:
                seconds[way].append(time.process_time() - began)
            weights[way] = {name: value.clone() for name, value in found.items()}
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["bare"], strict=True)]
    far = apart(weights["ours"], weights["bare"])
    assert far < 1e-6 or not case.exact, f"{method}: the loop does something else ({far:.2g} apart)"
    return {
        "study": case.study,
        "needs": case.needs,
        "ratio": spread(ratios),
        "goal": case.goal,
        "seconds": {way: statistics.median(values) for way, values in seconds.items()},
        "weights_apart": far if case.exact else None,
    }


def arithmetic(repeats: int, steps: int, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Print and return each method's cost against the arithmetic that it needs."""
    torch.set_num_threads(1)
    rows = {}
    for method, case in CASES.items():
        if only and method not in only:
            continue
        row = rows[method] = measured(method, case, repeats, steps)
        print(f"{method:12s} {told(row['ratio'])}, goal {case.goal}; {case.needs}", flush=True)
    return rows


# --- beside FedAvg ---

#: The study on which each method's round is timed; `phantom-disc@weak` for the others that segment.
FAMILIES = {
    "phantom-lesions": (
        "fedavg local central oracle fedprox finetune fedadaptagg "
        "fedia nr-dice elr adele fedcorr rmd fednoro"
    ),
    "phantom-mixed@uul": "fedavg fedmix fedst fedrgd",
    "phantom-disc@weak": "fedavg fedlppa fedbn fedap fedrep metafed fedala fedlc fedicra",
    "phantom-findings@a": (
        "fedavg fedavg-masked iml central-fixmatch mixup-pme moon fedpsl fedlsm "
        "fedrs fixmatch fssl fedssp fedmatch fedmatch-plus"
    ),
    "phantom-skin": "fedavg fedpu",
}
#: Settings under which few rounds show every stage.
SHORT: dict[str, dict[str, object]] = {
    "fedala": {"longest": 1},
    "fedicra": {"longest": 1},
    "fedlppa": {"la_passes": 1},
    "fedmix": {"epsilon": 0.0},
    "fedia": {"warmup": 3},
}
#: Rounds 3 to 5 are timed: the first ones start up, the last one is judged.
IMAGES, ROUNDS = 8, 6
SMALL: dict[str, object] = {"training.steps": 2, "training.batch": 4}


def few(sites: Mapping[str, SiteData], count: int) -> dict[str, SiteData]:
    """Return sites with so many training images and two to be judged on."""
    found = {}
    for name, data in sites.items():
        at = np.arange(min(count, len(data.train)))
        held = None if data.validation is None else data.validation.take(np.arange(1))
        test = data.test.take(np.arange(min(2, len(data.test))))
        found[name] = SiteData(data.train.take(at), data.view.take(at), held, test)
    return found


def rounds_of(
    spec: RunSpec, sites: Mapping[str, SiteData], clock: Callable[[], float]
) -> tuple[list[float], dict[str, Any]]:
    """Run, and return what each round from the third to the last but one cost, and the line of that."""
    ends: list[float] = []
    lines: list[dict[str, Any]] = []

    def listen(line: dict[str, Any]) -> None:
        ends.append(clock())
        lines.append(line)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        run_in_process(spec, path / "run", data=path, sites=sites, listeners=(listen,))
    return [float(each) for each in np.diff(ends)[1:-1]], lines[-2]


def beside_fedavg(only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Print and return the processor seconds of a round of every method, beside FedAvg's."""
    missing = [name for name in METHODS if not any(name in f.split() for f in FAMILIES.values())]
    assert not missing, f"no study to time {missing} on; name one in FAMILIES"
    rows: dict[str, Any] = {}
    for study, family in FAMILIES.items():
        fedavg = None
        for method in family.split():
            if only and method not in (*only, "fedavg"):
                continue
            changes = {**QUIET, "rounds": ROUNDS, "engine.device": "cpu", **SMALL}
            settings = {f"method.{key}": value for key, value in SHORT.get(method, {}).items()}
            spec = read_spec(study, {**changes, "method.name": method, **settings})
            federation = labels_seen(make_method(method), spec.federation)
            sites = few(load_sites(spec, federation, Path()), IMAGES)
            seconds, line = rounds_of(spec, sites, time.process_time)
            own = statistics.median(seconds)
            fedavg = own if fedavg is None else fedavg
            rows[f"{method} ({study})" if method in rows else method] = {
                "study": study,
                "seconds": spread(seconds),
                "against_fedavg": own / fedavg,
                "bytes_up": line["bytes_up"],
                "bytes_down": line["bytes_down"],
            }
            print(
                f"{method:18s} {study:18s} {own:7.3f} s a round, {own / fedavg:5.2f} x FedAvg's",
                flush=True,
            )
    return rows


# --- FedLPPA's Table IX ---

#: Millions of numbers (of the network, sent, received), minutes a round and test images a second.
PAPER: dict[str, tuple[float, float, float, float, int]] = {
    "fedavg": (1.8135, 1.8135, 1.8135, 0.200, 43),
    "finetune": (1.8135, 1.8135, 1.8135, 0.200, 43),
    "fedprox": (1.8135, 1.8135, 1.8135, 0.724, 43),
    "fedbn": (1.8135, 1.8105, 1.8105, 0.204, 43),
    "fedap": (1.8135, 1.8105, 1.8105, 0.654, 43),
    "fedrep": (1.8135, 1.8132, 1.8132, 0.202, 43),
    "metafed": (1.8135, 1.8105, 1.8105, 0.722, 43),
    "fedlc": (2.1109, 2.1099, 2.1099, 0.634, 36),
    "fedala": (1.8135, 1.8135, 1.8135, 0.456, 43),
    "fedicra": (2.3372, 2.3372, 2.3372, 0.582, 30),
    "fedlppa": (2.8978, 2.2564, 2.8978, 0.710, 29),
}


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock of a device: one thread's processor time, or the wall clock of a GPU."""
    return time.perf_counter if device == "cuda" else time.process_time


def images_per_second(spec: RunSpec, method: str) -> tuple[int, float]:
    """Return the numbers in a method's network, and how many test images it predicts in a second."""
    bench = make_bench(spec, make_method(method), spec.federation)
    network, device, shape = bench.network().eval(), bench.device, spec.federation.image
    bench.enter(spec.federation.sites[0])
    many = images_at_once(shape.size, device)
    image = torch.rand(many, shape.channels, *shape.size, device=device)
    seconds = []
    with torch.no_grad():
        for _ in range(6):
            began = clock_of(device.type)()
            found = bench.learner.probabilities(network, image)
            float(found.sum())  # waits for the device
            seconds.append(clock_of(device.type)() - began)
    numbers = sum(parameter.numel() for parameter in network.parameters())
    return numbers, many / statistics.median(seconds[1:])


def table(steps: int, only: tuple[str, ...], study: str = "phantom-disc@weak") -> dict[str, Any]:
    """Print and return the paper's cost table for every method that fits a study."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    changes = {**QUIET, "rounds": 5, "training.steps": steps, "engine.device": device}
    first = read_spec(study, changes)
    if device == "cpu":
        torch.set_num_threads(1)
    sites = load_sites(first, first.federation, Path())
    rows = {}
    print("method              numbers      up MB    down MB   s a round   images/s   the paper's")
    for method in METHODS:
        if METHODS[method].method.data == "pooled" or why_not(method, first.federation) is not None:
            continue
        if only and method not in only:
            continue
        settings = {f"method.{key}": value for key, value in SHORT.get(method, {}).items()}
        spec = read_spec(study, {**changes, "method.name": method, **settings})
        numbers, rate = images_per_second(spec, method)
        try:
            seconds, line = rounds_of(spec, sites, clock_of(device))
        except Exception as error:  # one method's failure must not hide the others' figures
            rows[method] = {"numbers": numbers, "error": f"{type(error).__name__}: {error}"}
            print(f"{method:16s} {rows[method]['error']}", flush=True)
            continue
        many = max(1, len(line["took_part"]))
        rows[method] = {
            "numbers": numbers,
            "bytes_up": line["bytes_up"] / many,
            "bytes_down": line["bytes_down"] / many,
            "seconds": spread(seconds),
            "images_per_second": rate,
            "paper": PAPER.get(method),
        }
        print(
            f"{method:16s} {numbers:10,d} {line['bytes_up'] / many / 1e6:10.3f} "
            f"{line['bytes_down'] / many / 1e6:10.3f} {statistics.median(seconds):11.3f} "
            f"{rate:10.0f}   {PAPER.get(method, '')}",
            flush=True,
        )
    card = torch.cuda.get_device_name() if device == "cuda" else "none"
    return {"study": study, "device": device, "gpu": card, "steps": steps, "rows": rows}


def main() -> None:
    """Print and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="FedLPPA's Table IX")
    parser.add_argument("--rounds", action="store_true", help="only rounds beside FedAvg's")
    parser.add_argument("--arithmetic", action="store_true", help="only against bare loops")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, help="default: 4, and 10 as in the paper for the table"
    )
    parser.add_argument("--only", default="", help="some methods, with commas between them")
    given, _ = parser.parse_known_args()
    only = tuple(given.only.split(",")) if given.only else ()
    if given.table:
        found = table(given.steps or 10, only)
        name = f"costs-table-{found['device']}"
        before = RESULTS / f"{name}.json"
        if only and before.exists():  # a table may be made in parts
            found["rows"] = {**json.loads(before.read_text())["rows"], **found["rows"]}
        write(name, found)
        return
    if given.arithmetic or not given.rounds:
        rows = arithmetic(given.repeats, given.steps or 4, only)
        clock = "processor seconds, one thread"
        if not only:
            write("costs", {"rows": rows, "steps": given.steps or 4, "clock": clock})
    if given.rounds or not given.arithmetic:
        every = beside_fedavg(only)
        if not only:
            settings = {"images": IMAGES, **SMALL, "clock": "processor seconds, one thread"}
            write("costs-rounds", {"rows": every, **settings})


if __name__ == "__main__":
    main()
