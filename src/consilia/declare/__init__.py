"""What sites say about their labels: plain Python, no torch."""

from consilia.declare.federation import (
    COMMON,
    DATASET,
    POOLED,
    Federation,
    ImageShape,
    SiteDeclaration,
    Task,
)
from consilia.declare.supervision import Sparsity, Supervision

__all__ = [
    "COMMON",
    "DATASET",
    "POOLED",
    "Federation",
    "ImageShape",
    "SiteDeclaration",
    "Sparsity",
    "Supervision",
    "Task",
]
