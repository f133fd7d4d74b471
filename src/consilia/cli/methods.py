"""`consilia methods`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilia.cli.options import AsJson, is_study
from consilia.cli.show import out_json, table

if TYPE_CHECKING:
    from consilia.declare import Federation

EXAMPLES = (
    "consilia methods",
    "consilia methods --for federation.toml",
    "consilia methods --for phantom-mixed@uul",
)


def methods(
    federation: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="A federation.toml, a run.toml or a built-in study (STUDY@SETTING): which methods "
            "fit it, and why the rest do not.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or those that fit a federation."""
    from consilia.methods import METHODS, why_not

    declared = None if federation is None else _declared(federation)
    found: list[dict[str, Any]] = []
    for name, entry in METHODS.items():
        card = entry.card
        line: dict[str, Any] = {
            "id": name,
            "summary": card.summary,
            "paper": f"{card.authors.split(',')[0]} et al., {card.venue} {card.year}"
            if card.year
            else "",
            "preset": dict(entry.preset),
        }
        if declared is not None:
            unmet = why_not(name, declared)
            line |= {"fits": unmet is None, "why_not": unmet}
        found.append(line)
    if as_json:
        out_json(found)
        return
    if declared is None:
        rows = [[m["id"], m["summary"], m["paper"]] for m in found]
        table(f"{len(found)} methods", ["id", "what it does", "from"], rows)
        return
    rows = [[m["id"], "fits" if m["fits"] else "no", m["why_not"] or m["summary"]] for m in found]
    table(f"methods for federation '{declared.name}'", ["id", "", "why"], rows)
    typer.echo(f"{sum(bool(m['fits']) for m in found)} of {len(found)} fit")


def _declared(named: str) -> Federation:
    """Return the federation that a file or a study's name stands for."""
    from consilia.declare.read import read_federation
    from consilia.runs.spec import read_spec

    if not is_study(named) and ((path := Path(named)).suffix == ".toml" or path.is_file()):
        return read_federation(path)
    return read_spec(named).federation
