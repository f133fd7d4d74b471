"""Every deliberate error, one sentence each.

::

    ConsiliaError              exit code
    ├── RunError               1   a run that could start did not finish
    ├── UsageError             2   a command, a run file or a name that cannot be used
    ├── DeclarationError       3   what a site or a federation declares contradicts itself or its data
    │   └── DataError          3   a file of a site cannot be used
    └── MessageError           4   a message does not have its declared type

A sentence is lower case, has no full stop, and says who, what was found, what was expected and
the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class ConsiliaError(Exception):
    """Something a user can act on; printed as one sentence, never as a traceback."""

    exit_code: ClassVar[int] = 1


class RunError(ConsiliaError):
    """A run that could start did not finish."""


class UsageError(ConsiliaError):
    """A command, a run file or a name that cannot be used."""

    exit_code = 2


class DeclarationError(ConsiliaError):
    """A declaration contradicts itself, the federation or a method's needs."""

    exit_code = 3


class DataError(DeclarationError):
    """A file of a site cannot be used as it is declared."""


class MessageError(ConsiliaError):
    """A message does not have its declared type."""

    exit_code = 4


def suggestion(found: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" when a known name is near the one found, else nothing."""
    near = difflib.get_close_matches(found, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence for a name that a table does not have: the nearest one, and all of them."""
    names = list(known)
    return f"no {kind} named '{name}'{suggestion(name, names)} (known: {', '.join(names)})"


def listing(names: Iterable[str], last: str = "and") -> str:
    """Return names as "'a', 'b' and 'c'" (or "... or 'c'"), for use inside a sentence."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def reason(error: OSError) -> str:
    """Return what the operating system said, for use in a sentence."""
    return (error.strerror or str(error)).lower()
