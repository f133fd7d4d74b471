"""`consilia datasets`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from consilia.cli.options import AsJson, Data, writable
from consilia.cli.show import out_json, table
from consilia.errors import UsageError

EXAMPLES = (
    "consilia datasets",
    "consilia datasets --card breast",
    "consilia datasets --preview phantom-mixed --out mixed.png",
)


def datasets(
    card: Annotated[
        str | None,
        typer.Option("--card", metavar="NAME", help="Print where a dataset comes from and goes."),
    ] = None,
    preview: Annotated[
        str | None,
        typer.Option("--preview", metavar="NAME", help="Draw a contact sheet of this dataset."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write the contact sheet; default NAME.png."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="The seed that drawn datasets are drawn from.", min=0)
    ] = 0,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the datasets, print the card of one, or draw a contact sheet of one."""
    from consilia.datasets.registry import DATASETS, find_dataset

    if out is not None and preview is None:
        msg = (
            f"--out {out} is for a contact sheet, but none is asked for; add --preview NAME, or leave "
            "--out out"
        )
        raise UsageError(msg)
    if card is not None and preview is not None:
        msg = f"--card {card} and --preview {preview} are two commands; give one of them at a time"
        raise UsageError(msg)
    if card is not None:
        _print_card(asdict(find_dataset(card).card), as_json)
        return
    if preview is not None:
        _preview(preview, out or Path(f"{preview}.png"), seed, data, as_json)
        return
    cards = [dataset.card for dataset in DATASETS.values()]
    if as_json:
        out_json([asdict(one) for one in cards])
        return
    rows = [[c.name, c.task, str(len(c.sites)), str(len(c.labels)), c.title] for c in cards]
    note = "`consilia datasets --card NAME` says where a dataset comes from and what goes on disk"
    table("datasets", ["name", "task", "sites", "labels", "what it is"], rows, note)


def _print_card(card: dict[str, object], as_json: bool) -> None:
    if as_json:
        out_json(card)
        return
    for key, value in card.items():
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        typer.echo(f"{key:9s} {text}")


def _preview(name: str, path: Path, seed: int, data: Path | None, as_json: bool) -> None:
    from consilia.datasets.preview import contact_sheet
    from consilia.datasets.registry import find_dataset
    from consilia.readers.site import data_root

    dataset = find_dataset(name)
    if path.suffix != ".png" or not path.parent.is_dir():
        msg = f"--out {path}: expected a .png file in a folder that exists"
        raise UsageError(msg)
    if path.exists():
        msg = f"--out {path} is there already, and nothing is written over; choose another --out"
        raise UsageError(msg)
    root = data_root(data)
    cases = {site: dataset.load(site, root, dataset.shape, seed)[0] for site in dataset.card.sites}
    with writable(path, "--out"):
        contact_sheet(cases, dataset.card.labels, path)
    if as_json:
        out_json({"preview": str(path)})
    else:
        typer.echo(f"preview  {path}")
