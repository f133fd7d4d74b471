"""`consilia coordinator`: the side that hospitals connect to."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilia.cli.command import Command, examples
from consilia.cli.options import (
    AsJson,
    Changes,
    Data,
    MethodName,
    RoundCount,
    Seed,
    Study,
    data_of,
    spec_of,
)
from consilia.cli.show import err, metrics_table, out_json, plural, progress, size, table

if TYPE_CHECKING:
    from consilia.federation.coordinator import Coordinator
    from consilia.runs.spec import RunSpec

app = typer.Typer(
    name="coordinator",
    help="Run a study across hospitals: the side they connect to.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
At = Annotated[Path, typer.Option("--at", help="The coordinator's folder.")]
HERE = Path("coordinator")
Foreground = Annotated[
    bool, typer.Option("--foreground", help="Stay until ended, for systemd or a container.")
]
Deadline = Annotated[
    float, typer.Option("--deadline", min=1, help="Seconds a site has to answer a message.")
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience", min=0, help="Seconds to wait in a round for a site that is not connected."
    ),
]
Wait = Annotated[
    float,
    typer.Option("--wait", min=0, help="Seconds to wait before round 1 for all sites to connect."),
]


@app.command(
    "init",
    cls=Command,
    epilog=examples("consilia coordinator init --host consilia.example.org --listen 0.0.0.0"),
)
def init(
    folder: Annotated[Path, typer.Argument(help="The coordinator's new folder.")] = HERE,
    federation: Annotated[
        Path, typer.Option("--federation", help="The federation.toml that all sites agreed on.")
    ] = Path("federation.toml"),
    host: Annotated[
        str, typer.Option("--host", help="The name by which hospitals reach this machine.")
    ] = "localhost",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="The port they connect to.")
    ] = 8443,
    listen: Annotated[
        str, typer.Option("--listen", help="The address to listen on; 0.0.0.0 is all.")
    ] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Your own server certificate (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Its private key (PEM).")] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="The authority hospitals check it against (PEM).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the coordinator's folder: keys, certificates, a door, one invitation per site."""
    from consilia.errors import UsageError
    from consilia.federation.coordinator import make_coordinator
    from consilia.federation.invitation import read_invitation
    from consilia.federation.keys import fingerprint

    own = (certificate, key, ca)
    if any(own) and not all(own):
        msg = "--certificate, --key and --ca go together; give all three, or none to have them made"
        raise UsageError(msg)
    given = (certificate, key, ca) if certificate and key and ca else None
    written = make_coordinator(
        folder, federation, host=host, port=port, listen=listen, certificate=given
    )
    print_ = fingerprint(read_invitation(next(iter(written.values()))).key)
    if as_json:
        invitations = {site: str(path) for site, path in written.items()}
        out_json({"folder": str(folder), "fingerprint": print_, "invitations": invitations})
        return
    table(None, ["site", "invitation"], [[site, str(path)] for site, path in written.items()])
    typer.echo(f"fingerprint  {print_}")
    err("send each site its invitation, and tell it the fingerprint over the telephone")


@app.command(
    "admit",
    cls=Command,
    epilog=examples("consilia coordinator admit udiat.enrolment busi.enrolment"),
)
def admit(
    enrolments: Annotated[
        list[Path], typer.Argument(help="Files that `consilia site init` wrote at the sites.")
    ],
    at: At = HERE,
    as_json: AsJson = False,
) -> None:
    """Accept the keys of hospitals that were invited."""
    from consilia.federation import coordinator

    opened = coordinator.Coordinator.open(at)
    found = [coordinator.admit(opened, path) for path in enrolments]
    if as_json:
        out_json(dict(found))
        return
    table(None, ["site", "fingerprint of its key"], [[site, print_] for site, print_ in found])


@app.command(
    "up",
    cls=Command,
    epilog=examples("consilia coordinator up", "consilia coordinator up --foreground --no-nginx"),
)
def up(
    at: At = HERE,
    foreground: Foreground = False,
    nginx: Annotated[
        bool | None,
        typer.Option("--nginx/--no-nginx", help="The door's program; default: nginx if installed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the SuperLink, on loopback, and the door that hospitals connect to."""
    from consilia.federation import processes
    from consilia.federation import up as bring
    from consilia.federation.coordinator import Coordinator

    opened = Coordinator.open(at)
    if foreground:
        bring.stay(opened, nginx=nginx)
        return
    door = bring.up(opened, nginx=nginx)
    settings = opened.settings
    found = {"door": door, "address": f"{settings.host}:{settings.port}"}
    if as_json:
        out_json(found | {"processes": processes.pids(opened.folder)})
        return
    typer.echo(f"up       {found['address']} ({door}; only the Fleet API passes)")


@app.command(
    "run",
    cls=Command,
    epilog=examples(
        "consilia coordinator run study/run.toml --method fedmix",
        "consilia coordinator run study/run.toml --rounds 20 --deadline 600",
    ),
)
def run(
    study: Study,
    at: At = HERE,
    method: MethodName = None,
    rounds: RoundCount = None,
    seed: Seed = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The run folder; default runs/STUDY/METHOD-SEED in --at."),
    ] = None,
    changes: Changes = None,
    data: Data = None,
    deadline: Deadline = 3600.0,
    patience: Patience = 15.0,
    wait: Wait = 120.0,
    as_json: AsJson = False,
) -> None:
    """Train a study across the enrolled hospitals; one that was stopped goes on where it was."""
    from consilia.federation.coordinator import Coordinator

    opened = Coordinator.open(at)
    spec = spec_of(study, method, rounds, seed, changes)
    folder = out or opened.folder / "runs" / spec.study / spec.run_name
    times = {"deadline": deadline, "patience": patience, "wait": wait}
    _across(opened, spec, folder, data_of(study, data), times, as_json)


@app.command(
    "resume",
    cls=Command,
    epilog=examples(
        "consilia coordinator resume",
        "consilia coordinator resume coordinator/runs/breast/fedmix-0",
    ),
)
def resume(
    folder: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The run folder; default: the last one.")
    ] = None,
    at: At = HERE,
    deadline: Deadline = 3600.0,
    patience: Patience = 15.0,
    wait: Wait = 120.0,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run across hospitals from its last checkpoint, whatever crashed."""
    from consilia.errors import UsageError
    from consilia.federation.coordinator import Coordinator
    from consilia.federation.status import latest_run
    from consilia.readers.site import data_root
    from consilia.runs.store import RunFolder

    opened = Coordinator.open(at)
    path = folder or latest_run(opened)
    if path is None:
        msg = "no run was started here; `consilia coordinator run` starts one"
        raise UsageError(msg)
    kept = RunFolder.open(path)
    times = {"deadline": deadline, "patience": patience, "wait": wait}
    _across(opened, kept.spec(), path, data_root(data, kept.data()), times, as_json)


def _across(
    opened: Coordinator,
    spec: RunSpec,
    folder: Path,
    data: Path,
    times: dict[str, float],
    as_json: bool,
) -> None:
    from consilia.federation.across import run_across
    from consilia.runs.track import trackers

    with (
        progress(f"{spec.study} {spec.method.name}", spec.rounds, quiet=as_json) as bar,
        trackers(spec, folder) as tracked,
    ):
        metrics = run_across(
            opened, spec, folder, data=data, listeners=(bar, *tracked), say=err, **times
        )
    if as_json:
        out_json(metrics)
        return
    metrics_table(metrics)
    typer.echo(f"run      {folder}")
    err(f"`consilia report {quote(str(folder))}` draws it")


@app.command(
    "status",
    cls=Command,
    epilog=examples("consilia coordinator status", "consilia coordinator status --watch 2"),
)
def status(
    at: At = HERE,
    folder: Annotated[
        Path | None, typer.Option("--run", help="The run to show; default: the last one.")
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option("--watch", min=0.5, help="Show it again every so many seconds, until Ctrl-C."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say who is connected, who took part in each round, with bytes and seconds."""
    from consilia.federation.coordinator import Coordinator
    from consilia.federation.status import status as look

    opened = Coordinator.open(at)
    while True:
        found = look(opened, folder)
        if as_json:
            out_json(found)
        else:
            if watch:
                typer.clear()
            _show(found)
        if not watch:
            return
        time.sleep(watch)


def _show(found: dict[str, Any]) -> None:
    door = {403: "only the Fleet API passes", None: "does not answer"}
    state = door.get(found["door"], f"LETS OTHER REQUESTS THROUGH ({found['door']})")
    note = f"door {found['address']}: {state}" if found["up"] else "the coordinator is down"
    running = found.get("run")
    history = running["history"] if running else []
    rows = []
    for site, state in found["sites"].items():
        rounds = sum(site in line["took_part"] for line in history)
        told = [
            (e["event"], line["round"])
            for line in history
            for e in line["events"]
            if e["site"] == site
        ]
        last = f"round {told[-1][1]}: {told[-1][0]}" if told else ""
        rows.append([site, state, str(rounds), last])
    table("sites", ["site", "connection", "rounds", "last event"], rows, note)
    if running is None:
        return
    state = "finished" if running["finished"] else "running" if running["active"] else "stopped"
    rows = [
        [
            str(line["round"]),
            ", ".join(line["took_part"]) or "–",
            size(line["bytes_up"] or 0),
            size(line["bytes_down"] or 0),
            f"{line['seconds'] or 0:.1f}",
        ]
        for line in history[-15:]
    ]
    done = f"{len(history)} of {plural(running['rounds'], 'round')}"
    title = f"{running['study']}  {running['method']}  {state}, {done}"
    table(title, ["round", "took part", "up", "down", "seconds"], rows, running["path"])


@app.command("down", cls=Command, epilog=examples("consilia coordinator down"))
def down(at: At = HERE, as_json: AsJson = False) -> None:
    """Stop the SuperLink and the door; runs can be resumed after the next `up`."""
    from consilia.federation import processes
    from consilia.federation.coordinator import Coordinator

    stopped = processes.stop(Coordinator.open(at).folder)
    if as_json:
        out_json({"stopped": stopped})
        return
    typer.echo("down" if stopped else "it was not up")
