"""Files that a coordinator or a site keeps for itself: read back whole, or refused with a way out."""

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


def read_whole(path: Path, out: str) -> bytes:
    """Return what a file holds, which is never nothing; `out` is the way out where it is missing."""
    try:
        found = path.read_bytes()
    except OSError:
        found = b""
    if not found:
        msg = f"file '{path}' is missing, empty or cannot be read; {out}"
        raise UsageError(msg)
    return found
