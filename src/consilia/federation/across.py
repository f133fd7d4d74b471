"""A run across hospitals: the same round loop, over Flower."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from consilia.declare import COMMON, Federation
from consilia.engines.inprocess import make_bench, make_start, only_test
from consilia.engines.machine import card, settle
from consilia.engines.memory import MemoryStore
from consilia.engines.rounds import MEBIBYTE, Listener, Rounds
from consilia.engines.site import SiteWorker
from consilia.errors import DeclarationError, RunError, UsageError, listing
from consilia.federation.coordinator import Coordinator
from consilia.federation.keys import read_key, read_public
from consilia.federation.processes import running
from consilia.federation.status import note_run
from consilia.federation.study import as_federation, for_sites
from consilia.methods import labels_seen, make_method, refuse_unfit
from consilia.methods.contract import AnyMethod
from consilia.payload import Layout
from consilia.readers.site import load_common
from consilia.runs.spec import RunSpec
from consilia.runs.store import RunFolder
from consilia.training.site import Workbench

#: What belongs to a run besides its spec.
RUN = "federation.json"
#: How often a run begins again by itself after the SuperLink was lost.
TRIES = 20
#: A reply may be this many times the network: several models, moments, prototypes.
TIMES_NETWORK = 8
Say = Callable[[str], None]


class _RunRecord(BaseModel):
    """What `federation.json` holds."""

    run: str
    coordinator: str
    flower: list[int]


def run_across(
    coordinator: Coordinator,
    spec: RunSpec,
    path: Path,
    *,
    data: Path,
    deadline: float = 3600.0,
    patience: float = 15.0,
    wait: float = 120.0,
    listeners: tuple[Listener, ...] = (),
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Run a study across the enrolled sites, or go on with it, and return what `metrics.json` holds.

    Args:
        coordinator: Whose SuperLink carries it.
        spec: What to run.
        path: The run folder at the coordinator.
        data: Where the path of a common test set begins.
        deadline: Seconds a site has to answer a message.
        patience: Seconds to wait in a round for a site that is not connected.
        wait: Seconds to wait before the first round for all sites to connect.
        listeners: Called with the line of each round.
        say: Called with a sentence where something is waited for.
    """
    spec = as_federation(spec)
    method = make_method(spec.method.name, spec.method.settings)
    if method.data != "own" or method.labels != "declared":
        msg = f"method '{spec.method.name}' needs all data in one place; `consilia run` has it"
        raise UsageError(msg)
    refuse_unfit(spec.method.name, method, spec.federation, spec.training)
    _refuse_uninvited(coordinator, spec)
    if not running(coordinator.folder):
        msg = f"the coordinator is down; `consilia coordinator up --at {coordinator.folder}` starts it"
        raise UsageError(msg)
    federation = labels_seen(method, spec.federation)
    settle(spec)
    bench = make_bench(spec, method, federation)
    folder = RunFolder.create(path, spec, data, card(spec, bench))
    path.chmod(0o700)
    with folder.locked():
        if folder.finished:
            return folder.metrics()
        note_run(coordinator, path)
        local = _local(spec, method, federation, bench, data, path)
        for left in range(TRIES, 0, -1):
            attempt = _Attempt(coordinator, spec, method, federation, bench, folder, local)
            done = attempt.go(deadline, patience, wait, listeners, say, last=left == 1)
            if done is not None:
                return done
            wait = min(wait, 60.0)
    msg = f"the SuperLink was lost {TRIES} times; `consilia coordinator resume` goes on from here"
    raise RunError(msg)


class _Attempt:
    """One Flower run of ours: from the last checkpoint to the end, or until the SuperLink is lost."""

    def __init__(
        self,
        coordinator: Coordinator,
        spec: RunSpec,
        method: AnyMethod,
        federation: Federation,
        bench: Workbench,
        folder: RunFolder,
        local: dict[str, SiteWorker],
    ) -> None:
        self.coordinator = coordinator
        self.spec = spec
        self.method = method
        self.federation = federation
        self.bench = bench
        self.folder = folder
        self.local = local

    def go(
        self,
        deadline: float,
        patience: float,
        wait: float,
        listeners: tuple[Listener, ...],
        say: Say,
        *,
        last: bool,
    ) -> dict[str, Any] | None:
        link = self.coordinator.link()
        from consilia.engines.flower import GONE, FlowerTransport, LinkLostError

        record = _run_record(self.folder, self.coordinator)
        keys = {
            site: (read_public(text), text.encode())
            for site, text in self.coordinator.enrolled().items()
        }
        rounds = session = None
        done = False
        try:
            _await_link(link, say)
            for left_behind in record["flower"]:
                link.stop(left_behind)
            session = link.open()
            self.folder.write_json(RUN, record | {"flower": [session.run]})
            transport = FlowerTransport(
                session,
                read_key(self.coordinator.folder / "coordinator.key"),
                keys,
                {"run": record["run"], "study": for_sites(self.spec)},
                limit(self.bench.layout),
                deadline,
                patience,
                self.local,
            )
            _await_sites(transport, self.federation.sites, wait, say)
            rounds = Rounds(
                method=self.method,
                spec=self.spec,
                federation=self.federation,
                start=make_start(self.spec, self.federation, self.bench),
                layout=self.bench.layout,
                transport=transport,
                memories=MemoryStore(self.folder.path / ".memories", MEBIBYTE),
                folder=self.folder,
                listeners=listeners,
            )
            metrics = rounds.run()
            done = True
        except LinkLostError as error:
            if last:
                raise
            say(f"{error}; going on from the last checkpoint")
            time.sleep(1)
            return None
        except GONE as error:
            say(
                f"the SuperLink was lost ({type(error).__name__}); going on from the last checkpoint"
            )
            time.sleep(1)
            return None
        finally:
            if rounds is not None:
                rounds.spool.remove()
                rounds.memories.remove()
            if session is not None:
                session.close(done=done)
        return metrics


def _refuse_uninvited(coordinator: Coordinator, spec: RunSpec) -> None:
    """Refuse a study with sites that were not invited or have not enrolled."""
    invited, enrolled = coordinator.federation.sites, coordinator.enrolled()
    strangers = [site for site in spec.federation.sites if site not in invited]
    if strangers:
        msg = f"the study has the site {listing(strangers)}, but invited are {listing(invited)}"
        raise DeclarationError(msg)
    waiting = [site for site in spec.federation.sites if site not in enrolled]
    if waiting:
        msg = (
            f"site {listing(waiting)} has not enrolled; `consilia coordinator admit` accepts the file "
            "that `consilia site init` wrote"
        )
        raise UsageError(msg)


def _run_record(folder: RunFolder, coordinator: Coordinator) -> dict[str, Any]:
    """Return what belongs to a run besides its spec: its name at the sites, and its Flower runs."""
    if not (folder.path / RUN).is_file():
        fresh = {"run": secrets.token_hex(16), "coordinator": str(coordinator.folder), "flower": []}
        folder.write_json(RUN, fresh)
    found: dict[str, Any] = folder.read_json(RUN, _RunRecord)
    return found


def limit(layout: Layout) -> int:
    """Return the most bytes a reply may have: some copies of the network, and room for the rest."""
    sizes = [
        dtype.itemsize * _product(shape)
        for group in layout.groups.values()
        for shape, dtype in group.values()
    ]
    return TIMES_NETWORK * sum(sizes) + MEBIBYTE


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _local(
    spec: RunSpec,
    method: AnyMethod,
    federation: Federation,
    bench: Workbench,
    data: Path,
    path: Path,
) -> dict[str, SiteWorker]:
    """Return the worker of a test set that all sites share, which is at the coordinator."""
    cases = load_common(federation, data, seed=spec.simulate.seed)
    if cases is None:
        return {}
    worker = SiteWorker(
        COMMON,
        method=method,
        federation=federation,
        spec=spec,
        data=only_test(cases, len(federation.labels)),
        bench=bench,
        memories=MemoryStore(path / ".common", MEBIBYTE),
        folder=path / "predictions",
    )
    return {COMMON: worker}


def _await_link(link: Any, say: Say, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    told = False
    while not link.alive():
        if time.monotonic() > until:
            msg = "the SuperLink does not answer; `consilia coordinator up` starts it"
            raise RunError(msg)
        if not told:
            say("waiting for the SuperLink")
            told = True
        time.sleep(0.5)


def _await_sites(transport: Any, sites: tuple[str, ...], wait: float, say: Say) -> None:
    """Wait for all sites to connect; after that the run begins with those that have."""
    until = time.monotonic() + wait
    told = False
    while True:
        online = transport.session.online()
        missing = [site for site in sites if transport.sites[site][1] not in online]
        if not missing or time.monotonic() > until:
            break
        if not told:
            say(f"waiting for {', '.join(missing)}")
            told = True
        time.sleep(0.3)
    if missing:
        say(f"beginning without {', '.join(missing)}")
