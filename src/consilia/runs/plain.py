"""Only plain files are opened: a pipe would be waited for without end, and a device never ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return the descriptor of a plain file; anything else is refused with an `OSError`, not waited for.

    Args:
        path: The file.
        flags: As `os.open` takes them.
    """
    found = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return found


def read_plain(path: Path) -> bytes:
    """Return what a plain file holds."""
    with os.fdopen(open_plain(path), "rb") as handle:
        return handle.read()


def open_all(folder: Path) -> None:
    """Open every file of a folder once: what cannot be read is an `OSError` now and not missing later."""
    for place, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            os.close(open_plain(Path(place, name)))


def _raise(error: OSError) -> None:
    raise error
