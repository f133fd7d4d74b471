"""Which declarations carry targets that a plain supervised loss can use."""

from __future__ import annotations

from consilia.declare import Federation, Supervision


def has_usable_labels(federation: Federation, site: str) -> bool:
    """Return whether a site's declared annotations can supervise directly.

    For segmentation an image-level tag cannot; boxes can, once turned into sparse pixels.
    """
    form = federation[site].supervision
    if not federation.annotated_by(site):
        return False
    return federation.task == "classification" or form not in {Supervision.IMAGE, Supervision.NONE}


def without_usable_labels(federation: Federation) -> tuple[str, ...]:
    """Return the names of the sites that have nothing to train a supervised loss on."""
    return tuple(site for site in federation.sites if not has_usable_labels(federation, site))
