"""A lock: a plain file that one process holds until it ends. What the file holds does not matter."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from consilia.errors import RunError
from consilia.runs.plain import open_plain


def take_lock(path: Path, patience: float = 0.0) -> IO[bytes]:
    """Return the open file of a lock, which is held until it is closed; it is made where it is missing.

    `BlockingIOError` says that another process holds it.

    Args:
        path: The lock. A link is refused, so that no file elsewhere is touched.
        patience: Seconds to try again in; whoever only looks whether it is held lets go at once.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        msg = f"lock '{path}' is a link or no plain file; remove it, and give the command again"
        raise RunError(msg)
    handle = os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW), "rb+")
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= until:
                handle.close()
                raise
            time.sleep(0.05)
        else:
            return handle


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock; those who ask do not take each other for it."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
