"""A study as it crosses between a coordinator and its sites, and what a site may be asked."""

from __future__ import annotations

from typing import Any

from consilia.declare import Federation, SiteDeclaration
from consilia.runs.spec import RunSpec

#: What a site answers unasked for leave, and what only by choice, with the key of a study that asks:
#: rows per test case with their names, and features of training images.
ALLOWED = ("introduce", "train", "evaluate")
BY_CHOICE = {"examine": "per_case", "portray": "portraits"}
VERBS = (*ALLOWED, *BY_CHOICE)


def without_path(federation: Federation, site: str) -> SiteDeclaration:
    """Return a site's declaration; where its data is, it knows itself."""
    return federation[site].model_copy(update={"data": "data"})


def for_sites(spec: RunSpec) -> dict[str, Any]:
    """Return a study as sites are told it: without paths of this machine or of other sites."""
    sites = tuple(without_path(spec.federation, site.name) for site in spec.federation.site)
    told = spec.model_copy(
        update={
            "federation": spec.federation.model_copy(update={"site": sites, "test": None}),
            "learner": spec.learner.model_copy(update={"init": None}),
        }
    )
    return told.model_dump(mode="json", exclude_none=True)


def as_federation(spec: RunSpec) -> RunSpec:
    """Return a run as it is kept across hospitals: a checkpoint a round, and hashes in the ledger."""
    engine = spec.engine.model_copy(update={"checkpoint_every": 1, "ledger": "hashes"})
    return spec.model_copy(update={"engine": engine})
