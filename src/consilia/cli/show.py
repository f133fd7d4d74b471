"""How results and progress look: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from consilia.engines.rounds import Listener


def err(sentence: str) -> None:
    """Print one sentence to stderr."""
    typer.secho("consilia: ", err=True, nl=False, bold=True)
    typer.echo(sentence, err=True)


def out_json(value: Any) -> None:
    """Print JSON to stdout, exactly as files hold it."""
    typer.echo(json.dumps(value, indent=1))


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str | None = None,
) -> None:
    """Print a table to stdout; the first column is a name, the others align right if they are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=False)
    grid = Table(
        title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
    )
    for index, column in enumerate(columns):
        numeric = index > 0 and all(_numeric(row[index]) for row in rows)
        grid.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
    if note:
        console.print(note, style="dim")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for a table; what is not defined is a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}"


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
    title = f"{metrics['study']}  {metrics['method']}  seed {metrics['seed']}  {metrics['rounds']} rounds"
    up, down = size(metrics["bytes_up"]), size(metrics["bytes_down"])
    note = f"selection {metrics['selection']}, {metrics['seconds']:.0f} s, up {up}, down {down}"
    table(title, ["site", *names], rows, note)


@contextmanager
def progress(title: str, rounds: int, quiet: bool = False) -> Iterator[Listener]:
    """Show a bar on stderr with rate and time left; yield what to call after each round."""
    if quiet:
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console, transient=not console.is_terminal) as bar:
        task = bar.add_task(title, total=rounds, state="")
        state = {"score": ""}

        def after(line: dict[str, Any]) -> None:
            losses = [site["loss"] for site in line["sites"].values() if "loss" in site]
            if line.get("test"):
                key = "dice" if "dice" in next(iter(line["test"].values())) else "auroc"
                scores = [s[key] for s in line["test"].values() if s.get(key) is not None]
                state["score"] = f"  {key} {sum(scores) / max(1, len(scores)):.3f}"
            loss = f"loss {sum(losses) / len(losses):.3f}" if losses else ""
            bar.update(task, completed=line["round"], state=f"{loss}{state['score']}")
            for event in line["events"]:
                console.print(
                    f"round {line['round']}: site '{event['site']}' {event['event']}", style="dim"
                )

        yield after
