"""What several methods need of a federation, in the one sentence that refuses another."""

from __future__ import annotations

from consilia.declare import Federation, Supervision
from consilia.errors import listing


def masks_of_one_label(federation: Federation) -> str | None:
    """Return why a method that corrects or distrusts masks of one label cannot serve, or `None`."""
    if federation.task != "segmentation":
        return "segments, and this is a classification task"
    if len(federation.labels) > 1:
        return f"segments one label, and this federation has {len(federation.labels)}"
    other = [s.name for s in federation.site if s.supervision is not Supervision.MASK]
    return f"needs masks at every site; {listing(other)} gave other forms" if other else None
