"""Files of a site's folder: what is there, what leads out of it, and the words of problems."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Literal

from consilia.errors import DataError, listing

#: The largest file that is read, in bytes.
LARGEST = 1 << 30
#: The most values that are taken from one file: 2 GiB as numbers of 8 bytes.
MOST_VALUES = 1 << 28
#: Files that operating systems leave in folders, and the index of a DICOM disc.
LITTER = {"thumbs.db", "desktop.ini", "dicomdir"}
OUTSIDE = "leads outside its folder by a link; copy the file itself into the folder"
DAMAGED = "cannot be read; it is damaged, cut short or of another type: export it again"
#: Libraries that log values which they find odd, whoever's they are.
LOGGERS = ("pydicom", "highdicom", "nibabel.global")
#: The only file type of two parts.
GZIPPED = ".nii.gz"
#: What the folder of images may be called: our name, and that of Pascal VOC.
IMAGE_FOLDERS = ("images", "JPEGImages")

Size = tuple[int, int]
Severity = Literal["error", "warning"]
#: Where problems go: reading stops at the first error, an inspection collects them all.
Report = Callable[[Severity, str], None]


def refuse(severity: Severity, sentence: str) -> None:
    """Raise an error; pass over a warning."""
    if severity == "error":
        raise DataError(sentence)


# ---------------------------------------------------------------------------------------- folders


def image_folder(root: Path) -> Path:
    """Return the folder that holds the images, by the first of its names that is there."""
    found = (root / name for name in IMAGE_FOLDERS)
    return next((path for path in found if path.is_dir()), root / IMAGE_FOLDERS[0])


def list_files(
    folder: Path,
    root: Path,
    kind: str,
    who: str,
    types: tuple[str, ...],
    report: Report,
    *,
    beside: tuple[str, ...] = (),
    series: bool = False,
    nested: bool = False,
) -> dict[str, Path]:
    """Return the files of a folder by their stems, sorted; those of sub-folders as "<sub>/<stem>".

    Args:
        folder: Holds nothing but files of one kind; hidden files are passed over.
        root: What links must not lead out of.
        kind: "image" or "mask", for sentences.
        who: Whose folder it is, for sentences.
        types: The suffixes that can be read.
        report: Hears of every file that cannot be used.
        beside: Suffixes of other files that may lie there, and are passed over.
        series: Whether a folder may stand for a file: the slices of one volume.
        nested: Whether files of sub-folders are listed as well.
    """
    files: dict[str, Path] = {}
    what = f"folder '{folder.name}' of {who}"
    entries = walk(folder, root, what, types, series=series) if nested else None
    for prefix, entry in entries or (("", entry) for entry in scan(folder, root, what)):
        name, (stem, suffix) = prefix + entry.name, split_name(entry.name)
        if suffix.lower() in beside and entry.is_file():
            continue
        fault = _fault(entry, suffix, root, types, series=series)
        if series and fault is None and entry.is_dir():
            stem = entry.name
        stem = prefix + stem
        if fault:
            report("error", f"{kind} '{printable(name)}' of {who} {fault}")
        elif stem in files:
            report(
                "error",
                f"{kind}s '{prefix}{files[stem].name}' and '{name}' of {who} have the same name but "
                "for their type; remove or rename one",
            )
        else:
            files[stem] = folder / name
    return dict(sorted(files.items()))


def walk(
    folder: Path, root: Path, what: str, types: tuple[str, ...], *, series: bool = False
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what a folder and its sub-folders hold, each with its sub-folder as "<sub>/"."""
    for prefix in shelves(folder, root, what, types, series=series):
        for entry in scan(folder / prefix, root, what):
            if not _is_shelf(entry, types, series=series):
                yield prefix, entry


def shelves(
    folder: Path, root: Path, what: str, types: tuple[str, ...], *, series: bool = False
) -> Iterator[str]:
    """Yield the sub-folders that hold files of these types as "<sub>/", after the folder itself."""
    yield ""
    for entry in scan(folder, root, what):
        if _is_shelf(entry, types, series=series):
            inner = shelves(folder / entry.name, root, what, types, series=series)
            yield from (f"{entry.name}/{name}" for name in inner)


def _is_shelf(entry: os.DirEntry[str], types: tuple[str, ...], *, series: bool) -> bool:
    """Return whether a sub-folder holds files of its own; the slices of a volume are none.

    Links to folders may lead in a circle, and are not followed.
    """
    if entry.is_symlink() or not entry.is_dir() or not entry.name.isprintable():
        return False
    if split_name(entry.name)[1].lower() in types:
        return False
    try:
        with os.scandir(entry.path) as found:
            inner = _kept(found)
    except OSError:
        return False  # told when it is read
    if series and any(is_slice(one) for one in inner):
        return False
    return any(one.is_dir() or split_name(one.name)[1].lower() in types for one in inner)


def is_slice(entry: os.DirEntry[str]) -> bool:
    """Return whether a file of a folder is taken for a slice of its DICOM series."""
    return not entry.is_dir() and (entry.name.lower().endswith(".dcm") or "." not in entry.name)


def scan(folder: Path, root: Path, what: str) -> list[os.DirEntry[str]]:
    """Return what a folder holds, sorted, without hidden files."""
    stay_inside(folder, root, what)
    try:
        with os.scandir(folder) as entries:
            return sorted(_kept(entries), key=attrgetter("name"))
    except OSError:
        msg = f"{what} may not be read by this user; change its permissions"
        raise DataError(msg) from None


def _kept(entries: Iterable[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    return [e for e in entries if not e.name.startswith(".") and e.name.lower() not in LITTER]


def split_name(name: str) -> tuple[str, str]:
    """Return a file's stem and its type: "scan.nii.gz" is ("scan", ".nii.gz")."""
    if name.lower().endswith(GZIPPED) and len(name) > len(GZIPPED):
        return name[: -len(GZIPPED)], name[-len(GZIPPED) :]
    stem, _, suffix = name.rpartition(".")
    return (stem, f".{suffix}") if stem else (name, "")


def _fault(
    entry: os.DirEntry[str], suffix: str, root: Path, types: tuple[str, ...], *, series: bool
) -> str | None:
    """Return what is wrong with a file by its name and place; `None` when nothing is."""
    if not entry.name.isprintable():
        return "has a name with characters that cannot be printed; rename it"
    if entry.is_symlink() and not is_inside(Path(entry.path), root):
        return OUTSIDE
    if series and suffix.lower() not in types and entry.is_dir():
        return None
    if suffix.lower() not in types:
        found = f"the type '{suffix}'" if suffix else "no file type"
        return f"has {found}; expected one of {', '.join(types)}: convert or remove it"
    if not entry.is_file():
        return "is not a file; expected one file for each image: remove it"
    return None


def is_inside(path: Path, root: Path) -> bool:
    """Return whether a path stays in a folder, wherever links on its way lead."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links that lead in a circle
        return False


def stay_inside(path: Path, root: Path, what: str) -> None:
    """Refuse a path that leads out of a folder through a link."""
    if not is_inside(path, root):
        msg = f"{what} {OUTSIDE}"
        raise DataError(msg)


# ------------------------------------------------------------------------------------------- bytes


class guarded:  # noqa: N801 # reads as a verb where it is used; entered for every file, so no generator
    """Turn whatever goes wrong inside a decoder into one sentence, which quotes no content."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, DataError) or not isinstance(problem, Exception):
            return
        if isinstance(problem, PermissionError):
            found = "may not be read by this user; change its permissions"
        elif isinstance(problem, ImportError):
            found = f"cannot be read without the package '{problem.name}'; install it"
        else:  # a damaged file can raise anything at all in a decoder
            found = DAMAGED
        msg = f"{self.what} {found}"
        raise DataError(msg) from None


def read_bytes(path: Path, what: str) -> bytes:
    """Return what a file holds, unless it is empty or suspiciously large.

    Raises:
        DataError: It is; `what` names the file in the sentence.
        OSError: It cannot be read.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(file).st_size
        check_bytes(size, what)
        data = os.read(file, size)
        while len(data) < size and (more := os.read(file, size - len(data))):
            data += more  # a network drive may give a file in parts
        return data
    finally:
        os.close(file)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep decoders from warning: odd metadata does not make pixels wrong, and may name patients."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_bytes(size: int, what: str, most: int | None = None) -> None:
    """Refuse a file that is empty or suspiciously large, before it is read."""
    most = LARGEST if most is None else most
    if not size:
        msg = f"{what} is an empty file (0 bytes); copy or export it again"
        raise DataError(msg)
    if size > most:
        msg = f"{what} has {size} bytes; expected at most {most}: make it smaller"
        raise DataError(msg)


def check_values(shape: Sequence[int], what: str) -> None:
    """Refuse a file whose header claims more values than fit in memory, before it is unpacked."""
    count = 1
    for length in shape:
        count *= int(length)
    if not 1 <= count <= MOST_VALUES:
        claimed = " x ".join(str(int(length)) for length in shape)
        msg = (
            f"{what} claims to hold {claimed} values; expected 1 to {MOST_VALUES}: crop or split it"
        )
        raise DataError(msg)


# ------------------------------------------------------------------------------------------- words


def printable(text: str) -> str:
    """Return text for use in a sentence: on one line, and not endless."""
    if len(text) <= 80 and text.isprintable():
        return text
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= 80 else f"{plain[:77]}..."


def quoted(names: Iterable[str]) -> str:
    """Return names as "'a', 'b'", for use in a sentence."""
    return ", ".join(f"'{name}'" for name in names)


def few(names: Sequence[str], most: int = 5) -> str:
    """Return some names for use in a sentence, and how many more there are."""
    if len(names) <= most:
        return listing(names)
    return f"{quoted(names[:most])} and {len(names) - most} more"
