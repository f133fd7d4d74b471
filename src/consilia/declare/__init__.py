"""What sites say about their labels: plain Python, no torch.

Pydantic, which checks declarations, is imported with the first of them, so that help stays instant.
"""

from typing import TYPE_CHECKING, Any

from consilia.declare.supervision import Sparsity, Supervision

if TYPE_CHECKING:
    from consilia.declare.federation import (
        COMMON,
        DATASET,
        POOLED,
        Federation,
        ImageShape,
        SiteDeclaration,
        Task,
    )

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


def __getattr__(name: str) -> Any:
    if name in __all__:
        from consilia.declare import federation

        return getattr(federation, name)
    msg = f"module '{__name__}' has no attribute '{name}'"
    raise AttributeError(msg)
