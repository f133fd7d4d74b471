"""A folder that is written whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from consilia.errors import UsageError, reason


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `out` at the end, and is gone if something is refused.

    Args:
        out: A folder that does not exist, or is empty.
    """
    missing = [folder for folder in out.parents if not folder.exists()]
    try:
        there = out.is_dir()  # then only it need be writable, as where it is mounted
        beside = out if there else out.parent
        beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=beside) as part:
            made = Path(part) / "made"
            made.mkdir()
            yield made
            if there:
                for path in made.iterdir():
                    path.rename(out / path.name)
            else:
                made.rename(out)
    except OSError as error:
        msg = f"folder '{out}' cannot be written: {reason(error)}; choose another --out"
        raise UsageError(msg) from None
    finally:
        for folder in missing:
            with suppress(OSError):  # not empty: it holds what was made
                folder.rmdir()
