"""Keeps the processes of a coordinator or a site alive: one keeper, its children, their logs.

`up` starts a keeper in the background (or runs it in the foreground, for systemd); the keeper starts
what `processes.json` lists, starts again what ends, and takes its children with it when it ends. A
child that is killed may leave children of its own (nginx does, and they hold the port), so each has
a process group, which goes with it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from consilia.atomic import write_whole
from consilia.errors import RunError, UsageError
from consilia.runs.lock import is_held, take_lock

LIST = "processes.json"
PIDS = "pids.json"
LOCK = ".keeper"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
#: Keepers outlive the command that started them; one that ends before it is laid to rest here.
_KEEPERS: list[subprocess.Popen[bytes]] = []


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def command(name: str) -> str:
    """Return the path of a program that came with Flower, beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        found = shutil.which(name)
        if found is None:
            msg = (
                f"'{name}' is not installed; in the checkout, "
                "`pip install -c constraints.txt -e '.[flower]'`"
            )
            raise UsageError(msg)
        return found
    return str(path)


def write_list(
    folder: Path, commands: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> None:
    """Write what the keeper of a folder starts."""
    table = {
        "commands": {k: list(v) for k, v in commands.items()},
        "environment": dict(environment),
    }
    write_whole(folder / LIST, json.dumps(table, indent=1) + "\n", mode=0o600)


def start(folder: Path) -> None:
    """Start the keeper of a folder in the background; one that runs already is left as it is."""
    if running(folder):
        return
    (folder / "log").mkdir(mode=0o700, exist_ok=True)
    with (folder / "log" / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "consilia.federation.processes", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _KEEPERS.append(keeper)


def wait_for(folder: Path, ready: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until something is so, or say where to look."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if ready():
            return
        time.sleep(0.2)
    msg = f"{what} did not come up within {seconds:.0f} s; the files in '{folder / 'log'}' say why"
    raise RunError(msg)


def running(folder: Path) -> bool:
    """Return whether a keeper holds the folder."""
    return is_held(folder / LOCK)


def pids(folder: Path) -> dict[str, int]:
    """Return the process of every name, while the keeper runs."""
    try:
        found = json.loads((folder / PIDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): int(v) for k, v in found.items()} if running(folder) else {}


def stop(folder: Path, seconds: float = 20.0) -> bool:
    """End the keeper and its children; return whether there was one."""
    keeper = pids(folder).get("keeper")
    if keeper is None:
        return False
    os.kill(keeper, signal.SIGTERM)
    until = time.monotonic() + seconds
    while running(folder) and time.monotonic() < until:
        time.sleep(0.1)
    if running(folder):
        os.kill(keeper, signal.SIGKILL)
    for one in [one for one in _KEEPERS if one.pid == keeper]:
        one.wait(timeout=seconds)
        _KEEPERS.remove(one)
    return True


class Keeper:
    """Starts the processes of a folder and starts them again when they end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        table: dict[str, Any] = json.loads((folder / LIST).read_text(encoding="utf-8"))
        self.commands: dict[str, list[str]] = table["commands"]
        self.environment: dict[str, str] = table["environment"]
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped = threading.Event()
        self._tries = dict.fromkeys(self.commands, 0)
        self._due = dict.fromkeys(self.commands, 0.0)
        self._began = dict.fromkeys(self.commands, 0.0)

    def run(self) -> None:
        """Keep everything going until SIGTERM."""
        try:
            held = take_lock(self.folder / LOCK, patience=3)
        except BlockingIOError:
            msg = f"'{self.folder}' is already up"
            raise RunError(msg) from None
        with held:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stopped.set())
            try:
                while not self.stopped.wait(0.2):
                    self._look()
            finally:
                self._end()

    def _look(self) -> None:
        now = time.monotonic()
        for name in self.commands:
            child = self.children.get(name)
            if child is not None and child.poll() is None:
                continue
            if child is not None:
                _sweep(child)
                self._log(f"{name} ended with {child.returncode}")
                lived = now - self._began[name]
                self._tries[name] = 0 if lived > 30 else self._tries[name] + 1
                self._due[name] = now + PAUSES[min(self._tries[name], len(PAUSES) - 1)]
                del self.children[name]
            if now >= self._due[name]:
                self._start(name)

    def _start(self, name: str) -> None:
        log = self.folder / "log" / f"{name}.log"
        log.parent.mkdir(mode=0o700, exist_ok=True)
        with log.open("ab") as handle:
            self.children[name] = subprocess.Popen(
                self.commands[name],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env={**os.environ, **self.environment},
                process_group=0,
                preexec_fn=_die_with_parent,
            )
        self._began[name] = time.monotonic()
        self._log(f"{name} started as {self.children[name].pid}")
        found = {"keeper": os.getpid()} | {k: c.pid for k, c in self.children.items()}
        write_whole(self.folder / PIDS, json.dumps(found))

    def _end(self) -> None:
        """End the children, those that were started last first."""
        for child in reversed(self.children.values()):
            child.terminate()
        for child in self.children.values():
            try:
                child.wait(timeout=8)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            _sweep(child)
        (self.folder / PIDS).unlink(missing_ok=True)

    def _log(self, text: str) -> None:
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
        sys.stderr.flush()


def _sweep(child: subprocess.Popen[bytes]) -> None:
    """End what a child that has ended left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _die_with_parent() -> None:
    """Ask Linux to end this child should the keeper be killed."""
    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
    except (OSError, AttributeError):
        return


def main() -> None:
    """Run the keeper of a folder."""
    parser = argparse.ArgumentParser(prog="consilia.federation.processes")
    parser.add_argument("folder", type=Path)
    Keeper(parser.parse_args().folder).run()


if __name__ == "__main__":
    main()
