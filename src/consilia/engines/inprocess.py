"""The in-process engine: sites run in one process, one after another or, on a GPU, in a few lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import COMMON, POOLED, Federation
from consilia.engines.lanes import Lane, Lanes
from consilia.engines.machine import (
    card,
    choose_device,
    settle,
    warn_of_kernels,
    why_no_kernels,
)
from consilia.engines.memory import MemoryStore
from consilia.engines.rounds import MEBIBYTE, Listener, Rounds
from consilia.engines.site import SiteWorker
from consilia.engines.transport import Transport
from consilia.errors import DataError, RunError, listing
from consilia.labels import LabelView
from consilia.methods import labels_seen, make_method, refuse_unfit
from consilia.methods.contract import AnyMethod, Start
from consilia.payload import Record
from consilia.readers.site import load_common, load_site, pool
from consilia.runs.results import Fingerprints
from consilia.runs.spec import RunSpec
from consilia.runs.store import RunFolder
from consilia.training.learners import make_learner, refuse_crop
from consilia.training.site import Workbench

#: So many sites at a time fill a GPU with small networks.
LANES = 4


@dataclass(frozen=True)
class InProcess:
    """Hands each record to its site's worker, in the order the records come."""

    workers: Mapping[str, SiteWorker]

    def exchange(
        self, records: Iterable[Record], deadline: float | None = None
    ) -> Iterator[Record]:
        """Yield each site's reply."""
        for record in records:
            yield self.workers[record.site].handle(record)


def run_in_process(
    spec: RunSpec,
    path: Path,
    *,
    data: Path,
    listeners: tuple[Listener, ...] = (),
    sites: Mapping[str, SiteData] | None = None,
) -> dict[str, Any]:
    """Run a study in this process, or go on with it, and return what `metrics.json` holds.

    Args:
        spec: What to run.
        path: The run folder; created, or resumed where it holds this very run.
        data: Where relative data paths begin.
        listeners: Called with the line of each round.
        sites: The sites' data, where it is already in memory.
    """
    method = make_method(spec.method.name, spec.method.settings)
    refuse_unfit(spec.method.name, method, spec.federation, spec.training)
    federation = labels_seen(method, spec.federation)
    settle(spec)
    if sites is None:
        sites = load_sites(spec, federation, data)
    common = load_common(federation, data, seed=spec.simulate.seed)
    if federation.test is None and not any(len(site.test) for site in sites.values()):
        msg = (
            "no site has test images, so nothing could be judged; mark some as 'test' in cases.csv"
        )
        raise DataError(msg)
    benches = make_benches(spec, method, federation)
    start = make_start(spec, federation, benches[0])
    folder = RunFolder.create(path, spec, data, card(spec, benches[0]))
    with folder.locked():
        if folder.finished:
            return folder.metrics()
        know_again(folder, sites)
        cap = spec.engine.memory_mib * MEBIBYTE // 2
        memories = MemoryStore(path / ".memories", cap)
        workers = make_workers(spec, method, federation, sites, benches, memories, path, common)
        transport, lanes = make_transport(workers, benches)
        rounds = Rounds(
            method=method,
            spec=spec,
            federation=federation,
            start=start,
            layout=benches[0].layout,
            transport=transport,
            memories=memories,
            folder=folder,
            listeners=listeners,
        )
        try:
            return rounds.run()
        except OSError as error:
            msg = f"run folder '{path}' cannot be written: {error.strerror or error}"
            raise RunError(msg) from error
        finally:
            for lane in lanes:
                lane.close()
            for bench in benches:
                bench.close()
            rounds.spool.remove()
            memories.remove()


def know_again(folder: RunFolder, sites: Mapping[str, SiteData]) -> None:
    """Note what the sites' data is, or refuse to go on with a run whose data has changed since."""
    now = {name: data.fingerprint for name, data in sites.items()}
    if not (folder.path / "data.json").is_file():
        folder.write_json("data.json", now)
        return
    before = folder.read_json("data.json", Fingerprints)
    changed = sorted(name for name in now if before.get(name) != now[name])
    if changed:
        msg = (
            f"the images or labels of {listing(changed)} are not those that run '{folder.path}' "
            "began with; put them back, or begin a new run with another --out"
        )
        raise RunError(msg)


def load_sites(spec: RunSpec, federation: Federation, data: Path) -> dict[str, SiteData]:
    """Return the data of every site of a run."""
    return {name: load_own(spec, federation, name, data) for name in federation.sites}


def load_own(spec: RunSpec, federation: Federation, name: str, data: Path) -> SiteData:
    """Return the data of one site of a run."""
    return load_site(
        federation,
        name,
        data,
        seed=spec.simulate.seed,
        completeness=spec.simulate.completeness.get(name),
        margin=spec.simulate.margin,
        validation=spec.evaluate.validation,
    )


def make_bench(spec: RunSpec, method: AnyMethod, federation: Federation) -> Workbench:
    """Return the network and device that all sites share."""
    learner = method.learner(make_learner(spec.learner, federation))
    refuse_crop(learner, spec.training.crop)
    device = choose_device(spec)
    return Workbench(
        learner,
        federation,
        device,
        spec.seed,
        capture=spec.engine.capture == "auto",
        compile_=spec.engine.compile == "on",
        precision=spec.engine.precision,
        # Classifiers have no layers for kernels of our own, so none are tried for them.
        fused=federation.task == "segmentation" and why_no_kernels(spec, device) is None,
    )


def make_benches(spec: RunSpec, method: AnyMethod, federation: Federation) -> tuple[Workbench, ...]:
    """Return one workbench for each lane: as many as the run file says, at most one a site."""
    wanted, device = spec.engine.lanes, choose_device(spec)
    if wanted == "auto":
        wanted = LANES if device.type == "cuda" else 1
    if method.data == "pooled":
        wanted = 1
    many = min(wanted, len(federation.site))
    benches = tuple(make_bench(spec, method, federation) for _ in range(many))
    warn_of_kernels(spec, benches[0])
    return benches


def make_transport(
    workers: Mapping[str, SiteWorker], benches: Sequence[Workbench]
) -> tuple[Transport, tuple[Lane, ...]]:
    """Return what carries records to the workers, and the lanes it uses."""
    if len(benches) == 1:
        return InProcess(workers), ()
    lanes = tuple(Lane(bench.device) for bench in benches)
    for bench, lane in zip(benches, lanes, strict=True):
        bench.pause = lane.pause
    if benches[0].device.type == "cuda":
        torch.cuda.synchronize()  # images and networks were put there on another stream
    of = {id(bench): lane for bench, lane in zip(benches, lanes, strict=True)}
    return Lanes(workers, {name: of[id(worker.bench)] for name, worker in workers.items()}), lanes


def make_start(spec: RunSpec, federation: Federation, bench: Workbench) -> Start:
    """Return what the method starts from."""
    init = None if spec.learner.init is None else Path(spec.learner.init)
    return Start(
        weights=bench.start(init=init),
        draw=bench.start,
        groups=bench.groups,
        head_rows=bench.learner.head_rows(),
        federation=federation,
        rounds=spec.rounds,
        seed=spec.seed,
    )


def make_workers(
    spec: RunSpec,
    method: AnyMethod,
    federation: Federation,
    sites: Mapping[str, SiteData],
    benches: Sequence[Workbench],
    memories: MemoryStore,
    path: Path,
    common: Cases | None,
) -> dict[str, SiteWorker]:
    """Return a worker for every site, and for the pooled and the common one where there are such."""
    held = dict(sites)
    if method.data == "pooled":
        held[POOLED] = pool(sites)
    if common is not None:
        held[COMMON] = only_test(common, len(federation.labels))
    return {
        name: SiteWorker(
            name,
            method=method,
            federation=federation,
            spec=spec,
            data=held[name],
            bench=benches[place % len(benches)],
            memories=memories,
            folder=path / "predictions",
        )
        for place, name in enumerate(held)
    }


def only_test(cases: Cases, labels: int) -> SiteData:
    """Return a site that trains on nothing and is judged on these cases."""
    nothing = cases.take(np.arange(0))
    assert nothing.truth is not None
    return SiteData(
        nothing, LabelView(nothing.truth, np.zeros((0, labels), dtype=bool)), None, cases
    )
