"""A site's folder -> its images, its label view and its test cases.

::

    site/
      images/     *.png, *.jpg, *.jpeg, *.tif, *.tiff, *.bmp or *.npy
      masks/      <same stem>.png, .tif, .tiff, .bmp or .npy
      boxes.csv   image,label,left,top,right,bottom
      labels.csv  image,<label>,<label>,...
      cases.csv   image,patient,split

*Masks* hold 0 for background and `c` for the federation's c-th label. Where the federation has a
single label, 255 may stand for it. At sites with scribbles, points or blocks, 255 means "not looked
at" in training images. *Boxes* are in pixels of the stored image, both ends included; an image
without a row shows none of the site's labels. *Labels* are 1 (present), 0 (absent) or blank
(unknown). *Cases* are optional: without them each image is a patient, and a hash of its name puts
one in five into the test set. Test and validation images need complete labels whatever the site
declares. Tables name images with or without their file type.

Problems go to a `Report`: `read_folder` stops at the first error, `consilia.readers.inspect` runs
the same functions and collects everything.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Int8, UInt8

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import Federation, Supervision
from consilia.errors import DataError, listing, suggestion
from consilia.labels import LabelView, labels_known
from consilia.readers.images import (
    IMAGE_TYPES,
    MASK_TYPES,
    Pixels,
    Report,
    Size,
    fit_image,
    fit_mask,
    list_files,
    printable,
    read_image,
    read_index_map,
    refuse,
    stay_inside,
)
from consilia.weaken import Box, convert_boxes, draw_conversion, hide_labels, recipe_for, render_box
from consilia.weaken.regions import BACKGROUND, stream
from consilia.weaken.rotated_box import upright

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
#: What an image is judged or trained by.
Source = Literal["mask", "marks", "boxes", "tags", "nothing"]
SOURCES: dict[Supervision, Source] = {Supervision.BOX: "boxes", Supervision.IMAGE: "tags"}

#: The value of pixels that an annotator did not look at.
UNSEEN = 255
#: The part of the patients that is held out for testing where no table says who is.
TEST_SHARE = 0.2
LARGEST_TABLE = 64 << 20
WHOLE = re.compile(r"-?[0-9]{1,9}(\.0*)?")
TAGS = {"": -1, "0": 0, "0.0": 0, "1": 1, "1.0": 1}
#: One converted box needs one value of a byte.
MOST_BOXES = 254


@dataclass(frozen=True)
class Folder:
    """A folder and what is declared about it; without a site it is a test set that all share."""

    root: Path
    federation: Federation
    site: str | None

    @property
    def who(self) -> str:
        """Whose folder it is, for sentences."""
        return f"site '{self.site}'" if self.site else "the common test set"

    @property
    def segments(self) -> bool:
        """Whether masks are predicted."""
        return self.federation.task == "segmentation"

    @cached_property
    def form(self) -> Supervision:
        """How the training images are annotated."""
        if self.site:
            return self.federation[self.site].supervision
        return Supervision.MASK if self.segments else Supervision.IMAGE

    @cached_property
    def annotated(self) -> tuple[int, ...]:
        """The labels that are marked in training images, as indices from 0."""
        labels = self.federation.labels
        marked = self.federation.annotated_by(self.site) if self.site else labels
        return tuple(labels.index(label) for label in marked)

    def source(self, split: Split) -> Source:
        """Return which files say what the images of a split show."""
        if not self.segments:
            return "nothing" if split == "train" and self.form is Supervision.NONE else "tags"
        if split != "train" or self.form is Supervision.MASK:
            return "mask"
        if self.form.marks_pixels:
            return "marks"
        return SOURCES.get(self.form, "nothing")

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name, or a link of this name to anywhere."""
        return os.path.lexists(self.root / name)

    def name(self, path: Path, kind: str = "image") -> str:
        """Return a file as it is named in sentences."""
        return f"{kind} '{path.name}' of {self.who}"


@dataclass(frozen=True)
class LabelBox:
    """A row of boxes.csv: a label as its index from 1, and a box in pixels of the stored image."""

    line: int
    label: int
    box: Box


@dataclass(frozen=True)
class Entry:
    """One image: its files, its patient, and what the tables say about it.

    Attributes:
        name: The file's stem.
        image: The image file.
        mask: The mask file, where there is one.
        patient: To whom it belongs.
        split: What it is used for.
        tags: 1, 0 or -1 (unknown) for each label of the federation; `None` without a row.
        boxes: In the order of their labels.
    """

    name: str
    image: Path
    mask: Path | None
    patient: str
    split: Split
    tags: tuple[int, ...] | None = None
    boxes: tuple[LabelBox, ...] = ()


#: The first image with certain pixels, by their checksum, shape and type.
Copies = dict[tuple[int, tuple[int, ...], str], Entry]


def read_folder(path: Path, federation: Federation, site: str | None) -> SiteData:
    """Return everything a site's folder holds, with its label view as the site declared it.

    Args:
        path: The site's folder.
        federation: Gives the labels, the image size and the site's declaration.
        site: Whose folder it is; `None` for a common test set, of which all cases are test cases.

    Raises:
        DataError: Something in the folder cannot be used; the sentence says what, and the way out.
    """
    folder = Folder(path, federation, site)
    entries = survey(folder, refuse)
    copies: Copies = {}
    train, view = _read_train(folder, in_split(entries, "train"), copies)
    validation = _read_judged(folder, in_split(entries, "validation"), copies)
    test = _read_judged(folder, in_split(entries, "test"), copies)
    return SiteData(train, view, validation if len(validation) else None, test)


def in_split(entries: Iterable[Entry], split: Split) -> list[Entry]:
    """Return the images that are used for one thing."""
    return [entry for entry in entries if entry.split == split]


# ----------------------------------------------------------------------------- what a folder holds


def survey(folder: Folder, report: Report) -> tuple[Entry, ...]:
    """Return the images of a folder by name, with all that its tables say; no image is opened.

    Raises:
        DataError: There is nothing to survey.
    """
    _check_declaration(folder)
    images = _find_images(folder, report)
    assigned = _assign(folder, images, report)
    sources = {split: folder.source(split) for _, split in assigned.values()}
    used = set(sources.values())
    masks = _find_masks(folder, images, report) if used & {"mask", "marks"} else {}
    tags = _read_tags(folder, images, report) if "tags" in used else {}
    boxes = _read_boxes(folder, images, report) if "boxes" in used else {}
    entries = tuple(
        Entry(
            name,
            image,
            None if masks is None else masks.get(name),
            *assigned[name],
            None if tags is None else tags.get(name),
            tuple(boxes.get(name, ())),
        )
        for name, image in images.items()
    )
    for entry in entries:
        source = sources[entry.split]
        if source in {"mask", "marks"} and masks is not None and entry.mask is None:
            report("error", _no_mask(folder, entry))
        if source == "tags" and tags is not None:
            _check_tags(folder, entry, report)
    if folder.site and not in_split(entries, "train"):
        report("error", _nothing_to_train_on(folder))
    return entries


def _check_declaration(folder: Folder) -> None:
    """Refuse what this layout cannot hold."""
    if folder.site and folder.site not in folder.federation.sites:
        near = suggestion(folder.site, folder.federation.sites)
        msg = f"no site is named '{folder.site}'{near} (known: {quoted(folder.federation.sites)})"
        raise DataError(msg)
    if folder.form is Supervision.ROTATED_BOX:
        msg = (
            f"{folder.who} declares supervision 'rotated-box', but boxes.csv holds upright boxes; "
            "declare supervision 'box'"
        )
        raise DataError(msg)
    if folder.segments and len(folder.federation.labels) >= UNSEEN:
        msg = (
            f"the federation has {len(folder.federation.labels)} labels, but the masks of "
            f"{folder.who} can tell {UNSEEN - 1} apart; unite some labels"
        )
        raise DataError(msg)


def _find_images(folder: Folder, report: Report) -> dict[str, Path]:
    """Return the image files by their stems."""
    root, who = folder.root, folder.who
    if not root.is_dir():
        found = "is not a folder" if root.exists() else "does not exist"
        msg = f"folder '{root}' of {who} {found}; check `data` and where relative paths begin"
        raise DataError(msg)
    if not (root / "images").is_dir():
        msg = f"folder '{root}' of {who} has no folder 'images'; put its images there"
        raise DataError(msg)
    images = list_files(root / "images", root, "image", who, IMAGE_TYPES, report)
    if not images:
        msg = f"{who} has no images that can be read in 'images'; expected {', '.join(IMAGE_TYPES)}"
        raise DataError(msg)
    return images


def _find_masks(folder: Folder, images: dict[str, Path], report: Report) -> dict[str, Path] | None:
    """Return the mask files by their stems; `None` where there is no folder, as was reported."""
    inner = folder.root / "masks"
    if not inner.is_dir():
        need, or_else = f"its supervision is '{folder.form}'", ""
        if not folder.form.marks_pixels:
            need = "its test images need complete labels"
            or_else = ", or put all patients in 'train' in cases.csv"
        sentence = f"{folder.who} has no folder 'masks', but {need}; put its masks there{or_else}"
        report("error", sentence)
        return None
    masks = list_files(inner, folder.root, "mask", folder.who, MASK_TYPES, report)
    alone = [path.name for name, path in masks.items() if name not in images]
    if alone:
        report(
            "warning",
            f"{folder.who} has masks without an image of the same name, which are not read: "
            f"{few(alone)}",
        )
    return masks


def _no_mask(folder: Folder, entry: Entry) -> str:
    add = f"add 'masks/{entry.name}.png'"
    if entry.split == "train":
        return f"{folder.name(entry.image)} has no mask; {add} or remove the image"
    or_else = "put its patient in 'train' in cases.csv" if folder.site else "remove the image"
    return (
        f"{entry.split} {folder.name(entry.image)} has no mask, but {entry.split} images need "
        f"complete labels; {add} or {or_else}"
    )


def _nothing_to_train_on(folder: Folder) -> str:
    table = "cases.csv" if folder.has("cases.csv") else "a table cases.csv"
    return f"{folder.who} has no training images; put some patients in 'train' in {table}"


# ------------------------------------------------------------------------------------------ tables


@dataclass(frozen=True)
class Row:
    """A row of a table: its line in the file, the image it is about, and its cells by column."""

    line: int
    image: str
    cells: dict[str, str]


def _read_table(
    folder: Folder,
    name: str,
    images: dict[str, Path],
    needed: Sequence[str],
    known: Sequence[str],
    report: Report,
) -> list[Row] | None:
    """Return the rows of a table that are about images; `None` where it is of no use at all."""
    try:
        lines = _read_lines(folder, name, needed, known)
    except DataError as problem:
        report("error", str(problem))
        return None
    stems = {path.name: stem for stem, path in images.items()} | {stem: stem for stem in images}
    columns = next(lines)[1]
    rows = []
    for line, cells in lines:
        where = f"{name} of {folder.who}, line {line},"
        if len(cells) != len(columns):
            report("error", f"{where} has {len(cells)} cells; expected {len(columns)}")
            continue
        row = dict(zip(columns, cells, strict=True))
        if row["image"] not in stems:
            near = suggestion(row["image"], images) if len(images) <= 200 else ""
            report(
                "error",
                f"{where} names the image '{printable(row['image'])}', which is not in 'images'"
                f"{near}; correct or remove the row",
            )
            continue
        rows.append(Row(line, stems[row["image"]], row))
    return rows


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


def _once_each(folder: Folder, name: str, rows: list[Row], report: Report) -> dict[str, Row]:
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


def quoted(names: Iterable[str]) -> str:
    """Return names as "'a', 'b'", for use in a sentence."""
    return ", ".join(f"'{name}'" for name in names)


def few(names: Sequence[str], most: int = 5) -> str:
    """Return some names for use in a sentence, and how many more there are."""
    if len(names) <= most:
        return listing(names)
    return f"{quoted(names[:most])} and {len(names) - most} more"


# ---------------------------------------------------------------------------------------- patients


def _assign(
    folder: Folder, images: dict[str, Path], report: Report
) -> dict[str, tuple[str, Split]]:
    """Return the patient and the split of each image."""
    if not folder.has("cases.csv"):
        return {name: (name, _drawn_split(name) if folder.site else "test") for name in images}
    columns = ("image", "patient", "split")
    needed = columns if folder.site else columns[:2]
    table = _read_table(folder, "cases.csv", images, needed, columns, report)
    default: Split = "train" if folder.site else "test"
    assigned = {name: (name, default) for name in images}
    if table is None:
        return assigned
    rows = _once_each(folder, "cases.csv", table, report)
    for row in rows.values():
        assigned[row.image] = _patient(folder, row, report), _split(folder, row, report)
    unlisted = [path.name for name, path in images.items() if name not in rows]
    if unlisted:
        report(
            "error",
            f"cases.csv of {folder.who} does not list the image{'s' * (len(unlisted) > 1)} "
            f"{few(unlisted)}; add a row for each image or remove it",
        )
    _check_leaks(folder, [assigned[name] for name in rows], report)
    return assigned


def _drawn_split(patient: str) -> Split:
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


def _check_leaks(folder: Folder, assigned: Iterable[tuple[str, Split]], report: Report) -> None:
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


# --------------------------------------------------------------------------- image tags and boxes


def _read_tags(
    folder: Folder, images: dict[str, Path], report: Report
) -> dict[str, tuple[int, ...]] | None:
    """Return what labels.csv says about each image; `None` where it says nothing at all."""
    labels = folder.federation.labels
    if not folder.has("labels.csv"):
        report(
            "error",
            f"{folder.who} has no table labels.csv, which says what its images show; add one with "
            f"the columns {', '.join(('image', *labels))}",
        )
        return None
    needed = ("image", *(labels[index] for index in folder.annotated))
    table = _read_table(folder, "labels.csv", images, needed, ("image", *labels), report)
    if table is None:
        return None
    rows = _once_each(folder, "labels.csv", table, report)
    return {name: _row_tags(folder, row, report) for name, row in rows.items()}


def _row_tags(folder: Folder, row: Row, report: Report) -> tuple[int, ...]:
    """Return one value per label; of exclusive labels, one that is present rules out the others."""
    where, labels = f"labels.csv of {folder.who}, line {row.line},", folder.federation.labels
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


def _check_tags(folder: Folder, entry: Entry, report: Report) -> None:
    """Report an image without a row, and one that is to be judged without all labels."""
    what, labels = folder.name(entry.image), folder.federation.labels
    if entry.tags is None:
        report("error", f"{what} has no row in labels.csv; add one, blank where nothing is known")
    elif entry.split != "train" and -1 in entry.tags:
        blank = [label for label, tag in zip(labels, entry.tags, strict=True) if tag < 0]
        or_else = " or put its patient in 'train' in cases.csv" if folder.site else ""
        report(
            "error",
            f"{entry.split} {what} has no value for {few(blank)} in labels.csv, but {entry.split} "
            f"images need all labels; fill it in{or_else}",
        )


def _read_boxes(
    folder: Folder, images: dict[str, Path], report: Report
) -> dict[str, list[LabelBox]]:
    """Return the boxes of each image, in the order of their labels."""
    columns = ("image", "label", "left", "top", "right", "bottom")
    if not folder.has("boxes.csv"):
        report(
            "error",
            f"{folder.who} has no table boxes.csv, but its supervision is 'box'; add one with the "
            f"columns {', '.join(columns)}",
        )
        return {}
    found: dict[str, list[LabelBox]] = {}
    lines: dict[tuple[str, int, Box], int] = {}
    for row in _read_table(folder, "boxes.csv", images, columns, columns, report) or ():
        try:
            box = _row_box(folder, row)
            first = lines.setdefault((row.image, box.label, box.box), row.line)
            if first != row.line:
                msg = (
                    f"boxes.csv of {folder.who}, line {row.line}, repeats line {first}; keep one "
                    "of them"
                )
                raise DataError(msg)
            found.setdefault(row.image, []).append(box)
        except DataError as problem:
            report("error", str(problem))
    return {name: sorted(boxes, key=lambda box: box.label) for name, boxes in found.items()}


def _row_box(folder: Folder, row: Row) -> LabelBox:
    where, labels = f"boxes.csv of {folder.who}, line {row.line},", folder.federation.labels
    label = row.cells["label"]
    if label not in labels:
        msg = (
            f"{where} has the label '{printable(label)}', but the federation's labels are "
            f"{listing(labels)}{suggestion(label, labels)}"
        )
        raise DataError(msg)
    edges = {}
    for edge in ("top", "left", "bottom", "right"):
        if not WHOLE.fullmatch(row.cells[edge]):
            msg = (
                f"{where} has '{printable(row.cells[edge])}' for '{edge}'; expected a whole number"
            )
            raise DataError(msg)
        edges[edge] = int(row.cells[edge].partition(".")[0])
    for first, last in (("left", "right"), ("top", "bottom")):
        if edges[last] < edges[first]:
            msg = (
                f"{where} has {last} {edges[last]} < {first} {edges[first]}; expected {first} <= "
                f"{last}, both included: swap them"
            )
            raise DataError(msg)
    return LabelBox(row.line, labels.index(label) + 1, Box(**edges))


def check_boxes(folder: Folder, entry: Entry, shape: Size, report: Report) -> None:
    """Report boxes that do not lie in their image, which has this height and width."""
    for drawn in entry.boxes:
        box = drawn.box
        if min(box.left, box.top) < 0 or box.right >= shape[1] or box.bottom >= shape[0]:
            report(
                "error",
                f"boxes.csv of {folder.who}, line {drawn.line}, has a box of columns {box.left} to "
                f"{box.right} and rows {box.top} to {box.bottom}, but image '{entry.image.name}' "
                f"has columns 0 to {shape[1] - 1} and rows 0 to {shape[0] - 1}; give both ends in "
                "pixels, counted from 0",
            )
    if len(entry.boxes) > MOST_BOXES:
        report(
            "error",
            f"{folder.name(entry.image)} has {len(entry.boxes)} boxes; expected at most "
            f"{MOST_BOXES}: unite some of them",
        )


# ------------------------------------------------------------------------------------------- masks


def read_mask(folder: Folder, entry: Entry, shape: Size | None) -> UInt8[np.ndarray, "h w"]:
    """Return an image's mask as class indices, and `UNSEEN` where a weak form was not drawn.

    Args:
        folder: Says which values there may be.
        entry: The image, which has a mask.
        shape: The height and width of the image; `None` where it could not be read.
    """
    assert entry.mask is not None, "images without a mask are reported by the survey"
    what = folder.name(entry.mask, "mask")
    values = read_index_map(entry.mask, what)
    if shape is not None and values.shape != shape:
        msg = (
            f"{what} is {values.shape[1]} x {values.shape[0]} pixels (width x height), but its "
            f"image is {shape[1]} x {shape[0]}; export both in the same size"
        )
        raise DataError(msg)
    labels = len(folder.federation.labels)
    if values.max() > labels:
        values = _settle_255(folder, entry, values, what)
    return values.astype(np.uint8, copy=False)


def _settle_255(folder: Folder, entry: Entry, values: np.ndarray, what: str) -> np.ndarray:
    """Return a mask in which 255 has the one meaning it may have here; other values are refused."""
    labels = folder.federation.labels
    found = np.unique(values)
    strange = [int(value) for value in found if value > len(labels) and value != UNSEEN]
    if strange:
        noun = "label" if len(labels) == 1 else "labels"
        msg = (
            f"{what} holds class {strange[0]}, but the federation has {len(labels)} {noun} "
            f"({quoted(labels)}); map its values to 0 to {len(labels)}"
        )
        raise DataError(msg)
    weak = folder.form.marks_pixels and folder.form is not Supervision.MASK
    if weak and entry.split == "train":
        return values
    if weak:
        msg = (
            f"{what} holds 255, 'not looked at', but {entry.split} images need complete labels; "
            f"map its values to 0 to {len(labels)}"
        )
        raise DataError(msg)
    if len(labels) > 1:
        msg = (
            f"{what} holds 255, which stands for a label only where the federation has one, and it "
            f"has {len(labels)}; map its values to 0 to {len(labels)}"
        )
        raise DataError(msg)
    if 1 in found:
        msg = f"{what} holds both 1 and 255 for '{labels[0]}'; use one of them throughout"
        raise DataError(msg)
    return np.asarray(values == UNSEEN)


def _fit_marks(marks: UInt8[np.ndarray, "h0 w0"], size: Size) -> UInt8[np.ndarray, "h w"]:
    """Return marks in another size without losing thin ones; labels go before background."""
    if marks.shape == size:
        return marks
    fitted = np.array(fit_mask(marks, size))
    rows, cols = np.nonzero(marks != UNSEEN)
    values = marks[rows, cols]
    order = np.argsort(values, kind="stable")  # of two marks in one pixel, the label is kept
    rows, cols, values = rows[order], cols[order], values[order]
    rows, cols = rows * size[0] // marks.shape[0], cols * size[1] // marks.shape[1]
    lost = fitted[rows, cols] == UNSEEN
    fitted[rows[lost], cols[lost]] = values[lost]
    return fitted


# ----------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Part:
    """The images of one split as they are read, and what was drawn on them."""

    image: UInt8[np.ndarray, "n c h w"]
    drawn: UInt8[np.ndarray, "n h w"] | None
    boxes: list[dict[int, list[Box]]]


def note_copy(folder: Folder, entry: Entry, pixels: Pixels, copies: Copies, report: Report) -> None:
    """Report an image that has the same pixels as one before, unless it is constant."""
    checksum = crc32(np.ascontiguousarray(pixels).data)
    first = copies.setdefault((checksum, pixels.shape, pixels.dtype.char), entry)
    if first is entry or pixels.min() == pixels.max():
        return
    if not np.array_equal(pixels, read_image(first.image, folder.name(first.image))):
        return  # the same checksum by chance
    what = f"images '{first.image.name}' and '{entry.image.name}' of {folder.who} are the same"
    if first.split == entry.split:
        report("warning", f"{what}; remove one if it is the same examination")
    else:
        report(
            "error",
            f"{what}, but one is in '{first.split}' and one in '{entry.split}', so a model would "
            "be judged on an image it has seen; remove one or keep both in one split",
        )


def _read_part(folder: Folder, entries: Sequence[Entry], source: Source, copies: Copies) -> Part:
    """Read images, and what is drawn on them, one by one into arrays of their final size."""
    shape, size = folder.federation.image, folder.federation.image.size
    image = np.empty((len(entries), shape.channels, *size), dtype=np.uint8)
    drawn = np.empty((len(entries), *size), np.uint8) if source in {"mask", "marks"} else None
    boxes = []
    for at, entry in enumerate(entries):
        what = folder.name(entry.image)
        pixels = read_image(entry.image, what)
        stored = (pixels.shape[0], pixels.shape[1])
        note_copy(folder, entry, pixels, copies, refuse)
        image[at] = fit_image(pixels, size, shape.channels, what)
        if drawn is not None:
            mask = read_mask(folder, entry, stored)
            drawn[at] = _fit_marks(mask, size) if source == "marks" else fit_mask(mask, size)
        if source == "boxes":
            check_boxes(folder, entry, stored, refuse)
            boxes.append(_fit_boxes(folder, entry, stored))
    return Part(image, drawn, boxes)


def _fit_boxes(folder: Folder, entry: Entry, stored: Size) -> dict[int, list[Box]]:
    """Return the boxes of each label that the site marks, in pixels of the federation's size."""
    height, width = folder.federation.image.size
    fitted: dict[int, list[Box]] = {index + 1: [] for index in folder.annotated}
    for drawn in entry.boxes:
        top, bottom = _fit_span(drawn.box.top, drawn.box.bottom, stored[0], height)
        left, right = _fit_span(drawn.box.left, drawn.box.right, stored[1], width)
        if drawn.label in fitted:
            fitted[drawn.label].append(Box(top, left, bottom, right))
    return fitted


def _fit_span(first: int, last: int, stored: int, wanted: int) -> tuple[int, int]:
    """Return the first and the last of `wanted` pixels that these of `stored` pixels touch."""
    return first * wanted // stored, -(-(last + 1) * wanted // stored) - 1


def _read_judged(folder: Folder, entries: Sequence[Entry], copies: Copies) -> Cases:
    """Return images that models are judged on, with complete labels."""
    part = _read_part(folder, entries, folder.source("test"), copies)
    truth = _tags(folder, entries).astype(np.uint8) if part.drawn is None else part.drawn
    return _cases(entries, part, truth)


def _cases(entries: Sequence[Entry], part: Part, truth: np.ndarray | None) -> Cases:
    names, patients = tuple(e.name for e in entries), tuple(e.patient for e in entries)
    return Cases(part.image, truth, names, patients)


def _tags(folder: Folder, entries: Sequence[Entry]) -> Int8[np.ndarray, "n k"]:
    tags = np.array([entry.tags for entry in entries], dtype=np.int8)
    return tags.reshape(len(entries), len(folder.federation.labels))


# ------------------------------------------------------------------------------------- label views


def _read_train(
    folder: Folder, entries: Sequence[Entry], copies: Copies
) -> tuple[Cases, LabelView]:
    """Return training images and what the site's annotations say about them.

    Their truth is known only where every label is: complete masks or tags of all labels.
    """
    source = folder.source("train")
    part = _read_part(folder, entries, source, copies)
    if source == "tags":
        view = _view_of_tags(folder, _tags(folder, entries))
    elif source == "boxes":
        view = _view_of_boxes(folder, entries, part.boxes)
    elif part.drawn is not None:
        view = _view_of_masks(folder, part.drawn, source)
    else:
        view = _view_of_nothing(folder, len(entries))
    complete = folder.site is None or folder.federation[folder.site].complete
    everything = complete and bool(view.known_labels.all())
    known = everything and source == ("mask" if folder.segments else "tags")
    return _cases(entries, part, view.target if known else None), view


def _known(folder: Folder, count: int) -> Bool[np.ndarray, "n k"]:
    return labels_known(count, len(folder.federation.labels), folder.annotated)


def _view_of_masks(folder: Folder, drawn: UInt8[np.ndarray, "n h w"], source: Source) -> LabelView:
    known = _known(folder, len(drawn))
    if source == "mask":
        everything = len(folder.annotated) == len(folder.federation.labels)
        return LabelView(drawn if everything else hide_labels(drawn, folder.annotated), known)
    return LabelView(hide_labels(drawn, folder.annotated), known, drawn != UNSEEN)


def _view_of_tags(folder: Folder, tags: Int8[np.ndarray, "n k"]) -> LabelView:
    own = _known(folder, len(tags))
    known, present = (tags >= 0) & own, (tags == 1) & own
    if not folder.segments:
        if folder.federation.exclusive:  # one label that is present says all about the others
            known |= present.any(axis=1, keepdims=True)
        return LabelView(present.astype(np.uint8), known)
    n, k = tags.shape
    h, w = folder.federation.image.size
    possible = (present | ~known)[:, :, None, None]
    return LabelView(
        np.zeros((n, h, w), dtype=np.uint8),
        known,
        np.zeros((n, h, w), dtype=bool),
        np.array(np.broadcast_to(possible, (n, k, h, w))),
    )


def _view_of_boxes(
    folder: Folder, entries: Sequence[Entry], boxes: list[dict[int, list[Box]]]
) -> LabelView:
    """Return boxes in both encodings, as `consilia.weaken` does (with seed 0)."""
    n, k, (h, w) = len(entries), len(folder.federation.labels), folder.federation.image.size
    target = np.zeros((n, h, w), dtype=np.uint8)
    pixels = np.zeros((n, h, w), dtype=bool)
    constraint = np.ones((n, k, h, w), dtype=bool)
    for at, (entry, drawn) in enumerate(zip(entries, boxes, strict=True)):
        target[at], pixels[at] = _convert(folder, entry, drawn)
        for label, own in drawn.items():
            constraint[at, label - 1] = False
            for box in own:
                constraint[at, label - 1] |= render_box(box, (h, w))
    return LabelView(target, _known(folder, n), pixels, constraint)


def _convert(
    folder: Folder, entry: Entry, drawn: dict[int, list[Box]]
) -> tuple[UInt8[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """Return the sparse pixels that stand for the boxes of one image, of any number per label.

    The converter takes one box per index, so each box gets an index of its own, which then becomes
    its label.
    """
    assert folder.site is not None, "a common test set has masks"
    declaration = folder.federation[folder.site]
    rng = stream(0, folder.site, entry.name, Supervision.BOX.value, BACKGROUND)
    conversion = draw_conversion(recipe_for(declaration).convert, rng)
    flat = [(label, box) for label, own in drawn.items() for box in own]
    frames = {index: upright(box) for index, (_, box) in enumerate(flat, start=1)}
    target, known = convert_boxes(frames, conversion, folder.federation.image.size)
    return np.array([0, *(label for label, _ in flat)], dtype=np.uint8)[target], known


def _view_of_nothing(folder: Folder, count: int) -> LabelView:
    known, size = _known(folder, count), folder.federation.image.size
    if not folder.segments:
        return LabelView(np.zeros(known.shape, dtype=np.uint8), known)
    zeros = np.zeros((count, *size), dtype=np.uint8)
    return LabelView(zeros, known, zeros.astype(bool))
