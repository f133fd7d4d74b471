"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from consilia.runs.spec import RunSpec

Study = Annotated[
    str,
    typer.Argument(
        help="A built-in study, a run.toml, or a folder that holds one; STUDY@SETTING picks a setting."
    ),
]
MethodName = Annotated[
    str | None, typer.Option("--method", help="The method; `consilia methods` lists them.")
]
RoundCount = Annotated[int | None, typer.Option("--rounds", help="How many rounds.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The run's seed.")]
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
Run = Annotated[Path, typer.Argument(help="A run folder.")]


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
    return read_spec(study, {**given, **parse_changes(changes or [])})


def data_of(study: str, given: Path | None) -> Path:
    """Return where a study's relative data paths begin."""
    from consilia.readers.site import data_root

    path = Path(study.partition("@")[0])
    beside = path if path.is_dir() else path.parent if path.is_file() else None
    return data_root(given, beside)
