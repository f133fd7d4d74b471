"""Refuse to commit medical images, large files and private keys (a pre-commit hook)."""

from __future__ import annotations

import sys
from pathlib import Path

IMAGES = (".dcm", ".nii", ".nii.gz", ".mha", ".mhd", ".nrrd")
LARGEST = 500_000
KEY = b"PRIVATE " + b"KEY-----"


def problem(path: Path) -> str | None:
    """Return why a file may not be committed, or `None`."""
    if path.name.lower().endswith(IMAGES):
        return "is a medical image; keep data outside the repository"
    if path.stat().st_size > LARGEST:
        return f"has {path.stat().st_size} bytes; at most {LARGEST} are allowed"
    if KEY in path.read_bytes():
        return "holds a private key"
    return None


def main(names: list[str]) -> int:
    """Print every problem and return how many there are."""
    found = {name: why for name in names if Path(name).is_file() and (why := problem(Path(name)))}
    for name, why in found.items():
        sys.stderr.write(f"{name} {why}\n")
    return len(found)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
