"""The run folder: what was asked, what happened, what came out. Every tool reads only this."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter

from consilia.atomic import write_whole
from consilia.declare.read import read_toml, validate
from consilia.errors import MessageError, RunError, UsageError, reason
from consilia.runs.environment import environment
from consilia.runs.lock import take_lock
from consilia.runs.plain import open_all, read_plain
from consilia.runs.results import LINES, Cases, Findings, Metrics, Portraits
from consilia.runs.spec import RunSpec

#: The state of the round that a validation rule selected; the last checkpoint serves other rules.
SELECTED = "selected"

#: The folder of a checkpoint, and what a crash left of one; whatever else is there is not ours.
_CHECKPOINT = re.compile(r"round-([0-9]{6,})")
_PART = re.compile(r"\.round-[0-9]{6,}\.part")

#: The way out of a file that is there and cannot be read.
_READABLE = "let this user read it, or put back what was there"

#: The way out of a file that cannot be used, where removing it and resuming the run is not enough.
_WAYS_OUT = {
    "federation.json": "begin it again with another --out",  # its sites know it by the name in there
    "cases.json": "remove it and metrics.json and `consilia resume` the run",
    "data.json": "if images and labels are the same as before, remove it and `consilia resume` the run",
    "findings.json": "remove it and metrics.json and `consilia resume` the run",
    "portraits.json": "remove it, and the report goes without what it shows",  # only training writes it
}


@dataclass
class Progress:
    """How far a run has come; written with every checkpoint."""

    round: int = 0
    admitted: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)  # by site, the round of its last update
    asked: str = ""  # the digest of the spec; older runs have none


class RunFolder:
    """One run on disk. Files are written whole or not at all; lines are appended and flushed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # --- beginning and coming back ---

    @classmethod
    def create(
        cls,
        path: Path,
        spec: RunSpec,
        data: Path | None = None,
        card: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """Start a run folder; a folder that holds another run is refused, never written over."""
        folder = cls(path)
        refuse_unreachable(path)
        if (path / "spec.toml").exists():
            if not same_run(there := folder.spec(), spec):
                msg = (
                    f"run folder '{path}' holds another run ({there.run_name} of '{there.study}', with "
                    "other settings); choose another --out, or `consilia resume` the one that is there"
                )
                raise UsageError(msg)
            return folder
        refuse_full(path, " and holds no run")
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write(path / "environment.json", json.dumps(environment(data, card), indent=1))
            asked = spec.model_dump(mode="json", exclude_none=True)
            _write(path / "spec.toml", tomli_w.dumps(asked))
        except OSError as error:
            msg = f"run folder '{path}' cannot be written: {reason(error)}; choose another --out"
            raise UsageError(msg) from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return an existing run folder."""
        refuse_unreachable(path, "name the folder that `consilia run` wrote")
        if not (path / "spec.toml").is_file():
            found = "it has no spec.toml" if path.is_dir() else "there is no such folder"
            msg = (
                f"'{path}' is not a run folder: {found}; name the folder that `consilia run` wrote"
            )
            raise UsageError(msg)
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one process; a second one is refused."""
        try:
            handle = take_lock(self.path / ".lock")
        except BlockingIOError:
            msg = f"run folder '{self.path}' is in use by another process; wait for it to end"
            raise RunError(msg) from None
        except OSError as error:
            msg = f"run folder '{self.path}' cannot be written: {reason(error)}; copy it elsewhere"
            raise RunError(msg) from None
        with handle:
            yield

    def spec(self) -> RunSpec:
        """Return what was asked."""
        where = f"spec.toml of run '{self.path}'"
        return validate(RunSpec, read_toml(self.path / "spec.toml", UsageError), where, UsageError)

    def asked(self) -> str:
        """Return a digest of `spec.toml` as the file is, whatever defaults a later version adds to it.

        It leaves out where the run computes, and where data is, which `data.json` knows again.
        """
        tables = read_toml(self.path / "spec.toml", UsageError)
        half = tables.pop("engine", {}).get("precision") == "bf16"  # as in `same_run`
        for site in tables["federation"]["site"]:
            del site["data"]
        text = json.dumps([tables, half], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def data(self) -> Path | None:
        """Return where the run's relative data paths begin, if that folder is on this machine."""
        found = self.environment().get("data")
        return Path(found) if found and Path(found).is_dir() else None

    def environment(self) -> dict[str, Any]:
        """Return on what the run was begun; nothing where that was not kept."""
        name = "environment.json"
        there = (self.path / name).is_file()
        return self.read_json(name, dict[str, Any]) if there else {}

    # --- lines ---

    def append(self, name: str, *lines: Mapping[str, Any]) -> None:
        """Add JSON lines to `rounds.jsonl` or `ledger.jsonl`."""
        with (self.path / name).open("a", encoding="utf-8") as handle:
            handle.writelines(json.dumps(line) + "\n" for line in lines)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the whole lines of `rounds.jsonl` or `ledger.jsonl`, without one cut short by a crash."""
        if not (self.path / name).exists():
            return []
        texts = self._read(name).splitlines()
        found: list[dict[str, Any]] = []
        for number, text in enumerate(texts, start=1):
            try:
                line = json.loads(text.decode("utf-8", "replace"))
                LINES[name].model_validate(line, strict=True)
            except (ValueError, RecursionError) as error:
                if isinstance(error, json.JSONDecodeError) and number == len(texts):
                    break
                msg = (
                    f"line {number} of {name} of run '{self.path}' does not hold what a run writes there; "
                    "put the file back as it was, or begin the run again with another --out"
                )
                raise UsageError(msg) from None
            found.append(line)
        return found

    def rewind(self, name: str, round_: int) -> None:
        """Drop the lines after a round, so that a resumed run writes them again."""
        kept = [line for line in self.lines(name) if line["round"] <= round_]
        _write(self.path / name, "".join(json.dumps(line) + "\n" for line in kept))

    # --- results ---

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, whole or not at all."""
        _write(self.path / name, json.dumps(value, indent=1) + "\n")

    def read_json(self, name: str, kind: Any = Any) -> Any:
        """Return a JSON file's value, or refuse with a sentence if the run has not got so far.

        Args:
            name: The file, within the run folder.
            kind: The type that its value has to fit.
        """
        if not (self.path / name).is_file():
            msg = f"run '{self.path}' has no {name} yet; `consilia resume` finishes it"
            raise UsageError(msg)
        found = "is damaged"
        text = self._read(name)
        try:
            value = json.loads(text.decode("utf-8"))
            found = "does not hold what a run writes there"
            TypeAdapter(kind).validate_python(value, strict=True)
        except (ValueError, RecursionError):
            out = _WAYS_OUT.get(name, "remove it and `consilia resume` the run")
            if name.startswith("cases/"):  # only training writes these
                out = "begin it again with another --out"
            msg = f"{name} of run '{self.path}' {found}; {out}"
            raise UsageError(msg) from None
        return value

    def _read(self, name: str) -> bytes:
        """Return what a file holds; one that cannot be read is not told as damaged."""
        try:
            return read_plain(self.path / name)
        except OSError as error:
            msg = f"{name} of run '{self.path}' cannot be read: {reason(error)}; {_READABLE}"
            raise UsageError(msg) from None

    def metrics(self) -> dict[str, Any]:
        """Return the final numbers."""
        return self.read_json("metrics.json", Metrics)  # type: ignore[no-any-return]  # JSON

    def cases(self, name: str = "cases.json") -> dict[str, Any]:
        """Return a table of test cases for each site; none where there is no such file."""
        there = (self.path / name).is_file()
        return self.read_json(name, Cases) if there else {}

    def findings(self) -> dict[str, Any]:
        """Return what the server learned about the sites; nothing where it kept nothing."""
        name = "findings.json"
        return self.read_json(name, Findings) if (self.path / name).is_file() else {}

    def portraits(self) -> dict[str, Any]:
        """Return what each site showed of itself; nothing where the study did not ask."""
        name = "portraits.json"
        return self.read_json(name, Portraits) if (self.path / name).is_file() else {}

    @property
    def finished(self) -> bool:
        """Whether the run has its final numbers."""
        return (self.path / "metrics.json").is_file()

    # --- checkpoints ---

    @property
    def checkpoints(self) -> Path:
        """Where snapshots are; each is a folder that appears whole."""
        return self.path / "checkpoints"

    @contextmanager
    def new_folder(self, name: str) -> Iterator[Path]:
        """Fill a folder under another name, then put it in place in one step."""
        final = self.path / name
        part = final.with_name(f".{final.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        _sync(part)
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        _sync(final.parent)

    @contextmanager
    def new_checkpoint(self, round_: int) -> Iterator[Path]:
        """Fill a folder, then make it the latest checkpoint in one step and drop older ones."""
        final = self.checkpoints / f"round-{round_:06d}"
        with self.new_folder(f"{self.checkpoints.name}/{final.name}") as part:
            yield part
        for old in self.checkpoints.iterdir():
            if old != final and (_CHECKPOINT.fullmatch(old.name) or _PART.fullmatch(old.name)):
                shutil.rmtree(old, ignore_errors=True)

    def selected_state(self) -> tuple[int, Path] | None:
        """Return the round and the state of the model that is reported: the selected or the last one."""
        kept = self.path / SELECTED
        if kept.is_dir():
            return self.progress_at(kept).round, kept
        return self.latest_checkpoint()

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """Return the last whole checkpoint and its round."""
        return max(self._whole_checkpoints(), default=None)

    def _whole_checkpoints(self) -> list[tuple[int, Path]]:
        there = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        return [
            (int(named[1]), path)
            for path in there
            if (named := _CHECKPOINT.fullmatch(path.name)) and path.is_dir()
        ]

    def progress_at(self, state: Path) -> Progress:
        """Return how far the run had come at a checkpoint."""
        with self.reading(state):
            try:
                kept = json.loads((state / "progress.json").read_text(encoding="utf-8"))
                if not {"round", "admitted"} <= set(kept):
                    raise ValueError
                progress = TypeAdapter(Progress).validate_python(kept)
            except (OSError, ValueError, TypeError, RecursionError):
                msg = "file 'progress.json' is missing, damaged or not ours"
                raise MessageError(msg) from None
            named = _CHECKPOINT.fullmatch(state.name)
            if named and progress.round != int(named[1]):
                msg = f"file 'progress.json' is of round {progress.round}; expected {int(named[1])}"
                raise MessageError(msg)
        if progress.asked and progress.asked != self.asked():
            msg = (
                f"spec.toml of run '{self.path}' is not the one that its rounds were made with; put it "
                "back as it was, or begin a new run with another --out"
            )
            raise RunError(msg)
        return progress

    @contextmanager
    def reading(self, state: Path) -> Iterator[None]:
        """Read a checkpoint of this run; one that cannot be used is refused with the way out."""
        try:
            open_all(state)
        except OSError as error:
            name = Path(error.filename or state).relative_to(state)
            msg = (
                f"checkpoint '{state}' cannot be used: '{name}' cannot be read: {reason(error)}; "
                f"{_READABLE}"
            )
            raise UsageError(msg) from None
        try:
            yield
        except MessageError as error:
            out = "begin the run again with another --out"
            if state.parent == self.checkpoints and not self.finished:
                rest = [number for number, path in self._whole_checkpoints() if path != state]
                after = max(rest, default=0)
                out = f"remove that folder and resume the run from round {after + 1}, or {out}"
            msg = f"checkpoint '{state}' cannot be used: {error}; {out}"
            raise MessageError(msg) from None


def refuse_unreachable(path: Path, out: str = "choose another --out") -> None:
    """Refuse a path that the system cannot even look up: too long a name, a folder it may not enter."""
    try:
        path.exists()
    except OSError as error:
        msg = f"folder '{path}' cannot be used: {reason(error)}; {out}"
        raise UsageError(msg) from None


def refuse_full(path: Path, why: str = ", and nothing is written over") -> None:
    """Refuse to write into a file, or into a folder that holds something."""
    refuse_unreachable(path)
    if path.exists() and not path.is_dir():
        msg = f"'{path}' is a file, not a folder; choose another --out"
        raise UsageError(msg)
    if path.is_dir() and any(path.iterdir()):
        msg = f"folder '{path}' is not empty{why}; choose another --out"
        raise UsageError(msg)


def plain_json(value: Any) -> Any:
    """Return JSON that every reader accepts: a number that is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    return value


def same_run(one: RunSpec, other: RunSpec) -> bool:
    """Return whether two specs ask for the same result; where they compute does not matter.

    bf16 does: it changes results beyond rounding.
    """
    half = [spec.engine.precision == "bf16" for spec in (one, other)]
    same = one.model_dump(exclude={"engine"}) == other.model_dump(exclude={"engine"})
    return same and half[0] == half[1]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
