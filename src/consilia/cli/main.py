"""The command line: one module per verb; torch is imported only when a command runs."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback

import click
import typer

import consilia
from consilia.cli import (
    check,
    cite,
    compare,
    coordinator,
    datasets,
    demo,
    methods,
    plan,
    predict,
    report,
    resume,
    run,
    site,
    studies,
    weaken,
)
from consilia.cli.command import Command, examples
from consilia.cli.show import err
from consilia.errors import ConsiliaError, DataError, reason, suggestion

#: What Ctrl-C ends with, as shells have it.
STOPPED = 130

#: What the operating system may say against a file wherever one is touched, and the way out.
WAYS_OUT = {
    errno.EACCES: "ask whoever owns it for the right to read and write it",
    errno.EPERM: "ask whoever owns it for the right to read and write it",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ELOOP: "its links lead in a circle: name the file itself",
    errno.ENOSPC: "make room there, and give the command again",
    errno.EDQUOT: "make room there, and give the command again",
    errno.EROFS: "choose a place that can be written",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.EIO: "the disk fails: copy what it holds elsewhere",
}

# Threads that wait for work soon sleep rather than spin for milliseconds: as fast on a free machine, twice as
# fast on one with other work (docs/benchmarks/speed.md). OpenMP reads this when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

app = typer.Typer(
    name="consilia",
    help="Federated learning for medical imaging when hospitals' annotations differ.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`consilia COMMAND --help` has examples; `consilia demo` needs no data.",
)
COMMANDS = (
    demo,
    check,
    weaken,
    plan,
    run,
    resume,
    compare,
    report,
    predict,
    methods,
    studies,
    datasets,
    cite,
)
for module in COMMANDS:
    name = module.__name__.rpartition(".")[2]
    shown = examples(*module.EXAMPLES)
    app.command(name, cls=Command, epilog=shown)(getattr(module, name))
for group in (coordinator, site):
    app.add_typer(group.app)


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
        code = app(prog_name="consilia", standalone_mode=False)
    except ConsiliaError as error:
        err(str(error))
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        err(_misspelt(error))
        sys.exit(2)
    except KeyboardInterrupt:
        code = STOPPED
    except Exception as error:
        if os.environ.get("CONSILIA_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename and error.errno in WAYS_OUT:
            err(f"'{error.filename}' cannot be used: {reason(error)}; {WAYS_OUT[error.errno]}")
            sys.exit(DataError.exit_code)
        with tempfile.NamedTemporaryFile(
            "w", prefix="consilia-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            log.write(traceback.format_exc())
        first = next(iter(str(error).strip().splitlines()), "")
        err(f"an error of ours, sorry: {type(error).__name__}: {first} (details: {log.name})")
        sys.exit(1)
    if code == STOPPED:
        err(
            "stopped by you; the same command, or `consilia resume`, goes on from the last checkpoint"
        )
    sys.exit(code if isinstance(code, int) else 0)


def _misspelt(error: click.ClickException) -> str:
    """Return what is wrong with a command line in our words."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "consilia"
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        known = (
            [name for option in context.command.params for name in option.opts] if context else []
        )
        text = f"no option '{error.option_name}'{suggestion(error.option_name, known)}"
    text = text[:1].lower() + text[1:].replace(". Did you", "; did you").rstrip(".")
    return f"{text} (`{command} --help` lists what there is)"
