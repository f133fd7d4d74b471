"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilia.errors import UsageError, reason

if TYPE_CHECKING:
    from consilia.runs.spec import RunSpec

Study = Annotated[
    str,
    typer.Argument(
        help="A built-in study, a run.toml, or a folder that holds one; STUDY@SETTING picks a setting."
    ),
]
MethodName = Annotated[
    str | None,
    typer.Option("--method", help="`consilia methods` lists them; default as in the run file."),
]
RoundCount = Annotated[
    int | None, typer.Option("--rounds", help="How many rounds; default as in the run file.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Decides all that is random; default as in the run file."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one value, e.g. training.batch=4; repeatable."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Where relative data paths begin (else CONSILIA_DATA, else beside the file)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout and nothing else.")]
Run = Annotated[Path, typer.Argument(help="The folder that `consilia run` wrote.")]


def spec_of(
    study: str,
    method: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    changes: list[str] | None = None,
) -> RunSpec:
    """Return the spec that a command line asks for."""
    from consilia.runs.spec import parse_changes, read_spec  # not for `--help`

    named: dict[str, Any] = {"method.name": method, "rounds": rounds, "seed": seed}
    given = {key: value for key, value in named.items() if value is not None}
    changed = parse_changes(changes or [])
    for key in given:
        for other in said_again(key, changed):
            option = f"--{key.partition('.')[0]}"
            msg = f"--set {other} and {option} {given[key]} both say what '{key}' is; leave out one of them"
            raise UsageError(msg)
    return read_spec(study, {**given, **changed})


def is_study(named: str) -> bool:
    """Whether an argument names a run file or a built-in study, and no federation, folder or file."""
    from consilia.runs.spec import studies

    if (path := Path(named)).exists():
        return path.name == "run.toml"
    name, sign, _ = named.partition("@")
    return bool(sign) or path.name == "run.toml" or name in studies()


def said_again(key: str, changes: Iterable[str]) -> list[str]:
    """Return the changes that would change a key: itself, or a table that it is in."""
    from consilia.runs.spec import decides

    return [change for change in changes if decides(change, key)]


def data_of(study: str, given: Path | None) -> Path:
    """Return where a study's relative data paths begin."""
    from consilia.readers.site import data_root

    path = Path(study.partition("@")[0])
    beside = path if path.is_dir() else path.parent if path.is_file() else None
    return data_root(given, beside)


@contextmanager
def writable(path: Path, option: str) -> Iterator[None]:
    """Turn what the operating system says against a file or folder into one sentence."""
    try:
        yield
    except OSError as problem:
        msg = f"{option} {path} cannot be written ({reason(problem)}); choose another {option}"
        raise UsageError(msg) from None
