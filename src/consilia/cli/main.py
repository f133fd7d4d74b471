"""The command line: one module per verb; torch is imported only when a command runs."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

import typer

import consilia
from consilia.cli import (
    check,
    cite,
    compare,
    datasets,
    demo,
    methods,
    plan,
    predict,
    report,
    resume,
    run,
)
from consilia.cli.show import err
from consilia.errors import ConsiliaError

app = typer.Typer(
    name="consilia",
    help="Federated learning for medical imaging when hospitals' annotations differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (demo, check, plan, run, resume, compare, report, predict, methods, datasets, cite):
    name = module.__name__.rpartition(".")[2]
    app.command(name)(getattr(module, name))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"consilia {consilia.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Federated learning for medical imaging when hospitals' annotations differ."""


def main() -> None:
    """Run a command; whatever goes wrong ends in one sentence and an exit code."""
    try:
        app()
    except ConsiliaError as error:
        err(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        err("stopped by you; `consilia resume` goes on from the last checkpoint")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("CONSILIA_DEBUG"):
            raise
        with tempfile.NamedTemporaryFile(
            "w", prefix="consilia-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            log.write(traceback.format_exc())
        err(f"an error of ours, sorry: {type(error).__name__}: {error} (details: {Path(log.name)})")
        sys.exit(1)
