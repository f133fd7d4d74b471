"""Tables of a folder, as comma-separated values or as Parquet -> rows about its images."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from consilia.errors import DataError, listing, suggestion
from consilia.readers.entries import Folder, Names
from consilia.readers.files import Report, check_values, guarded, printable, stay_inside

LARGEST_TABLE = 64 << 20


@dataclass(frozen=True)
class Row:
    """A row of a table: its line in the file, the image it is about, and its cells by column."""

    line: int
    image: str
    cells: dict[str, str]


def read_table(
    folder: Folder,
    name: str,
    images: Mapping[str, str],
    needed: Sequence[str],
    known: Sequence[str],
    report: Report,
) -> list[Row] | None:
    """Return the rows of a table that are about images; `None` where it is of no use at all.

    Args:
        folder: Holds the table.
        name: The file.
        images: The image that each name stands for.
        needed: The columns that it must have, of which the first is "image".
        known: The columns that it may have.
        report: Hears of everything that is wrong.
    """
    try:
        read = _read_parquet if name.endswith(".parquet") else _read_lines
        lines = read(folder, name, needed, known)
    except DataError as problem:
        report("error", str(problem))
        return None
    columns = next(lines)[1]
    rows = []
    for line, cells in lines:
        where = f"{name} of {folder.who}, line {line},"
        if len(cells) != len(columns):
            report("error", f"{where} has {len(cells)} cells; expected {len(columns)}")
            continue
        row = dict(zip(columns, cells, strict=True))
        image = find_image(row["image"], images, where, report)
        if image is not None:
            rows.append(Row(line, image, row))
    return rows


def column_names(folder: Folder, name: str) -> tuple[str, ...]:
    """Return the columns of a table, whatever they are."""
    where = f"{name} of {folder.who}"
    if not name.endswith(".parquet"):
        first = next(csv.reader(io.StringIO(_read_text(folder, name, where), newline="")), [])
        return tuple(cell.strip() for cell in first)
    stay_inside(folder.root / name, folder.root, where)
    with guarded(where):
        from pyarrow import parquet  # type: ignore[import-untyped] # without type information

        with parquet.ParquetFile(folder.root / name) as file:
            return tuple(file.schema_arrow.names)


def was_refused(found: str, images: Mapping[str, str]) -> bool:
    """Return whether an image of this name is there but cannot be used, as was reported."""
    return isinstance(images, Names) and found in images.refused


def find_image(
    found: str, images: Mapping[str, str], where: str, report: Report, thing: str = "the row"
) -> str | None:
    """Return the image that is meant by a name; `None` where there is none, as was reported."""
    if found in images:
        return images[found]
    if was_refused(found, images):
        return None
    if isinstance(images, Names) and found in images.shared:
        report(
            "error",
            f"{where} names the image '{printable(found)}', which is in several sub-folders of "
            "'images'; name its sub-folder as well",
        )
        return None
    names = sorted(set(images.values()))
    near = suggestion(found, names) if len(names) <= 200 else ""
    report(
        "error",
        f"{where} names the image '{printable(found)}', which is not in 'images'; correct or remove "
        f"{thing}{near}",
    )
    return None


def _read_lines(
    folder: Folder, name: str, needed: Sequence[str], known: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    """Return the numbered lines of a table, the first with its columns, which are as expected."""
    where = f"{name} of {folder.who}"
    reader = csv.reader(io.StringIO(_read_text(folder, name, where), newline=""))
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if cells]
    except csv.Error as problem:
        msg = f"{where} is not a table of comma-separated values: {problem}"
        raise DataError(msg) from None
    if not lines:
        msg = f"{where} is empty; expected the first line '{','.join(needed)}'"
        raise DataError(msg)
    _check_columns(where, lines[0][1], needed, known)
    return iter(lines)


def _read_parquet(
    folder: Folder, name: str, needed: Sequence[str], known: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    """Return the rows of a Parquet table as a file of comma-separated values has them."""
    where, path = f"{name} of {folder.who}", folder.root / name
    stay_inside(path, folder.root, where)
    with guarded(where):
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            columns = list(file.schema_arrow.names)
            check_values((max(1, file.metadata.num_rows), max(1, len(columns))), where)
            unpacked = sum(
                file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups)
            )
            if unpacked > LARGEST_TABLE:
                msg = f"{where} has {unpacked} bytes; a table has at most {LARGEST_TABLE}"
                raise DataError(msg)
            _check_columns(where, columns, needed, known)
            values = file.read(columns).to_pydict()
            lines = zip(*values.values(), strict=True)
    cells = ([_plain(cell) for cell in line] for line in lines)
    return iter([(1, columns), *enumerate(cells, start=2)])


def _plain(cell: object) -> str:
    """Return a value of a typed table as text: nothing, or not a number, is blank."""
    if cell is None or cell != cell:  # not a number differs from itself
        return ""
    return str(int(cell)) if isinstance(cell, bool) else str(cell).strip()


def _read_text(folder: Folder, name: str, where: str) -> str:
    """Return the text of a file, which is inside the folder, plain and not too large."""
    path = folder.root / name
    stay_inside(path, folder.root, where)
    if not path.is_file():
        msg = f"{where} is not a file; replace it by a table of comma-separated values"
        raise DataError(msg)
    try:
        if path.stat().st_size > LARGEST_TABLE:
            msg = f"{where} has {path.stat().st_size} bytes; a table has at most {LARGEST_TABLE}"
            raise DataError(msg)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        msg = f"{where} is not UTF-8 text; save it as 'CSV UTF-8'"
        raise DataError(msg) from None
    except OSError:
        msg = f"{where} may not be read by this user; change its permissions"
        raise DataError(msg) from None


def _check_columns(
    where: str, found: Sequence[str], needed: Sequence[str], known: Sequence[str]
) -> None:
    """Refuse columns that are unknown, missing or there twice."""
    for column in found:
        if column not in known:
            msg = (
                f"{where} has the unknown column '{printable(column)}'{suggestion(column, known)} "
                f"(known, separated by commas: {', '.join(known)})"
            )
            raise DataError(msg)
        if found.count(column) > 1:
            msg = f"{where} has the column '{column}' more than once; keep one"
            raise DataError(msg)
    missing = [column for column in needed if column not in found]
    if missing:
        msg = f"{where} has no column {listing(missing)}; expected {', '.join(needed)}"
        raise DataError(msg)


def once_each(folder: Folder, name: str, rows: Iterable[Row], report: Report) -> dict[str, Row]:
    """Return the rows by image, of which each may have one."""
    first: dict[str, Row] = {}
    for row in rows:
        if row.image in first:
            report(
                "error",
                f"{name} of {folder.who}, line {row.line}, lists the image '{row.image}' again "
                f"(first in line {first[row.image].line}); keep one row for each image",
            )
        first.setdefault(row.image, row)
    return first
