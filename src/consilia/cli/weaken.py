"""`consilia weaken`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilia.cli.options import AsJson, Data
from consilia.cli.show import number, out_json, table
from consilia.declare.supervision import Supervision
from consilia.errors import DataError, UsageError, listing, suggestion

if TYPE_CHECKING:
    from consilia.declare import Federation
    from consilia.readers.write import Format
    from consilia.weaken import Provenance, Recipe

#: The largest record that is replayed, in bytes.
LARGEST = 1 << 30


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
        float | None, typer.Option("--completeness", help="Share of objects that masks show.")
    ] = None,
    style: Annotated[
        str | None, typer.Option("--style", metavar="plain|noisy", help="Of scribbles.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="A paper's recipe, e.g. fedlppa-octa.")
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
            "--format", help="How annotations are written; default png for pixels, csv for others."
        ),
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Turn full labels into weak ones, with a record of everything that was drawn."""
    from consilia.runs.store import refuse_full

    refuse_full(out)
    kind = None if format is None else _format(format)
    asked = {"form": form, "labels": labels, "completeness": completeness, "style": style}
    if replay is not None:
        given = {**asked, "preset": preset, "--size": size, "site": site, "source": source}
        _refuse_with_replay([name.strip("-") for name, value in given.items() if value is not None])
        job = _recorded(replay, data, kind)
    elif source is None:
        msg = "nothing to weaken; name a dataset ('dataset:NAME/SITE') or a federation.toml"
        raise UsageError(msg)
    else:
        job = _asked(source, site, asked, preset, seed, size, data, kind)
    shown = _write_whole(job, out)
    if as_json:
        out_json({"out": str(out), "sites": shown})
        return
    rows = [
        [name, s["form"], str(s["images"]), number(s["known"] * 100, 1)]
        for name, s in shown.items()
    ]
    table(f"{job.source} -> {out}", ["site", "form", "images", "% known"], rows)


@dataclass(frozen=True)
class Job:
    """What to weaken, and how: recipes that draw, or a record that is rendered again."""

    source: str
    federation: Federation
    root: Path
    seed: int
    recipes: dict[str, Recipe]
    records: dict[str, Provenance]
    format: Format | None


# ----------------------------------------------------------------------------------- what was asked


def _asked(
    source: str,
    site: str | None,
    asked: dict[str, Any],
    preset: str | None,
    seed: int,
    size: int | None,
    data: Path | None,
    format: Format | None,  # noqa: A002 - the word that people use
) -> Job:
    from consilia.weaken import PRESETS, recipe_for

    given = [name for name, value in asked.items() if value is not None]
    recipes: tuple[Recipe, ...] = ()
    if preset is not None:
        if preset not in PRESETS:
            msg = f"no preset named '{preset}'{suggestion(preset, PRESETS)} (known: {', '.join(PRESETS)})"
            raise UsageError(msg)
        if given:
            msg = f"--preset {preset} says everything; leave out --{given[0]}"
            raise UsageError(msg)
        recipes = PRESETS[preset]
    federation, root, only = _sources(source, data, len(recipes))
    if size is not None:
        shape = federation.image.model_copy(update={"size": (size, size)})
        federation = federation.model_copy(update={"image": shape})
    names = [declared.name for declared in federation.site]
    wanted = _chosen(names, site or only, source)
    chosen: dict[str, Recipe] = {}
    for name in wanted:
        if recipes:
            chosen[name] = _of_preset(recipes, preset or "", names, name, source)
            federation = _declared(federation, name, _as_declared(chosen[name]))
        else:
            federation = _declared(federation, name, _changes(asked))
            chosen[name] = recipe_for(
                federation[name],
                completeness=asked["completeness"],
                exclusive=federation.exclusive,
            )
    kept = tuple(declared for declared in federation.site if declared.name in wanted)
    federation = federation.model_copy(update={"site": kept})
    return Job(source, federation, root, seed, chosen, {}, format)


def _sources(source: str, data: Path | None, recipes: int) -> tuple[Federation, Path, str | None]:
    """Return the federation of a source, where its data is, and the one site it names."""
    from consilia.datasets.registry import federation_of, parse_reference
    from consilia.declare import DATASET
    from consilia.declare.read import read_federation
    from consilia.readers.site import data_root

    if source.startswith(DATASET):
        dataset, site = parse_reference(source)
        card, sites = dataset.card, dataset.card.sites
        if card.parts and (recipes == card.parts != len(sites) or site not in {"", *sites}):
            parts = site.rpartition("-of-")[2] if site.count("-of-") == 1 else str(card.parts)
            count = int(parts) if parts.isdigit() and 0 < int(parts) < 1000 else card.parts
            sites = tuple(f"{number}-of-{count}" for number in range(1, count + 1))
        return federation_of(dataset, sites), data_root(data), site or None
    path = Path(source)
    path = path / "federation.toml" if path.is_dir() else path
    return read_federation(path), data_root(data, path.parent), None


def _chosen(names: list[str], only: str | None, source: str) -> list[str]:
    if only is None:
        return names
    if only not in names:
        msg = f"'{source}' has no site '{only}'{suggestion(only, names)} (known: {listing(names)})"
        raise UsageError(msg)
    return [only]


def _of_preset(
    recipes: Sequence[Recipe], preset: str, names: list[str], name: str, source: str
) -> Recipe:
    """Return the recipe of a site: the only one, or the one in its place."""
    if len(recipes) == 1:
        return recipes[0]
    if len(recipes) != len(names):
        msg = f"preset '{preset}' is for {len(recipes)} sites, but '{source}' has {len(names)}; use --form"
        raise UsageError(msg)
    return recipes[names.index(name)]


def _changes(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the options change in a declaration."""
    changes: dict[str, Any] = {}
    if asked["form"] is not None:
        changes |= {"supervision": asked["form"], "style": "plain", "sparsity": None}
    if asked["labels"] is not None:
        changes["annotates"] = tuple(label.strip() for label in asked["labels"].split(","))
    if asked["style"] is not None:
        changes["style"] = asked["style"]
    if asked["form"] not in {None, "mask"}:
        changes["complete"] = True  # only masks can miss objects
    if asked["completeness"] is not None:
        changes["complete"] = False
    return changes


def _as_declared(recipe: Recipe) -> dict[str, Any]:
    return {
        "supervision": recipe.form,
        "annotates": recipe.annotates,
        "style": recipe.style,
        "complete": recipe.completeness is None,
        "sparsity": "medium" if recipe.convert == "scribble" else None,
    }


def _declared(federation: Federation, name: str, changes: dict[str, Any]) -> Federation:
    """Return a federation in which a site declares something else, or refuse what contradicts."""
    from consilia.declare import Federation
    from consilia.declare.read import validate

    tables = federation.model_dump(mode="json", exclude_none=True)
    for one in tables["site"]:
        if one["name"] == name:
            one.update(changes)
            for key in [key for key, value in one.items() if value is None]:
                del one[key]
    return validate(Federation, tables, federation.name, UsageError)


# ------------------------------------------------------------------------------- what was recorded


def _refuse_with_replay(given: list[str]) -> None:
    if given:
        msg = f"--replay renders what was drawn before; leave out '{given[0]}'"
        raise UsageError(msg)


def _recorded(path: Path, data: Path | None, format: Format | None) -> Job:  # noqa: A002
    """Return the job of a record, or refuse a file that is none."""
    from consilia.declare import Federation
    from consilia.readers.site import data_root
    from consilia.weaken import Provenance

    if not path.is_file() or path.stat().st_size > LARGEST:
        msg = f"file '{path}' is no record; name the provenance.json that `consilia weaken` wrote"
        raise UsageError(msg)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        source, seed = str(plain["source"]), int(plain["seed"])
        federation = Federation.model_validate(plain["federation"])
        records = {name: Provenance.from_plain(p) for name, p in plain["sites"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        msg = f"file '{path}' is no record; name the provenance.json that `consilia weaken` wrote"
        raise UsageError(msg) from None
    beside = Path(source)
    root = data_root(data, beside if beside.is_dir() else beside.parent)
    return Job(source, federation, root, seed, {}, records, format)


# ------------------------------------------------------------------------------------------ writing


def _format(name: str) -> Format:
    """Return a format by name."""
    from consilia.readers.write import FORMS

    for known in FORMS:
        if known == name:
            return known
    msg = f"no format named '{name}'{suggestion(name, FORMS)} (known: {', '.join(FORMS)})"
    raise UsageError(msg)


def _usual(form: Supervision) -> Format:
    """Return the plain format of a form: masks as pictures, boxes and tags as tables."""
    return "csv" if form.constrains else "png"


def _write_whole(job: Job, out: Path) -> dict[str, dict[str, Any]]:
    """Write the study under another name first, so that it is there whole or not at all."""
    from consilia.runs.store import reason

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as part:
            made = Path(part) / "made"
            made.mkdir()
            shown = _write(job, made)
            if out.is_dir():
                out.rmdir()
            made.rename(out)
    except OSError as error:
        msg = f"folder '{out}' cannot be written: {reason(error)}; choose another --out"
        raise UsageError(msg) from None
    return shown


def _write(job: Job, out: Path) -> dict[str, dict[str, Any]]:
    """Write the study: a folder per site, its federation.toml, the record and a contact sheet."""
    import tomli_w

    import consilia
    from consilia.datasets.paint import contact_sheet
    from consilia.readers.site import load_site
    from consilia.readers.write import write_folder
    from consilia.weaken import replay as render
    from consilia.weaken import weaken_by

    full, records, sheets, shown = job.federation.with_full_labels(), {}, {}, {}
    declared = []
    for site in job.federation.site:
        loaded = load_site(full, site.name, job.root, seed=job.seed)
        if loaded.train.truth is None:
            msg = f"site '{site.name}' has no full labels to weaken; use its labels as they are"
            raise DataError(msg)
        if site.name in job.records:
            record = job.records[site.name]
            view = render(record, loaded.train)
        else:
            view, record = weaken_by(
                job.recipes[site.name],
                loaded.train,
                job.federation.labels,
                site=site.name,
                seed=job.seed,
            )
        write_folder(
            out / site.name,
            loaded.train,
            view,
            site,
            job.federation.labels,
            format=job.format or _usual(site.supervision),
            test=loaded.test,
            provenance=record,
        )
        declared.append(site.model_dump(mode="json", exclude_none=True) | {"data": site.name})
        records[site.name] = record.to_plain()
        sheets[site.name] = (loaded.train, view)
        known = view.known_labels if view.known_pixels is None else view.known_pixels
        shown[site.name] = {
            "form": site.supervision.value,
            "images": len(view),
            "known": float(known.mean()),
        }
    tables = job.federation.model_dump(mode="json", exclude_none=True, exclude={"test"})
    (out / "federation.toml").write_text(
        tomli_w.dumps({**tables, "site": declared}), encoding="utf-8"
    )
    record_of_all = {
        "consilia": consilia.__version__,
        "source": job.source,
        "seed": job.seed,
        "federation": job.federation.model_dump(mode="json", exclude_none=True),
        "sites": records,
    }
    (out / "provenance.json").write_text(json.dumps(record_of_all), encoding="utf-8")
    contact_sheet(sheets, out / "contact.png")
    return shown
