"""A record as it crosses a network: a JSON manifest, one packed buffer, one signature.

The manifest names every tensor with its element type and shape and the hash of the buffer, so that
both ends know what they hold before they build it. It is signed with the key of whoever sends it:
who a message comes from is the key that verifies it, never what the message says.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from consilia.errors import MessageError
from consilia.payload import Record

#: Written into every manifest; a packet of another format is refused.
FORMAT = 1
#: What a signature is made over begins with this, so that it can serve for nothing else.
CONTEXT = b"consilia packet 1\0"
LARGEST_MANIFEST = 16 << 20
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_OWN = ("format", "verb", "round", "message", "body", "tensors", "bytes", "sha256")


@dataclass(frozen=True)
class Packet:
    """What an engine carries: text, bytes and a signature over both."""

    manifest: str
    buffer: bytes
    signature: bytes

    @property
    def digest(self) -> str:
        """The hash that a reply names to say what it answers, the same for the same content."""
        return hashlib.sha256(self.manifest.encode()).hexdigest()


def seal(
    record: Record, key: ec.EllipticCurvePrivateKey, extra: Mapping[str, Any] | None = None
) -> Packet:
    """Return a record packed and signed.

    Args:
        record: What to send.
        key: The sender's key.
        extra: Further entries of the manifest, e.g. the study, or what is answered.
    """
    buffer = b"".join(_bytes(tensor) for tensor in record.tensors.values())
    table = [
        [name, str(t.dtype).removeprefix("torch."), list(t.shape)]
        for name, t in record.tensors.items()
    ]
    manifest = json.dumps(
        {
            **(extra or {}),
            "format": FORMAT,
            "verb": record.verb,
            "round": record.round,
            "message": record.message,
            "body": record.body,
            "tensors": table,
            "bytes": len(buffer),
            "sha256": hashlib.sha256(buffer).hexdigest(),
        },
        sort_keys=False,
        separators=(",", ":"),
    )
    signature = key.sign(CONTEXT + manifest.encode(), ec.ECDSA(hashes.SHA384()))
    return Packet(manifest, buffer, signature)


def unseal(
    packet: Packet, key: ec.EllipticCurvePublicKey, site: str, limit: int
) -> tuple[Record, dict[str, Any]]:
    """Return the record that a packet holds and the manifest's further entries, or refuse it.

    Args:
        packet: What came.
        key: Whose signature it must bear.
        site: The site it concerns, as the receiver knows it.
        limit: The most bytes the buffer may have.
    """
    if len(packet.manifest) > LARGEST_MANIFEST or len(packet.buffer) > limit:
        held = len(packet.manifest) + len(packet.buffer)
        msg = f"a packet has {held} bytes, expected at most {limit}"
        raise MessageError(msg)
    try:
        signed = CONTEXT + packet.manifest.encode()
        key.verify(packet.signature, signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        msg = "a packet is not signed by the key it must come from"
        raise MessageError(msg) from None
    table = _table(packet)
    tensors = _tensors(table["tensors"], packet.buffer)
    record = Record(table["verb"], site, table["round"], table["message"], table["body"], tensors)
    return record, {name: value for name, value in table.items() if name not in _OWN}


def _table(packet: Packet) -> dict[str, Any]:
    """Return the manifest, its own entries checked."""
    try:
        table = json.loads(packet.manifest)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        msg = f"a packet is not of format {FORMAT}; use the same version of Consilia at every site"
        raise MessageError(msg)
    kinds = {
        "verb": str,
        "round": int,
        "message": str,
        "tensors": list,
        "bytes": int,
        "sha256": str,
    }
    wrong = [name for name, kind in kinds.items() if type(table.get(name)) is not kind]
    if wrong or "body" not in table:
        msg = f"a packet's manifest has no usable '{(wrong or ['body'])[0]}'"
        raise MessageError(msg)
    found = hashlib.sha256(packet.buffer).hexdigest()
    if table["bytes"] != len(packet.buffer) or table["sha256"] != found:
        msg = "a packet's buffer is not the one its manifest describes"
        raise MessageError(msg)
    return table


def _tensors(table: list[Any], buffer: bytes) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    memory = memoryview(bytearray(buffer))
    at = 0
    for entry in table:
        name, kind, shape = _entry(entry)
        count = math.prod(shape)
        dtype = DTYPES[kind]
        size = count * dtype.itemsize
        if name in found or at + size > len(memory):
            msg = f"a packet lists tensor '{name}' twice or past the end of its buffer"
            raise MessageError(msg)
        # A copy of its own for each, so that none lies at an odd address
        flat = torch.empty(count, dtype=dtype)
        if size:
            flat.view(torch.uint8).copy_(
                torch.frombuffer(memory[at : at + size], dtype=torch.uint8)
            )
        found[name] = flat.reshape(shape)
        at += size
    if at != len(memory):
        msg = f"a packet's buffer has {len(memory)} bytes, but its tensors take {at}"
        raise MessageError(msg)
    return found


def _entry(entry: Any) -> tuple[str, str, list[int]]:
    match entry:
        case [str(name), str(kind), list(shape)] if kind in DTYPES and all(
            type(size) is int and 0 <= size < 1 << 40 for size in shape
        ):
            return name, kind, shape
    msg = f"a packet lists {entry!r:.60}, expected a tensor's name, element type and shape"
    raise MessageError(msg)


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
