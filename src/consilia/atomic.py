"""A file that is written whole or not at all, also where several processes write it at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a file of the writer's own to fill; it becomes `path` at the end, once it is on the disk.

    Who reads `path` sees what was there before or all that is new. Of several that write it at a
    time the last one stands. Where filling fails, `path` stays as it was and nothing is left behind.

    Args:
        path: The file, in a folder that exists.
        mode: Who may read and write it, before the umask.
    """
    part = path.with_name(f".{path.name}.{threading.get_native_id()}.part")  # one in all processes
    try:
        part.touch(mode=mode)
        allowed = part.stat().st_mode
        yield part
        part.chmod(allowed)  # safetensors puts a file of its own there, for its owner alone
        with part.open("rb+") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text as one file, whole or not at all."""
    with whole_file(path, mode) as part:
        part.write_text(text, encoding="utf-8")
