"""Flower as a transport: the only package that imports it.

Flower carries packets between the coordinator's SuperLink and the hospitals' SuperNodes, and it
never runs code: a Flower run needs an application bundle, and ours is empty. Both ends are started
with `--isolation process` and a secret, so that the only processes which may take up tasks are
Consilia's own: the round loop at the coordinator (`Session`), the training process at a site
(`serve`). Both run what is installed there.

| module | what it knows |
|---|---|
| `content` | a packet as the content of a Flower message |
| `client` | how to call a SuperLink or a SuperNode, and how to work on a task of theirs |
| `link` | the coordinator's SuperLink: who may connect, how a Flower run begins |
| `session` | a Flower run at the coordinator: who is connected, which answers have come |
| `transport` | the exchange of a round: ask, ask again, give up |
| `site` | the loop of a site's training process |
| `leaving` | what that process had in hand when it was killed, and how the next one ends it |
"""

from __future__ import annotations

import os

from consilia.engines.quiet import QUIET

if any(os.environ.get(name) != value for name, value in QUIET.items()):
    msg = "call consilia.engines.quiet.hush() before importing consilia.engines.flower"
    raise ImportError(msg)

from consilia.engines.flower.client import GONE, LinkLostError
from consilia.engines.flower.content import from_content, to_content
from consilia.engines.flower.link import Link
from consilia.engines.flower.session import Node, Session
from consilia.engines.flower.site import reply_to, serve
from consilia.engines.flower.transport import FlowerTransport

__all__ = [
    "GONE",
    "FlowerTransport",
    "Link",
    "LinkLostError",
    "Node",
    "Session",
    "from_content",
    "reply_to",
    "serve",
    "to_content",
]
