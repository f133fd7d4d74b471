"""`consilia datasets`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from consilia.cli.options import AsJson, Data
from consilia.cli.show import out_json, table
from consilia.errors import UsageError


def datasets(
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
    """List the datasets, or draw a contact sheet of one."""
    from consilia.datasets.registry import DATASETS, find_dataset

    if preview is None:
        cards = [dataset.card for dataset in DATASETS.values()]
        if as_json:
            out_json([asdict(card) for card in cards])
            return
        rows = [[c.name, c.task, str(len(c.sites)), ", ".join(c.labels), c.title] for c in cards]
        table("datasets", ["name", "task", "sites", "labels", "what it is"], rows)
        return
    from consilia.datasets.preview import contact_sheet
    from consilia.readers.site import data_root

    dataset = find_dataset(preview)
    path = out or Path(f"{preview}.png")
    if path.suffix != ".png" or not path.parent.is_dir():
        msg = f"--out {path}: expected a .png file in a folder that exists"
        raise UsageError(msg)
    root = data_root(data)
    cases = {s: dataset.load(s, root, dataset.shape, seed)[0] for s in dataset.card.sites}
    contact_sheet(cases, dataset.card.labels, path)
    if as_json:
        out_json({"preview": str(path)})
    else:
        typer.echo(f"preview  {path}")
