"""What an engine carries: a message flattened, with whom it concerns."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from consilia.errors import MessageError
from consilia.payload.codec import build, ends, flatten, paths, pieces
from consilia.payload.kinds import Json, Layout, Weights

M = TypeVar("M")


@dataclass(frozen=True)
class Record:
    """A message flattened for an engine, with whom it concerns."""

    verb: str
    site: str
    round: int
    message: str
    body: Json
    tensors: Weights
    #: The last round whose update of this site was used: what it remembers must be from then.
    since: int = 0

    @property
    def size(self) -> int:
        """Bytes of content: tensors as they are, the rest as compact JSON."""
        return sum(t.nbytes for t in pieces(self.tensors)) + len(json.dumps(self.body))

    @functools.cached_property
    def finite(self) -> bool:
        """Whether no number in it is NaN or infinite; looked up once, so that one process does it once."""
        if not all(_finite(tensor) for tensor in pieces(self.tensors)):
            return False
        return all(math.isfinite(x) for x in ends(self.body) if isinstance(x, float))


def pack(message: object, verb: str, site: str, round_: int, since: int = 0) -> Record:
    """Return a message as the record an engine carries."""
    body, tensors = flatten(message)
    return Record(verb, site, round_, type(message).__name__, body, tensors, since)


def unpack(kind: type[M], record: Record, layout: Layout | None = None) -> M:
    """Return a record's message, or refuse it with a sentence that names the site and the field."""
    try:
        message: M = build(kind, record.body, record.tensors, layout)
    except MessageError as error:
        msg = f"{record.verb} message of site '{record.site}' in round {record.round}: {error}"
        raise MessageError(msg) from None
    used, held = set(paths(record.body)), set(record.tensors)
    if used != held:
        odd = sorted(used ^ held)[0]
        msg = (
            f"{record.verb} message of site '{record.site}' in round {record.round}: tensor '{odd}' "
            "belongs to no field"
        )
        raise MessageError(msg)
    return message


def is_finite(record: Record) -> bool:
    """Return whether no number in a record is NaN or infinite."""
    return record.finite


def _finite(tensor: Tensor) -> bool:
    """Sum first: one pass without a copy, and not finite if any entry is not; then look closely."""
    if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
        return True
    return bool(torch.isfinite(tensor).all())
