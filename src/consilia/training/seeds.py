"""Random numbers from (run seed, site, round, purpose), never from global state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(*parts: str | int) -> int:
    """Return a 63-bit seed that any change of any part changes."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: str | int) -> torch.Generator:
    """Return a CPU generator seeded from the parts."""
    return torch.Generator().manual_seed(derive(*parts))


@contextmanager
def seeded(*parts: str | int) -> Iterator[None]:
    """Run a block whose layers (dropout, initial weights) draw from the parts, then undo it."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        # Without a GPU `torch.manual_seed` notes, at length, what to do once there is one.
        seed = torch.manual_seed if devices else torch.default_generator.manual_seed
        seed(derive(*parts))
        yield
