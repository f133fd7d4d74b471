"""ChestX-ray14: the whole set, and the four sites that FedPSL cut from its archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import picture_exam, pictures, read_rows
from consilia.datasets.pack import FINDINGS
from consilia.datasets.source import Exam, FileDataset, Place
from consilia.datasets.split import shuffled
from consilia.declare import ImageShape
from consilia.errors import DataError, UsageError

#: How many images the first archive holds; each later one holds `LATER` but for the last.
FIRST, LATER = 4999, 10000
#: The archives of setup A's sites, and how many images of each are used, from its first.
ARCHIVES = (2, 3, 4, 5)
PER_SITE = 1000
#: The labels that each site of setup A marks.
SETUP_A: tuple[tuple[str, ...], ...] = (
    ("infiltration", "effusion", "atelectasis"),
    ("effusion", "atelectasis", "nodule"),
    ("atelectasis", "nodule", "consolidation"),
    ("nodule", "consolidation", "pneumothorax"),
)
#: How many images with and without each label the common test set of setup A draws.
PER_LABEL = 300
NO_FINDING = "No Finding"


@dataclass(frozen=True)
class Table:
    """The label table: file names, a column per finding, patients."""

    filename: tuple[str, ...]
    label: UInt8[np.ndarray, "n k"]
    patient: tuple[str, ...]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Table:
        """Return the table of a pack (`nih_labels`), whose names are bytes."""
        names = arrays["filename"].astype(str).tolist()
        return cls(tuple(names), arrays["label"], tuple(map(str, arrays["patient"].tolist())))


@dataclass(frozen=True)
class FedPSLSite:
    """One site of FedPSL: rows of the table, and the labels it marks."""

    archive: int
    rows: tuple[int, ...]
    annotates: tuple[str, ...]

    def positives(self, table: Table) -> dict[str, int]:
        """Return how many of its images have each label that it marks."""
        own = table.label[list(self.rows)]
        return {name: int(own[:, FINDINGS.index(name)].sum()) for name in self.annotates}


def archive_of(position: int) -> int:
    """Return the official archive, from 1, of the image at a position in file order."""
    return 1 if position < FIRST else 2 + (position - FIRST) // LATER


def fedpsl_partition(table: Table, setup: Literal["A"] = "A") -> tuple[FedPSLSite, ...]:
    """Return the four sites of FedPSL's setup A: the first 1,000 images of archives 2 to 5.

    Setup B adds two sites of other datasets: `dataset:tb-xray/sample-1000` and
    `dataset:covid-xray/sample-1000`.
    """
    if setup != "A":
        msg = f"setup '{setup}' is no partition of ChestX-ray14; use 'A' (B adds tb-xray and covid-xray)"
        raise UsageError(msg)
    order = sorted(range(len(table.filename)), key=lambda row: table.filename[row])
    first = [FIRST + (archive - 2) * LATER for archive in ARCHIVES]
    if len(order) < first[-1] + PER_SITE:
        msg = f"the label table has {len(order)} images; expected all 112,120 of ChestX-ray14"
        raise DataError(msg)
    return tuple(
        FedPSLSite(archive, tuple(order[at : at + PER_SITE]), labels)
        for archive, at, labels in zip(ARCHIVES, first, SETUP_A, strict=True)
    )


def fedpsl_test(
    table: Table, seed: int = 0, labels: Sequence[str] | None = None
) -> tuple[int, ...]:
    """Return rows of other archives: 300 with and 300 without each label, no patient of a site.

    The paper has a set of its own for each label; this is their union, so that a label may have
    more than 300 images of either kind.
    """
    sites = fedpsl_partition(table)
    wanted = labels or tuple(dict.fromkeys(name for site in SETUP_A for name in site))
    seen = {table.patient[row] for site in sites for row in site.rows}
    rank = {name: at for at, name in enumerate(sorted(table.filename))}
    free = {
        table.filename[row]: row
        for row in range(len(table.filename))
        if archive_of(rank[table.filename[row]]) not in ARCHIVES and table.patient[row] not in seen
    }
    order = [free[name] for name in shuffled(free, "fedpsl", seed)]
    chosen: set[int] = set()
    for name in wanted:
        column = FINDINGS.index(name)
        for value in (0, 1):
            chosen.update([row for row in order if table.label[row, column] == value][:PER_LABEL])
    return tuple(sorted(chosen))


@lru_cache(maxsize=2)
def _table(place: Place) -> Table:
    path = place.find(
        "chestxray14/Data_Entry_2017.csv",
        "chestxray14/Data_Entry_2017_v2020.csv",
        within=place.root,
    )
    rows = read_rows(path, place, ("Image Index", "Finding Labels", "Patient ID"))
    at = {name: column for column, name in enumerate(FINDINGS)}
    label = np.zeros((len(rows), len(FINDINGS)), dtype=np.uint8)
    for row, cells in enumerate(rows):
        for finding in cells["Finding Labels"].split("|"):
            plain = finding.strip().lower().replace("_", "-")
            if plain in at:
                label[row, at[plain]] = 1
            elif finding.strip() != NO_FINDING:
                msg = f"{place.what(path)} has the finding '{finding}'; expected one of 14 or '{NO_FINDING}'"
                raise DataError(msg)
    names = tuple(cells["Image Index"] for cells in rows)
    return Table(names, label, tuple(cells["Patient ID"] for cells in rows))


@lru_cache(maxsize=2)
def _images(place: Place) -> dict[str, Path]:
    home = place.find("chestxray14", within=place.root)
    archives = sorted(home.glob("images_[0-9][0-9][0-9]"))
    folders = [a / "images" if (a / "images").is_dir() else a for a in archives]
    found: dict[str, Path] = {}
    for folder in folders or [place.find("images", within=home)]:
        found.update({path.name: path for path in pictures(folder).values()})
    return found


def _exams(
    place: Place, table: Table, rows: Sequence[int], tested: frozenset[str] | None
) -> list[Exam]:
    images = _images(place)
    exams = []
    for row in rows:
        name = table.filename[row]
        if name not in images:
            msg = f"image '{name}' of dataset '{place.card.name}' is not on disk; unpack all of its archives"
            raise DataError(msg)
        split = None if tested is None else "test" if name in tested else "train"
        exams.append(
            picture_exam(
                place, images[name], group=table.patient[row], label=table.label[row], split=split
            )
        )
    return exams


def index(place: Place, site: str) -> list[Exam]:
    """Return all images in the official split, which keeps patients apart."""
    del site
    path = place.find("test_list.txt")
    tested = frozenset(path.read_text(encoding="utf-8").split())
    table = _table(place)
    return _exams(place, table, range(len(table.filename)), tested)


def index_fedpsl(place: Place, site: str) -> list[Exam]:
    """Return the images of one of FedPSL's sites; "other-archives" holds the common test set."""
    table = _table(place)
    if site == "other-archives":
        rows = fedpsl_test(table)
        return _exams(place, table, rows, frozenset(table.filename[row] for row in rows))
    mine = fedpsl_partition(table)[FEDPSL_SITES.index(site)]
    return _exams(place, table, mine.rows, frozenset())


FEDPSL_SITES = tuple(f"archive-{number}" for number in ARCHIVES)
_TERMS: dict[str, Any] = {
    "source": "nihcc.app.box.com/v/ChestXray-NIHCC",
    "licence": "no restriction; the NIH Clinical Center asks for citation and acknowledgement",
    "citation": "Wang et al. ChestX-ray8. CVPR 2017.",
    "layout": "chestxray14/Data_Entry_2017.csv, chestxray14/test_list.txt and the images in "
    "chestxray14/images_001/images/*.png to images_012, or all in chestxray14/images/*.png",
}
CHESTXRAY14 = FileDataset(
    DatasetCard(
        "chestxray14",
        "Fourteen findings on chest radiographs, the FedLSM study",
        "classification",
        FINDINGS,
        ("nih",),
        parts=8,
        **_TERMS,
    ),
    ImageShape(size=(224, 224), channels=1),
    index,
    exclusive=False,
    common=True,
)
CHESTXRAY14_FEDPSL = FileDataset(
    DatasetCard(
        "chestxray14-fedpsl",
        "Four sites of 1,000 chest radiographs each, the FedPSL study (setup A)",
        "classification",
        FINDINGS,
        FEDPSL_SITES,
        **_TERMS,
    ),
    ImageShape(size=(224, 224), channels=1),
    index_fedpsl,
    exclusive=False,
    common=True,
    tested_only=("other-archives",),
)
