"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

DASH = "–"


def number(value: Any, digits: int = 3) -> str:
    """Return a number with fixed digits; what is not defined is a dash."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return DASH
    return f"{value:.{digits}f}"


def count(value: float) -> str:
    """Return a whole number with its thousands apart."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Return bytes, in steps of a thousand."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def between(values: Iterable[float], show: Any = count) -> str:
    """Return "3", or "2 to 5" where values differ; a dash where there are none."""
    found = list(values)
    if not found:
        return DASH
    low, high = show(min(found)), show(max(found))
    return str(low) if low == high else f"{low} to {high}"


def duration(seconds: Any) -> str:
    """Return a length of time in its two largest units."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return DASH
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def spans(rounds: Iterable[int]) -> str:
    """Return round numbers as "1, 3 to 7": runs of neighbors become spans."""
    parts: list[list[int]] = []
    for value in sorted(set(rounds)):
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ", ".join(
        str(first) if first == last else f"{first}{' to ' if last - first > 1 else ', '}{last}"
        for first, last in parts
    )


def plural(amount: int, noun: str) -> str:
    """Return "1 site" or "3 sites"."""
    return f"{count(amount)} {noun}{'' if amount == 1 else 's'}"


def sentence_list(items: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return (
        items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
    )


def short(name: str, most: int = 16) -> str:
    """Return a name cut to fit beside a figure."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
