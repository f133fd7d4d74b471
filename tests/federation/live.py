"""A federation of real processes over TLS on loopback: coordinator, door and sites."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tomli_w

from consilia.engines.inprocess import run_in_process
from consilia.federation import coordinator as co
from consilia.federation import processes
from consilia.federation import site as si
from consilia.federation.status import status
from consilia.federation.up import up as bring_up
from consilia.runs.spec import RunSpec
from tests.federation.support import final_bytes, without_times

SEGMENTATION = {
    "task": "segmentation",
    "labels": ["lesion"],
    "image": {"size": [16, 16], "channels": 1},
    "site": [
        {"name": "ashford", "data": "dataset:phantom-mixed/ashford", "supervision": "mask"},
        {
            "name": "bergen",
            "data": "dataset:phantom-mixed/bergen",
            "supervision": "mask",
            "complete": False,
        },
    ],
}
CLASSIFICATION = {
    "task": "classification",
    "labels": [
        "infiltration",
        "effusion",
        "atelectasis",
        "nodule",
        "consolidation",
        "pneumothorax",
    ],
    "exclusive": False,
    "image": {"size": [16, 16], "channels": 1},
    "test": "dataset:phantom-findings/common",
    "site": [
        {"name": name, "data": f"dataset:phantom-findings/{name}", "supervision": "image"}
        for name in ("kyoto", "lagos")
    ],
}


class Live:
    """Starts everything, and stops what it started."""

    def __init__(self, path: Path, table: dict, name: str = "live", disks: tuple = ()) -> None:
        """Let coordinator and sites meet; the sites in `disks` have a small disk of their own."""
        self.path = path
        self.disks: list[Path] = []
        self.table = {"name": name, **table}
        self.sites = [site["name"] for site in table["site"]]
        self.children: list[subprocess.Popen] = []
        path.mkdir(parents=True, exist_ok=True)
        (path / "federation.toml").write_text(tomli_w.dumps(self.table))
        invitations = co.make_coordinator(
            path / "coordinator",
            path / "federation.toml",
            host="localhost",
            port=processes.free_port(),
            listen="127.0.0.1",
        )
        self.coordinator = co.Coordinator.open(path / "coordinator")
        self.folders = {}
        for site in table["site"]:
            folder = path / site["name"]
            if site["name"] in disks:
                self._mount(folder)
            joined = si.join(invitations[site["name"]], folder, site["data"])
            self.folders[site["name"]] = joined
            co.admit(self.coordinator, folder / f"{site['name']}.enrolment")

    def _mount(self, folder: Path, size: str = "24m") -> None:
        folder.mkdir(mode=0o700)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(folder)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("a small disk cannot be mounted here: that needs root")
        self.disks.append(folder)

    def up(self, *, nginx: bool = False) -> Live:
        bring_up(self.coordinator, nginx=nginx)
        for folder in self.folders.values():
            si.prepare(folder)
            processes.start(folder.folder)
        self.wait_online(self.sites)
        return self

    def wait_online(self, names, seconds=120.0) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            states = status(self.coordinator)["sites"]
            if all(states[name] == "online" for name in names):
                return
            time.sleep(0.3)
        raise AssertionError(states)

    def down(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            child.stdout.close()
        folders = [*(f.folder for f in self.folders.values()), self.coordinator.folder]
        with ThreadPoolExecutor() as pool:
            list(pool.map(processes.stop, folders))
        for folder in self.disks:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

    # --- runs ---

    def spec(self, method, **changes) -> RunSpec:
        segments = self.table["task"] == "segmentation"
        base = {
            "study": "live",
            "federation": self.table,
            "method": {"name": method},
            "rounds": 2,
            "training": {"batch": 4, "steps": 2, "augment": "flips"},
            "evaluate": {"every": 2, "pictures": 1},
            "learner": {"network": "unet-tiny" if segments else "cnn-small"},
            "engine": {"threads": 1, "device": "cpu"},
        }
        return RunSpec.model_validate(base | changes)

    def start(self, spec, name, *options) -> subprocess.Popen:
        """Start `consilia coordinator run` as a process of its own."""
        folder = self.path / "studies" / name
        folder.mkdir(parents=True, exist_ok=True)
        table = spec.model_dump(mode="json", exclude_none=True)
        (folder / "run.toml").write_text(tomli_w.dumps(table))
        words = ["coordinator", "run", str(folder), "--at", str(self.coordinator.folder)]
        words += ["--out", str(self.path / "runs" / name), "--json", "--wait", "60", *options]
        return self._call(words)

    def keep(self, who: str, *words: str) -> subprocess.Popen:
        """Start a coordinator or a site in the foreground, as systemd would."""
        return self._call([*words, "up", "--at", str(self.path / who), "--foreground"])

    def resume(self, name, *options) -> subprocess.Popen:
        words = ["coordinator", "resume", str(self.path / "runs" / name)]
        words += ["--at", str(self.coordinator.folder), "--json", *options]
        return self._call(words)

    def _call(self, words) -> subprocess.Popen:
        child = subprocess.Popen(
            [sys.executable, "-c", "from consilia.cli.main import main; main()", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.children.append(child)
        return child

    def run(self, name) -> Path:
        return self.path / "runs" / name

    def metrics(self, name) -> dict:
        return json.loads((self.run(name) / "metrics.json").read_text())

    def took_part(self, name) -> dict[int, list[str]]:
        found = {}
        path = self.run(name) / "rounds.jsonl"
        for line in path.read_text().splitlines() if path.is_file() else ():
            told = json.loads(line)
            found[told["round"]] = told["took_part"]
        return found

    # --- what must hold ---

    def assert_as_in_one_process(self, name, spec) -> None:
        """Compare with one process in which the same sites were absent."""
        took = self.took_part(name)
        absent = {
            site: tuple(r for r, here in took.items() if site not in here) for site in self.sites
        }
        absent = {site: rounds for site, rounds in absent.items() if rounds}
        rules = spec.participation.model_copy(update={"absent": absent})
        engine = spec.engine.model_copy(update={"checkpoint_every": 1})
        same = spec.model_copy(update={"participation": rules, "engine": engine})
        other = self.path / "one" / name
        expected = run_in_process(same, other, data=self.path)
        assert final_bytes(self.run(name), spec.rounds) == final_bytes(other, spec.rounds)
        found = self.metrics(name)
        if absent:  # who misses a round sends fewer bytes, but was asked
            keys = ("sites", "mean", "rounds", "method")
            assert [found[k] for k in keys] == [expected[k] for k in keys]
        else:
            assert without_times(found) == without_times(expected)

    # --- killing ---

    def pid(self, who: str, what: str) -> int | None:
        folder = self.coordinator.folder if who == "coordinator" else self.folders[who].folder
        return processes.pids(folder).get(what)

    def kill(self, who: str, what: str) -> None:
        """Kill a process and wait until the keeper has started another in its place."""
        pid = self.pid(who, what)
        assert pid is not None, f"{what} of {who} is not running"
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.pid(who, what) not in (None, pid), 30)


def until(ready, seconds=400) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


def finish(child, seconds=300) -> dict:
    """Wait for a command to end well and return the JSON it printed."""
    out, _ = child.communicate(timeout=seconds)
    assert child.returncode == 0, out
    return json.loads(out[out.index("{\n") :])
