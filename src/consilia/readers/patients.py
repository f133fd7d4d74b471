"""cases.csv -> the patient of each image, and what the image is used for.

Without the table, the patient is who the file says (DICOM) or the image itself, and a hash of the
patient puts one in five into the test set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from consilia.errors import listing, suggestion
from consilia.readers.entries import SPLITS, Folder, Names, Picture, Split
from consilia.readers.files import Report, few, printable
from consilia.readers.tables import Row, once_each, read_table

#: The part of the patients that is held out for testing where no table says who is.
TEST_SHARE = 0.2


def assign(
    folder: Folder,
    pictures: Mapping[str, Picture],
    report: Report,
    refused: Iterable[str] = (),
) -> dict[str, tuple[str, Split]]:
    """Return the patient and the split of each image; rows about refused ones are passed over."""
    if not folder.has("cases.csv"):
        patients = {name: picture.patient or name for name, picture in pictures.items()}
        return {
            name: (patient, drawn_split(patient) if folder.site else "test")
            for name, patient in patients.items()
        }
    columns = ("image", "patient", "split")
    needed = columns if folder.site else columns[:2]
    names = {p.file: name for name, p in pictures.items()} | {name: name for name in pictures}
    table = read_table(folder, "cases.csv", Names(names, refused), needed, columns, report)
    default: Split = "train" if folder.site else "test"
    assigned = {name: (name, default) for name in pictures}
    if table is None:
        return assigned
    rows = once_each(folder, "cases.csv", table, report)
    for row in rows.values():
        assigned[row.image] = _patient(folder, row, report), _split(folder, row, report)
    unlisted = [picture.file for name, picture in pictures.items() if name not in rows]
    if unlisted:
        report(
            "error",
            f"cases.csv of {folder.who} does not list the image{'s' * (len(unlisted) > 1)} "
            f"{few(unlisted)}; add a row for each image or remove it",
        )
    check_leaks(folder, [assigned[name] for name in rows], report)
    return assigned


def drawn_split(patient: str) -> Split:
    """Return the split that a hash of the patient's name decides."""
    drawn = int.from_bytes(hashlib.sha256(patient.encode()).digest()[:8], "big") / 2**64
    return "test" if drawn < TEST_SHARE else "train"


def _patient(folder: Folder, row: Row, report: Report) -> str:
    patient = row.cells["patient"]
    if not patient or not patient.isprintable():
        found = f"the patient '{printable(patient)}'" if patient else "no patient"
        report(
            "error",
            f"cases.csv of {folder.who}, line {row.line}, has {found}; expected a name or number",
        )
        return row.image
    return patient


def _split(folder: Folder, row: Row, report: Report) -> Split:
    if not folder.site:
        return "test"
    split = row.cells["split"].lower()
    if split not in SPLITS:
        report(
            "error",
            f"cases.csv of {folder.who}, line {row.line}, has the split '{printable(split)}'; "
            f"expected 'train', 'validation' or 'test'{suggestion(split, SPLITS)}",
        )
        return "train"
    return split


def check_leaks(folder: Folder, assigned: Iterable[tuple[str, Split]], report: Report) -> None:
    """Report patients who are in more than one split."""
    splits: dict[str, set[Split]] = {}
    for patient, split in assigned:
        splits.setdefault(patient, set()).add(split)
    for patient, found in splits.items():
        if len(found) > 1:
            report(
                "error",
                f"patient '{printable(patient)}' of {folder.who} is in the splits "
                f"{listing(s for s in SPLITS if s in found)}, so a model would be judged on a "
                "patient it has seen; keep each patient in one split",
            )


def report_copy(
    folder: Folder, first: tuple[str, Split], second: tuple[str, Split], report: Report
) -> None:
    """Report two images, each with its split, that have the same pixels."""
    what = f"images '{first[0]}' and '{second[0]}' of {folder.who} are the same"
    if first[1] == second[1]:
        report("warning", f"{what}; remove one if it is the same examination")
    else:
        report(
            "error",
            f"{what}, but one is in '{first[1]}' and one in '{second[1]}', so a model would "
            "be judged on an image it has seen; remove one or keep both in one split",
        )
