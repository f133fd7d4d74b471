"""What to weaken, and how: a recipe for each site of a study, or the record of what was drawn before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilia.datasets.registry import federation_of, parse_reference
from consilia.declare import DATASET, Federation, Supervision
from consilia.declare.read import read_federation, validate
from consilia.errors import UsageError, listing, suggestion, unknown
from consilia.weaken.presets import DEALT, PRESETS, recipes_of
from consilia.weaken.recipe import Provenance, Recipe, recipe_for

#: The largest record that is replayed, in bytes.
LARGEST = 1 << 30


@dataclass(frozen=True)
class Asked:
    """What is wanted of the weak labels; `None` is as the site declares.

    Attributes:
        form: What annotators draw.
        labels: Those that they mark.
        completeness: Share of objects that masks show.
        style: Of scribbles.
    """

    form: Supervision | None = None
    labels: tuple[str, ...] | None = None
    completeness: float | None = None
    style: str | None = None

    def changes(self) -> dict[str, Any]:
        """Return what this changes in a site's declaration."""
        changes: dict[str, Any] = {}
        if self.form is not None:
            changes |= {"supervision": self.form, "style": "plain", "sparsity": None}
        if self.labels is not None:
            changes["annotates"] = self.labels
        if self.style is not None:
            changes["style"] = self.style
        if self.form not in {None, Supervision.MASK}:
            changes["complete"] = True  # only masks can miss objects
        if self.completeness is not None:
            changes["complete"] = False
        return changes


@dataclass(frozen=True)
class Job:
    """A study to weaken: by recipes that draw, or by records that are rendered again.

    Attributes:
        source: As it was named: "dataset:NAME", "dataset:NAME/SITE" or a federation.toml.
        federation: The sites to weaken, as they declare their weak labels.
        beside: The folder of a federation.toml; `None` for a dataset.
        seed: Decides what is drawn.
        recipes: Per site, how it draws.
        records: Per site, what was drawn before.
    """

    source: str
    federation: Federation
    beside: Path | None
    seed: int
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    records: Mapping[str, Provenance] = field(default_factory=dict)

    def to_plain(self, records: Mapping[str, Provenance]) -> dict[str, Any]:
        """Return what `recorded_job` needs to render it again, as values that JSON can hold."""
        return {
            "source": self.source,
            "seed": self.seed,
            "federation": self.federation.model_dump(mode="json", exclude_none=True),
            "sites": {site: record.to_plain() for site, record in records.items()},
        }


def job_for(
    source: str,
    asked: Asked,
    *,
    site: str | None = None,
    preset: str | None = None,
    size: int | None = None,
    seed: int = 0,
) -> Job:
    """Return the job of a source: each site's declaration, changed as asked, and its recipe.

    Args:
        source: "dataset:NAME", "dataset:NAME/SITE", or the path of a federation.toml.
        asked: What the sites are to declare; not read where there is a preset.
        site: The only site to weaken.
        preset: The name of a paper's recipes, out of `PRESETS`.
        size: The side of the images.
        seed: Decides what is drawn.
    """
    if preset is not None and preset not in PRESETS:
        raise UsageError(unknown("preset", preset, PRESETS))
    federation, beside, only = _source(source, preset)
    if size is not None:
        shape = federation.image.model_copy(update={"size": (size, size)})
        federation = federation.model_copy(update={"image": shape})
    names = [declared.name for declared in federation.site]
    wanted = _chosen(names, site or only, source)
    recipes = {} if preset is None else recipes_of(preset, federation, source, seed)
    chosen: dict[str, Recipe] = {}
    for name in wanted:
        if recipes:
            chosen[name] = recipes[name]
            federation = _declared(federation, name, _as_declared(chosen[name]))
        else:
            _check_asked(asked, federation, name)
            federation = _declared(federation, name, asked.changes())
            chosen[name] = recipe_for(
                federation[name], completeness=asked.completeness, exclusive=federation.exclusive
            )
    kept = tuple(declared for declared in federation.site if declared.name in wanted)
    return Job(source, federation.model_copy(update={"site": kept}), beside, seed, recipes=chosen)


def recorded_job(path: Path) -> Job:
    """Return the job of a record, or refuse a file that is none."""
    refusal = f"file '{path}' is no record; name the provenance.json that `consilia weaken` wrote"
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise UsageError(refusal)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        source, seed = str(plain["source"]), int(plain["seed"])
        federation = Federation.model_validate(plain["federation"])
        records = {name: Provenance.from_plain(p) for name, p in plain["sites"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(refusal) from None
    named = Path(source)
    return Job(source, federation, named if named.is_dir() else named.parent, seed, records=records)


def _source(source: str, preset: str | None) -> tuple[Federation, Path | None, str | None]:
    """Return the federation of a source, the folder it lies in, and the one site it names.

    A dataset is divided at random where a preset's sites are random parts of it, or has as many.
    """
    if source.startswith(DATASET):
        dataset, site = parse_reference(source)
        card, sites = dataset.card, dataset.card.sites
        fits = len(PRESETS.get(preset or "", ())) == card.parts != len(sites)
        if card.parts and (fits or (preset in DEALT and not site) or site not in {"", *sites}):
            parts = site.rpartition("-of-")[2] if site.count("-of-") == 1 else str(card.parts)
            count = int(parts) if parts.isdigit() and 0 < int(parts) < 1000 else card.parts
            sites = tuple(f"{number}-of-{count}" for number in range(1, count + 1))
        return federation_of(dataset, sites), None, site or None
    path = Path(source)
    path = path / "federation.toml" if path.is_dir() else path
    return read_federation(path), path.parent, None


def _chosen(names: list[str], only: str | None, source: str) -> list[str]:
    if only is None:
        return names
    if only not in names:
        msg = f"'{source}' has no site '{only}'{suggestion(only, names)} (known: {listing(names)})"
        raise UsageError(msg)
    return [only]


def _check_asked(asked: Asked, federation: Federation, name: str) -> None:
    """Refuse options that do not go together, in the words of the options."""
    form, segments = asked.form or federation[name].supervision, federation.task == "segmentation"
    has = f"--form is {form}" if asked.form else f"site '{name}' declares '{form}'"
    if asked.completeness is not None and not segments:
        msg = (
            f"--completeness {asked.completeness}: only masks can miss objects, but this is a "
            "classification task; leave out --completeness"
        )
        raise UsageError(msg)
    if asked.completeness is not None and form is not Supervision.MASK:
        msg = (
            f"--completeness {asked.completeness}: only masks can miss objects, but {has}; leave out "
            "--completeness, or use --form mask"
        )
        raise UsageError(msg)
    if asked.style == "noisy" and form is not Supervision.SCRIBBLE:
        msg = (
            f"--style noisy: only scribbles have a noisy style, but {has}; leave out --style, or use "
            "--form scribble"
        )
        raise UsageError(msg)


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
    tables = federation.model_dump(mode="json", exclude_none=True)
    for one in tables["site"]:
        if one["name"] == name:
            one.update(changes)
            for key in [key for key, value in one.items() if value is None]:
                del one[key]
    return validate(Federation, tables, federation.name, UsageError)
