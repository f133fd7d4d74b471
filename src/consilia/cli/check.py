"""`consilia check`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilia.cli.options import AsJson, Data, data_of, is_study, writable
from consilia.cli.show import number, out_json, plural, size, table
from consilia.errors import UsageError

if TYPE_CHECKING:
    from consilia.readers.check import Checked
    from consilia.readers.inspect import Inspection

EXAMPLES = (
    "consilia check federation.toml",
    "consilia check federation.toml --sheet sheets",
    "consilia check data/lima --federation federation.toml --site lima",
    "consilia check breast --data downloads",
)


def check(
    path: Annotated[
        Path,
        typer.Argument(
            help="A federation.toml, a site.toml, a site's folder or .npz file, a run.toml or a "
            "built-in study (STUDY@SETTING)."
        ),
    ],
    federation: Annotated[
        Path | None,
        typer.Option(
            "--federation", help="The federation a site.toml, a folder or a file belongs to."
        ),
    ] = None,
    site: Annotated[str | None, typer.Option("--site", help="Check only this site.")] = None,
    data: Data = None,
    sheet: Annotated[
        Path | None,
        typer.Option("--sheet", help="Write a contact sheet per site, annotations drawn, here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say in plain words what is wrong with a site's folder or a declaration."""
    found = _look(path, federation, site, data)
    checked = [one.inspection for one in found]
    if sheet is not None:
        _draw(found, sheet)
    if as_json:
        out_json([c.to_dict() for c in checked])
    else:
        for guess in (one.federation for one in found if one.guessed):
            height, width = guess.image.size
            typer.echo(
                f"judging by its files: {guess.task}, supervision '{guess.site[0].supervision}', "
                f"labels {', '.join(guess.labels)}, images {width} x {height} x "
                f"{guess.image.channels}; --federation checks it against a declaration"
            )
        for one in found:
            _show(one)
    errors = sum(p.severity == "error" for c in checked for p in c.problems)
    if errors:
        raise typer.Exit(3)
    if not as_json:
        typer.echo(f"{plural(len(checked), 'site')} checked, no errors")


def _look(
    path: Path, federation: Path | None, site: str | None, data: Path | None
) -> tuple[Checked, ...]:
    """Check what is on disk, or what a study says it needs there."""
    from consilia.readers.check import check_federation, check_path

    named = str(path)
    if not is_study(named):
        return check_path(path, federation=federation, only=site, data=data)
    from consilia.engines.inprocess import load_own
    from consilia.runs.spec import read_spec

    if federation is not None:
        msg = f"'{named}' has a federation of its own, so that --federation says nothing; leave it out"
        raise UsageError(msg)
    spec = read_spec(named)
    return check_federation(
        spec.federation, data_of(named, data), only=site, load=partial(load_own, spec)
    )


def _show(checked: Checked) -> None:
    """Print what a site holds, by form and by label, and everything that is wrong with it."""
    one = checked.inspection
    if not one.images:
        typer.echo(f"{one.site or one.path}: no image could be read")
        _show_problems(one)
        return
    rows = [
        [label, str(held.images), number(None if held.share is None else held.share * 100, 2)]
        for label, held in one.labels.items()
    ]
    held = f"{plural(one.images, 'image')} of {plural(one.patients, 'patient')}"
    title = f"{one.site or one.path}: {held} ({_counts(one.splits)}), {size(one.memory)}"
    if one.form:
        how = "taken for" if checked.guessed else "declared"
        title += f"\n{how} '{one.form}'; images per form: {_counts(one.forms) or 'none'}"
    masks = f" in masks ({', '.join(one.looked_at)})" if one.looked_at else ""
    table(title, ["label", "images", f"% of pixels{masks}"], rows)
    _show_problems(one)


def _show_problems(one: Inspection) -> None:
    for problem in one.problems:
        typer.echo(f"  {problem.severity}: {problem.sentence}")


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items())


def _draw(found: tuple[Checked, ...], folder: Path) -> None:
    """Write a contact sheet of every site that can be read."""
    from consilia.readers.sheet import draw_contact_sheet

    with writable(folder, "--sheet"):
        folder.mkdir(parents=True, exist_ok=True)
    sheets = [folder / f"{one.inspection.site or 'folder'}.png" for one in found]
    for path in sheets:
        if path.exists():
            msg = f"file '{path}' is there already; name another folder with --sheet, or remove it"
            raise UsageError(msg)
    for one, path in zip(found, sheets, strict=True):
        inspection = one.inspection
        if inspection.usable:
            data = one.load()
            with writable(path, "--sheet"):
                draw_contact_sheet(data, one.federation.labels, path)
            typer.echo(f"sheet    {path}", err=True)
        else:
            who = f"site '{inspection.site}'" if inspection.site else "the common test set"
            typer.echo(f"sheet    none of {who}, which has errors", err=True)
