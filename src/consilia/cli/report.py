"""`consilia report`."""

from __future__ import annotations

import typer

from consilia.cli.options import AsJson, Run
from consilia.cli.show import out_json

EXAMPLES = ("consilia report runs/phantom-mixed/fedavg-0",)


def report(run: Run, as_json: AsJson = False) -> None:
    """Write a run's report.html: one page, nothing fetched, for a screen, a phone or print."""
    from consilia.report.page import write_report
    from consilia.runs.store import RunFolder

    page = write_report(RunFolder.open(run).path)
    if as_json:
        out_json({"report": str(page)})
    else:
        typer.echo(f"report   {page}")
