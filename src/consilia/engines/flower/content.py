"""Packets in Flower's messages."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from consilia.engines.packet import Packet
from consilia.errors import MessageError


def to_content(packet: Packet) -> RecordDict:
    """Return a packet as the content of a Flower message: two records, whatever it holds."""
    buffer = np.frombuffer(packet.buffer, np.uint8)
    head = ConfigRecord({"manifest": packet.manifest, "signature": packet.signature})
    return RecordDict({"head": head, "body": ArrayRecord({"buffer": Array(buffer)})})


def from_content(content: RecordDict) -> Packet:
    """Return the packet that a Flower message holds, or refuse it."""
    try:
        head, body = content["head"], content["body"]
        manifest, signature, held = head["manifest"], head["signature"], body["buffer"]
        if not isinstance(held, Array):
            raise TypeError
        buffer = held.numpy()
        if set(content) != {"head", "body"} or set(head) != {"manifest", "signature"}:
            raise KeyError
        if not isinstance(manifest, str) or not isinstance(signature, bytes) or len(body) != 1:
            raise TypeError
        if buffer.dtype != np.uint8 or buffer.ndim != 1:
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError):
        msg = "a message holds something else than a packet"
        raise MessageError(msg) from None
    return Packet(manifest, buffer.tobytes(), signature)
