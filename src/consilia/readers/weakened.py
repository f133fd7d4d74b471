"""A job of weakening -> a study on disk: site folders, federation.toml, the record, a contact sheet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tomli_w

import consilia
from consilia.datasets.contract import SiteData
from consilia.datasets.paint import contact_sheet
from consilia.declare import SiteDeclaration, Supervision
from consilia.errors import DataError, UsageError, unknown
from consilia.labels import LabelView
from consilia.readers.site import load_site
from consilia.readers.whole import whole_folder
from consilia.readers.write import FORMS, Format, write_folder
from consilia.weaken import Provenance, replay, weaken_by
from consilia.weaken.job import Job


@dataclass(frozen=True)
class Weakened:
    """What became of a site: the form, its training images, and the share of them that is known."""

    form: str
    images: int
    known: float


def format_named(name: str) -> Format:
    """Return a format by name."""
    for known in FORMS:
        if known == name:
            return known
    raise UsageError(unknown("format", name, FORMS))


def write_weakened(
    job: Job,
    root: Path,
    out: Path,
    format: Format | None = None,  # noqa: A002 - the word that people use
) -> dict[str, Weakened]:
    """Write the study of a job, whole or not at all, and return what became of each site.

    Args:
        job: What to weaken, and how.
        root: Where relative `data` paths of the full labels begin.
        out: A folder that does not exist, or is empty.
        format: How annotations are written; else masks as pictures, boxes and tags as tables.
    """
    with whole_folder(out) as made:
        return _write(job, root, made, format)


def _write(job: Job, root: Path, out: Path, format: Format | None) -> dict[str, Weakened]:  # noqa: A002
    full = job.federation.with_full_labels()
    records, sheets, shown, declared = {}, {}, {}, []
    for site in job.federation.site:
        loaded = load_site(full, site.name, root, seed=job.seed)
        view, record = _weak(job, site, loaded)
        write_folder(
            out / site.name,
            loaded.train,
            view,
            site,
            job.federation.labels,
            format=format or _usual(site.supervision),
            test=loaded.test,
            provenance=record,
        )
        declared.append(site.model_dump(mode="json", exclude_none=True) | {"data": site.name})
        records[site.name] = record
        sheets[site.name] = (loaded.train, view)
        known = view.known_labels if view.known_pixels is None else view.known_pixels
        shown[site.name] = Weakened(site.supervision.value, len(view), float(known.mean()))
    tables = job.federation.model_dump(mode="json", exclude_none=True, exclude={"test"})
    study = tomli_w.dumps({**tables, "site": declared})
    (out / "federation.toml").write_text(study, encoding="utf-8")
    record_of_all = {"consilia": consilia.__version__, **job.to_plain(records)}
    (out / "provenance.json").write_text(json.dumps(record_of_all), encoding="utf-8")
    contact_sheet(sheets, out / "contact.png")
    return shown


def _weak(job: Job, site: SiteDeclaration, loaded: SiteData) -> tuple[LabelView, Provenance]:
    """Return a site's weak labels and what was drawn for them, now or before."""
    if loaded.train.truth is None:
        msg = f"site '{site.name}' has no full labels to weaken; use its labels as they are"
        raise DataError(msg)
    if site.name in job.records:
        record = job.records[site.name]
        return replay(record, loaded.train), record
    labels = job.federation.labels
    return weaken_by(job.recipes[site.name], loaded.train, labels, site=site.name, seed=job.seed)


def _usual(form: Supervision) -> Format:
    """Return the plain format of a form: masks as pictures, boxes and tags as tables."""
    return "csv" if form.constrains else "png"
