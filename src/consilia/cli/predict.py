"""`consilia predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilia.cli.options import AsJson, Run
from consilia.cli.show import out_json, plural

EXAMPLES = (
    "consilia predict runs/phantom-mixed/fedavg-0 incoming",
    "consilia predict runs/two-hospitals/finetune-0 incoming --site oslo",
)


def predict(
    run: Run,
    folder: Annotated[Path, typer.Argument(help="A folder of new images, or one image.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; default RUN/predicted/FOLDER.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option("--site", help="Use this site's own model, where the method gives it one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write masks (segmentation) or a CSV of probabilities (classification) for new images."""
    from consilia.engines.predict import predict_folder
    from consilia.readers.files import split_name

    name = folder.resolve().name
    target = out or run / "predicted" / (split_name(name)[0] if folder.is_file() else name)
    written = predict_folder(run, folder, target, site)
    if as_json:
        out_json({"out": str(target), "images": written})
    else:
        typer.echo(f"{plural(written, 'image')} -> {target}")
