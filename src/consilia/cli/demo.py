"""`consilia demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilia.cli.options import AsJson
from consilia.cli.show import number, out_json, progress, table

STUDY = "phantom-mixed"
METHODS = ("local", "fedavg", "central")
ROUNDS = 22

EXAMPLES = (
    "consilia demo",
    "consilia demo --rounds 4 --out runs/short",
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the runs and the report go.")] = Path(
        "runs/demo"
    ),
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds per method.")] = ROUNDS,
    as_json: AsJson = False,
) -> None:
    """Train across three drawn hospitals in under three minutes and write a report."""
    from consilia.engines.inprocess import run_in_process
    from consilia.report.page import write_report
    from consilia.runs.spec import read_spec

    found = {}
    for method in METHODS:
        changes = {"method.name": method, "rounds": rounds, "evaluate.every": max(1, rounds // 4)}
        spec = read_spec(STUDY, changes)
        with progress(f"{method:8s}", rounds, quiet=as_json) as bar:
            found[method] = run_in_process(
                spec, out / spec.run_name, data=Path.cwd(), listeners=(bar,)
            )
    pages = {method: write_report(out / f"{method}-0") for method in METHODS}
    if as_json:
        out_json({"metrics": list(found.values()), "report": str(pages["fedavg"])})
        return
    sites = list(found["fedavg"]["sites"])
    said = {
        "local": "each hospital alone",
        "fedavg": "federated, only weights are shared",
        "central": "all images in one place",
    }
    rows = [
        [
            m,
            said[m],
            *(number(found[m]["sites"][s]["dice"]) for s in sites),
            number(found[m]["mean"]["dice"]),
        ]
        for m in METHODS
    ]
    table(f"{STUDY}: Dice on each hospital's own test images", ["method", "", *sites, "mean"], rows)
    typer.echo(f"report   {pages['fedavg']}")
