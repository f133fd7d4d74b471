"""What a coordinator can tell of its federation: who is connected, who took part, which run was last."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from consilia.federation import processes
from consilia.federation.coordinator import Coordinator
from consilia.federation.kept import read_kept
from consilia.federation.up import door_answers
from consilia.runs.lock import is_held
from consilia.runs.store import RunFolder


class _Started(BaseModel):
    """What `run.json` holds: the run that was started last."""

    path: str


def status(coordinator: Coordinator, run: Path | None = None) -> dict[str, Any]:
    """Return who is connected, and who took part in each round of a run."""
    alive = processes.pids(coordinator.folder)
    nodes: Mapping[bytes, str] = {}
    if alive:
        link = coordinator.link()
        nodes = link.nodes() if link.alive() else {}
    keys = coordinator.enrolled()
    sites = {
        site: nodes.get(keys[site].encode(), "not registered") if site in keys else "not enrolled"
        for site in coordinator.federation.sites
    }
    found: dict[str, Any] = {
        "up": bool(alive),
        "processes": alive,
        "address": f"{coordinator.settings.host}:{coordinator.settings.port}",
        "door": door_answers(coordinator) if alive else None,
        "sites": sites,
    }
    last = run or latest_run(coordinator)
    if last is not None:
        found["run"] = _run_status(last)
    return found


def latest_run(coordinator: Coordinator) -> Path | None:
    """Return the run that was started last."""
    path = coordinator.folder / "run.json"
    if not path.is_file():
        return None
    out = "remove it, and name the run: `consilia coordinator resume RUN` goes on with it"
    found = Path(read_kept(path, _Started, out)["path"])
    return found if (found / "spec.toml").is_file() else None


def note_run(coordinator: Coordinator, path: Path) -> None:
    """Remember which run was started last, for `status` and `resume`."""
    started = {"path": str(path.resolve()), "time": time.time(), "pid": os.getpid()}
    RunFolder(coordinator.folder).write_json("run.json", started)


def _run_status(path: Path) -> dict[str, Any]:
    folder = RunFolder.open(path)
    spec = folder.spec()
    lines = folder.lines("rounds.jsonl")
    rounds = [
        {
            "round": line["round"],
            "took_part": line["took_part"],
            "events": line["events"],
            "bytes_up": line.get("bytes_up"),
            "bytes_down": line.get("bytes_down"),
            "seconds": line.get("seconds"),
        }
        for line in lines
    ]
    return {
        "path": str(path),
        "study": spec.study,
        "method": spec.method.name,
        "rounds": spec.rounds,
        "finished": folder.finished,
        "active": is_held(path / ".lock"),
        "history": rounds,
    }
