"""`consilia resume`."""

from __future__ import annotations

import typer

from consilia.cli.options import AsJson, Data, Run
from consilia.cli.show import metrics_table, out_json, progress

EXAMPLES = (
    "consilia resume runs/phantom-mixed/fedavg-0",
    "consilia resume runs/two-hospitals/fedavg-0 --data .",
)


def resume(run: Run, data: Data = None, as_json: AsJson = False) -> None:
    """Go on with a run from its last checkpoint; the result is the same as without the stop."""
    from consilia.errors import UsageError
    from consilia.readers.site import data_root
    from consilia.runs.store import RunFolder

    folder = RunFolder.open(run)
    if (run / "federation.json").is_file():
        msg = (
            f"run '{run}' is across hospitals; `consilia coordinator resume {run}` goes on with it"
        )
        raise UsageError(msg)
    spec = folder.spec()
    from consilia.engines.inprocess import run_in_process
    from consilia.runs.track import trackers

    with (
        progress(f"{spec.study} {spec.method.name}", spec.rounds, quiet=as_json) as bar,
        trackers(spec, run) as tracked,
    ):
        metrics = run_in_process(
            spec, run, data=data_root(data, folder.data()), listeners=(bar, *tracked)
        )
    if as_json:
        out_json(metrics)
        return
    metrics_table(metrics)
    typer.echo(f"run      {run}")
