"""`consilia weaken`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from consilia.cli.options import AsJson, Data
from consilia.cli.show import number, out_json, table
from consilia.declare.supervision import Supervision
from consilia.errors import UsageError

EXAMPLES = (
    "consilia weaken dataset:phantom-mixed/ashford --form scribble --out scribbles",
    "consilia weaken dataset:phantom-lesions --completeness 0.4 --out overlooked",
    "consilia weaken --replay scribbles/provenance.json --out again",
)


def weaken(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="dataset:NAME, dataset:NAME/SITE, or a federation.toml of sites with full labels.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="A new folder for the study with weak labels.")
    ] = Path("weakened"),
    site: Annotated[str | None, typer.Option("--site", help="Weaken only this site.")] = None,
    form: Annotated[
        Supervision | None, typer.Option("--form", help="The form; default as declared.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="A,B", help="The labels to mark; default all.")
    ] = None,
    completeness: Annotated[
        float | None,
        typer.Option("--completeness", help="Share of objects that masks show, at most 1."),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            "--style", metavar="plain|noisy", help="How scribbles are drawn; default plain."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", help="A paper's recipe, e.g. fedlppa-octa; says all of the above."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides what is drawn.", min=0)] = 0,
    size: Annotated[
        int | None, typer.Option("--size", help="Side of the images; default as declared.", min=8)
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", help="Draw nothing: render a provenance.json again."),
    ] = None,
    format: Annotated[  # noqa: A002 - the word that people use
        str | None,
        typer.Option(
            "--format",
            help="png, nifti, csv, parquet, coco, yolo, voc, labelme or cvat; default png for pixels, csv "
            "for others.",
        ),
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Turn full labels into weak ones, with a record of everything that was drawn."""
    from consilia.readers.site import data_root
    from consilia.readers.weakened import format_named, write_weakened
    from consilia.runs.store import refuse_full
    from consilia.weaken.job import Asked, job_for, recorded_job

    if completeness is not None and not 0 < completeness <= 1:
        msg = f"--completeness {completeness}: expected a share of objects above 0 and at most 1"
        raise UsageError(msg)
    refuse_full(out)
    kind = None if format is None else format_named(format)
    asked = {"--form": form, "--labels": labels, "--completeness": completeness, "--style": style}
    if replay is not None:
        given = {**asked, "--preset": preset, "--size": size, "--site": site, "SOURCE": source}
        _refuse(given, "--replay renders what was drawn before")
        job = recorded_job(replay)
    elif source is None:
        msg = "nothing to weaken; name a dataset ('dataset:NAME/SITE') or a federation.toml"
        raise UsageError(msg)
    else:
        if preset is not None:
            _refuse(asked, f"--preset {preset} says everything")
        marked = None if labels is None else tuple(label.strip() for label in labels.split(","))
        wanted = Asked(form, marked, completeness, style)
        job = job_for(source, wanted, site=site, preset=preset, size=size, seed=seed)
    shown = write_weakened(job, data_root(data, job.beside), out, kind)
    if as_json:
        out_json({"out": str(out), "sites": {name: asdict(s) for name, s in shown.items()}})
        return
    rows = [[name, s.form, str(s.images), number(s.known * 100, 1)] for name, s in shown.items()]
    table(f"{job.source} -> {out}", ["site", "form", "images", "% known"], rows)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse an option that says again what something else says already."""
    for name, value in given.items():
        if value is not None:
            msg = f"{why}; leave out {name}"
            raise UsageError(msg)
