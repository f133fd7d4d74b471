"""`consilia site`: a hospital's side of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilia.cli.command import Command, examples
from consilia.cli.options import AsJson
from consilia.cli.show import err, out_json, plural, size, table

if TYPE_CHECKING:
    from consilia.federation.site import SiteFolder

app = typer.Typer(
    name="site",
    help="Take part in a federation: a hospital's side.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
HERE = Path("site")
At = Annotated[Path, typer.Option("--at", help="The site's folder.")]


@app.command(
    "init",
    cls=Command,
    epilog=examples("consilia site init udiat.invitation --data /srv/images --allow examine"),
)
def init(
    invitation: Annotated[Path, typer.Argument(help="The file the coordinator sent.")],
    data: Annotated[
        str, typer.Option("--data", help="The folder with images and annotations (or dataset:...).")
    ],
    at: At = HERE,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            "--fingerprint",
            help="What the coordinator read to you; an invitation with another is refused.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            help="Also answer this: examine (scores of each test case, with its name) or portray "
            "(eight numbers for each of some training images); repeatable.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda; default: what the study says.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Cores to use; default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Accept an invitation: make this site's key and declaration, and check its data."""
    from consilia.errors import UsageError, listing
    from consilia.federation import site
    from consilia.federation.invitation import read_invitation
    from consilia.federation.keys import fingerprint as of
    from consilia.federation.study import ALLOWED, BY_CHOICE

    found = read_invitation(invitation)
    shown = of(found.key)
    if fingerprint is not None and fingerprint.strip().lower() != shown:
        msg = f"the invitation's fingerprint is {shown}, not {fingerprint}; do not use it"
        raise UsageError(msg)
    unknown = [verb for verb in allow or () if verb not in BY_CHOICE]
    if unknown:
        msg = f"--allow {unknown[0]}: expected one of {listing(BY_CHOICE)}"
        raise UsageError(msg)
    engine: dict[str, Any] = {"device": device, "threads": threads}
    made = site.join(
        invitation,
        at,
        data,
        allow=(*ALLOWED, *(allow or ())),
        engine={key: value for key, value in engine.items() if value is not None},
    )
    problems = _check(made.folder)
    enrolment = made.folder / f"{found.site}.enrolment"
    if as_json:
        told = {"site": found.site, "fingerprint": shown, "enrolment": str(enrolment)}
        out_json(told | {"problems": problems})
    else:
        typer.echo(f"site         {found.site} of {found.federation.name}")
        typer.echo(f"coordinator  {found.host}:{found.port}, fingerprint {shown}")
        typer.echo(f"declaration  {made.folder / 'site.toml'}")
        typer.echo(f"send back    {enrolment}")
        for problem in problems:
            typer.echo(f"  {problem['severity']}: {problem['sentence']}")
        if fingerprint is None:
            err("compare the fingerprint with the coordinator over the telephone before `site up`")
    if any(problem["severity"] == "error" for problem in problems):
        raise typer.Exit(3)


def _check(folder: Path) -> list[dict[str, str]]:
    """Return what `consilia check` finds in the site's data."""
    from consilia.readers.check import check_path

    checked = check_path(folder / "site.toml", federation=folder / "federation.toml")
    return [
        {"severity": str(problem.severity), "sentence": problem.sentence}
        for one in checked
        for problem in one.inspection.problems
    ]


@app.command(
    "up", cls=Command, epilog=examples("consilia site up", "consilia site up --foreground")
)
def up(
    at: At = HERE,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until ended, for systemd or a container.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Connect to the coordinator and answer what it may ask."""
    from consilia.federation import processes, site

    opened = site.SiteFolder.open(at)
    if foreground:
        site.prepare(opened)
        processes.Keeper(opened.folder).run()
        return
    site.up(opened)
    if as_json:
        out_json({"site": opened.invitation.site, "processes": processes.pids(opened.folder)})
        return
    invitation = opened.invitation
    typer.echo(f"up       {invitation.site} at {invitation.host}:{invitation.port}")


@app.command(
    "ledger", cls=Command, epilog=examples("consilia site ledger", "consilia site ledger --lines")
)
def ledger(
    at: At = HERE,
    run: Annotated[str | None, typer.Option("--run", help="Only this run.")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every field of every message, not the sums.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what has left this hospital, field by field."""
    from consilia.federation import site

    opened = site.SiteFolder.open(at)
    found = site.ledger(opened)
    found = [line for line in found if run is None or line["run"] == run]
    if as_json:
        out_json(found)
        return
    left = [line for line in found if line["direction"] == "up" and "field" in line]
    if not left:
        typer.echo("nothing has left")
        return
    if lines:
        _lines(left)
    else:
        _sums(left)
    times = len({(x["run"], x["round"], x["verb"], x["time"]) for x in left})
    total = size(sum(line["bytes"] for line in left))
    odd = sorted({f"{x['message']}.{x['field']}" for x in left if _image_like(opened, x)})
    note = "none of it has the shape or the type of an image or a label map"
    if odd:
        note = f"LOOK CLOSELY at {', '.join(odd)}: the shape or the type of images or label maps"
    typer.echo(f"{plural(times, 'message')} left, {total}; {note}")


def _image_like(opened: SiteFolder, line: dict[str, Any]) -> bool:
    """Return whether a field could hold pixels: their type, or two sides of the study's images."""
    sides = ", ".join(str(side) for side in opened.federation.image.size)
    kinds = {"uint8", "bool", "int16"} & set(line["dtype"].split("+"))
    return sides in line["shape"] or (bool(kinds) and line["numbers"] > 1)


def _lines(left: list[dict[str, Any]]) -> None:
    rows = [
        [
            line["time"].removesuffix("+00:00").replace("T", " "),
            str(line["round"]),
            f"{line['message']}.{line['field']}",
            line["dtype"],
            line["shape"],
            size(line["bytes"]),
            line["sha256"][:8],
        ]
        for line in left
    ]
    table(None, ["time (UTC)", "round", "field", "type", "shape", "size", "sha256"], rows)


def _sums(left: list[dict[str, Any]]) -> None:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in left:
        key = (line["study"], line["message"], line["field"])
        groups.setdefault(key, []).append(line)
    rows = [
        [
            study,
            f"{message}.{field}",
            held[0]["dtype"],
            held[0]["shape"],
            str(held[0]["numbers"]),
            str(len({line["run"] for line in held})),
            str(len(held)),
            size(sum(line["bytes"] for line in held)),
            held[-1]["time"][:10],
        ]
        for (study, message, field), held in groups.items()
    ]
    heads = ["study", "what left", "type", "shape", "numbers", "runs", "times", "in all", "last"]
    table("what has left this hospital", heads, rows, spare=("last", "runs"))


@app.command("pause", cls=Command, epilog=examples("consilia site pause"))
def pause(at: At = HERE, as_json: AsJson = False) -> None:
    """Stay connected but answer nothing until the next `site up`."""
    from consilia.federation import site

    folder = site.SiteFolder.open(at).folder
    (folder / "paused").touch()
    if as_json:
        out_json({"paused": True})
        return
    typer.echo("paused; `consilia site up` goes on")


@app.command("down", cls=Command, epilog=examples("consilia site down"))
def down(at: At = HERE, as_json: AsJson = False) -> None:
    """Disconnect; what the site remembers stays on its disk."""
    from consilia.federation import processes, site

    stopped = processes.stop(site.SiteFolder.open(at).folder)
    if as_json:
        out_json({"stopped": stopped})
        return
    typer.echo("down" if stopped else "it was not up")
