"""JSON files that a coordinator or a site keeps for itself: read back whole, or refused with a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from consilia.errors import UsageError


def read_kept(path: Path, kind: Any, out: str = "put it back as it was") -> Any:
    """Return the value of a JSON file.

    Args:
        path: The file.
        kind: The type that its value has to fit.
        out: What to do where it is damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        TypeAdapter(kind).validate_python(value, strict=True)
    except (OSError, ValueError, RecursionError):
        msg = f"file '{path}' is missing, damaged or not ours; {out}"
        raise UsageError(msg) from None
    return value
