"""What can be said of a loss without running it: which losses are one, and which need the host."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch

#: Names whose use in a plain loss says that it needs the host, or changes something there.
HOST = frozenset({"append", "cpu", "extend", "generator", "item", "numpy", "tolist"})


def identity(function: Callable[..., Any]) -> Hashable | None:
    """Return what two equal pure functions have in common, or `None` where one cannot say.

    Methods of equal frozen objects are equal, partials of them by their arguments, and functions
    that close over nothing by their code.
    """
    key: Hashable
    if isinstance(function, partial):
        inner = identity(function.func)
        if inner is None:
            return None
        key = (inner, function.args, tuple(sorted(function.keywords.items())))
    elif inspect.ismethod(function):
        key = (function.__func__, function.__self__)
    elif inspect.isfunction(function) and not function.__closure__:
        key = (function.__code__, function.__defaults__)
    else:
        return None
    try:
        hash(key)
    except TypeError:
        return None
    return key


def needs_host(loss: Callable[..., Any]) -> bool:
    """Return whether a plain loss visibly reads from the GPU, draws there or changes what it closes over.

    A warm-up runs its step and takes back what that did to networks, but not to anything else. What a
    partial or the method of an object holds cannot be seen.
    """
    code = getattr(loss, "__code__", None)
    if code is None or inspect.ismethod(loss):
        return True
    assigns = ("STORE_DEREF", "STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR")
    held = inspect.getclosurevars(loss).nonlocals.values()
    return (
        bool(HOST & set(code.co_names))
        or any(each.opname in assigns for each in dis.get_instructions(code))
        or any(isinstance(value, torch.Generator) for value in held)
    )
