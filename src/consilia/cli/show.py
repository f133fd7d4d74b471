"""How results and progress look: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from consilia.engines.rounds import Listener


def err(sentence: str) -> None:
    """Print one sentence to stderr, on one line whatever it quotes."""
    typer.secho("consilia: ", err=True, nl=False, bold=None if "NO_COLOR" in os.environ else True)
    typer.echo("".join(c if c.isprintable() else repr(c)[1:-1] for c in sentence), err=True)


def out_json(value: Any) -> None:
    """Print JSON to stdout, exactly as files hold it."""
    typer.echo(json.dumps(value, indent=1))


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str | None = None,
    spare: Sequence[str] = (),
    names: Sequence[str] = (),
) -> None:
    """Print a table to stdout; the first column is a name, columns of numbers align right.

    Names are not folded, so that they can be copied, unless a column of them takes half the width.

    Args:
        title: Goes above.
        columns: The heads.
        rows: Their cells.
        note: Goes below.
        spare: Columns that are left out, and named in the note, where the terminal is too narrow.
        names: Columns of names besides the first.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    whole = {columns[0], *names}
    grid = _grid(columns, rows, whole, console.width)
    wide = console.measure(grid, options=console.options.update(width=10_000)).maximum
    if spare and wide > console.width:
        kept = [at for at, column in enumerate(columns) if column not in spare]
        heads, cells = [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]
        grid = _grid(heads, cells, whole, console.width)
        left_out = (
            f"{', '.join(spare)} left out: a terminal of {wide} columns shows them, --json too"
        )
        note = f"{note}; {left_out}" if note else left_out
    if title:
        console.print(title, style="bold")
    console.print(grid)
    if note:
        console.print(note, style="dim")
    console.print()


def _grid(
    columns: Sequence[str], rows: Sequence[Sequence[str]], names: Collection[str], width: int
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = index > 0 and all(_numeric(row[index]) for row in rows)
        side: Literal["right", "left"] = "right" if numeric else "left"
        fits = max(len(cell) for cell in (column, *(row[index] for row in rows))) <= width // 2
        whole = numeric or (column in names and fits)
        grid.add_column(column, justify=side, overflow="fold", no_wrap=whole)
    for row in rows:
        grid.add_row(*row)
    return grid


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for a table; what is not defined is a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}"


def plural(count: int, noun: str) -> str:
    """Return "1 round" or "2 rounds"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Return bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def _numeric(text: str) -> bool:
    return bool(text) and (text[0].isdigit() or text[0] in "–-+<")


def metrics_table(metrics: Mapping[str, Any]) -> None:
    """Print the per-site table of a finished run."""
    names = [name for name in metrics["mean"] if "/" not in name]
    rows = [
        [site, *(number(values.get(n)) for n in names)] for site, values in metrics["sites"].items()
    ]
    if len(rows) > 1:
        rows.append(["mean", *(number(metrics["mean"].get(n)) for n in names)])
    done = plural(metrics["rounds"], "round")
    title = f"{metrics['study']}  {metrics['method']}  seed {metrics['seed']}  {done}"
    up, down = size(metrics["bytes_up"]), size(metrics["bytes_down"])
    note = f"selection {metrics['selection']}, {metrics['seconds']:.0f} s, up {up}, down {down}"
    table(title, ["site", *(name.replace("_", " ") for name in names)], rows, note)


@contextmanager
def progress(title: str, rounds: int, quiet: bool = False) -> Iterator[Listener]:
    """Show how far a run is, on stderr; yield what to call after each round.

    In a terminal a bar with rate and time left; elsewhere a line for each round that was judged.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet:
        yield lambda line: None
    elif console.is_terminal:
        with _bar(console, title, rounds) as after:
            yield after
    else:
        yield lambda line: _log(line, title, rounds)


@contextmanager
def _bar(console: Console, title: str, rounds: int) -> Iterator[Listener]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=rounds, state="")
        scored = ""

        def after(line: dict[str, Any]) -> None:
            nonlocal scored
            scored = _score(line) or scored
            state = "  ".join(part for part in (_loss(line), scored) if part)
            bar.update(task, completed=line["round"], state=state)
            for event in _events(line):
                console.print(event, style="dim")

        yield after


def _log(line: dict[str, Any], title: str, rounds: int) -> None:
    for event in _events(line):
        typer.echo(event, err=True)
    if score := _score(line):
        typer.echo(f"{title}  round {line['round']}/{rounds}  {_loss(line)}  {score}", err=True)


def _events(line: dict[str, Any]) -> list[str]:
    return [f"round {line['round']}: site '{e['site']}' {e['event']}" for e in line["events"]]


def _loss(line: dict[str, Any]) -> str:
    losses = [site["loss"] for site in line["sites"].values() if "loss" in site]
    return f"loss {sum(losses) / len(losses):.3f}" if losses else ""


def _score(line: dict[str, Any]) -> str:
    found = line.get("test", {}).values()
    for metric in ("dice", "auroc"):
        scores = [site[metric] for site in found if site.get(metric) is not None]
        if scores:
            return f"{metric} {sum(scores) / len(scores):.3f}"
    return ""
