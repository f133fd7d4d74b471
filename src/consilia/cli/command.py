"""How a command's help reads: every argument says what it is, and examples come last."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import click
from typer.core import TyperCommand
from typer.models import ArgumentInfo


class Command(TyperCommand):
    """A command that keeps the words of its arguments, which Typer 0.20 loses beside click 8.5."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.callback is None:
            return
        hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True)
        for param in self.params:
            if isinstance(param, click.Argument):
                told = getattr(hints.get(param.name or ""), "__metadata__", ())
                param.help = next((one.help for one in told if isinstance(one, ArgumentInfo)), None)


def examples(*lines: str) -> str:
    """Return what goes below the options: each example on a line of its own."""
    return "\n\n".join(("Examples:" if len(lines) > 1 else "Example:", *lines))
