"""labels.csv or labels.parquet -> which labels each image shows: 1, 0 or blank (unknown)."""

from __future__ import annotations

from collections.abc import Mapping

from consilia.errors import listing
from consilia.readers.entries import Entry, Folder
from consilia.readers.files import Report, few, printable
from consilia.readers.tables import Row, once_each, read_table

TAGS = {"": -1, "0": 0, "0.0": 0, "1": 1, "1.0": 1}
TABLES = ("labels.csv", "labels.parquet")


def tag_table(folder: Folder) -> str:
    """Return the table that says what the images show."""
    return next((name for name in TABLES if folder.has(name)), TABLES[0])


def read_tags(
    folder: Folder, images: Mapping[str, str], report: Report
) -> dict[str, tuple[int, ...]] | None:
    """Return what the table says about each image; `None` where it says nothing at all."""
    labels, found = folder.federation.labels, [name for name in TABLES if folder.has(name)]
    if not found:
        report(
            "error",
            f"{folder.who} has no table labels.csv, which says what its images show; add one with "
            f"the columns {', '.join(('image', *labels))}",
        )
        return None
    if len(found) > 1:
        report(
            "error",
            f"{folder.who} has both {listing(found)}, which both say what its images show; keep one "
            "of them",
        )
        return None
    needed = ("image", *(labels[index] for index in folder.annotated))
    table = read_table(folder, found[0], images, needed, ("image", *labels), report)
    if table is None:
        return None
    rows = once_each(folder, found[0], table, report)
    return {name: _row_tags(folder, found[0], row, report) for name, row in rows.items()}


def _row_tags(folder: Folder, table: str, row: Row, report: Report) -> tuple[int, ...]:
    """Return one value per label; of exclusive labels, one that is present rules out the others."""
    where, labels = f"{table} of {folder.who}, line {row.line},", folder.federation.labels
    for label in labels:
        if row.cells.get(label, "") not in TAGS:
            report(
                "error",
                f"{where} has '{printable(row.cells[label])}' for '{label}'; expected 1 (present), "
                "0 (absent) or blank (unknown)",
            )
    tags = tuple(TAGS.get(row.cells.get(label, ""), -1) for label in labels)
    if folder.segments or not folder.federation.exclusive:
        return tags
    present = [label for label, tag in zip(labels, tags, strict=True) if tag == 1]
    if len(present) > 1 or not any(tags):
        report(
            "error",
            f"{where} has {'the labels ' + listing(present) if present else 'none of the labels'}, "
            "but labels are exclusive; keep one or set `exclusive = false`",
        )
    return tuple(max(0, tag) for tag in tags) if present else tags


def check_tags(folder: Folder, entry: Entry, report: Report) -> None:
    """Report an image without a row, and one that is to be judged without all labels."""
    what, labels, table = folder.name(entry.image), folder.federation.labels, tag_table(folder)
    if entry.volume is not None:
        what = f"slice '{entry.name}' of {folder.who}"
    if entry.tags is None:
        report("error", f"{what} has no row in {table}; add one, blank where nothing is known")
    elif entry.split != "train" and -1 in entry.tags:
        blank = [label for label, tag in zip(labels, entry.tags, strict=True) if tag < 0]
        or_else = " or put its patient in 'train' in cases.csv" if folder.site else ""
        report(
            "error",
            f"{entry.split} {what} has no value for {few(blank)} in {table}, but {entry.split} "
            f"images need all labels; fill it in{or_else}",
        )
