"""The words that all readers share: a folder, what is declared about it, and its images one by one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from consilia.declare import Federation, Supervision
from consilia.errors import DataError, listing, suggestion
from consilia.readers.files import IMAGE_FOLDERS, Size, image_folder, printable, shelves
from consilia.readers.images import IMAGE_TYPES
from consilia.readers.shapes import Mark
from consilia.readers.volumes import VOLUME_TYPES

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
#: What an image is judged or trained by.
Source = Literal["mask", "marks", "boxes", "tags", "nothing"]
SOURCES: dict[Supervision, Source] = {
    Supervision.BOX: "boxes",
    Supervision.ROTATED_BOX: "boxes",
    Supervision.IMAGE: "tags",
}
#: Which slices of a volume without any annotation are trained on; "auto": none where there are masks.
EmptySlices = Literal["auto", "keep", "drop"]

#: The value of pixels that an annotator did not look at.
UNSEEN = 255
#: What marks that show none of the labels are labelled with, where pixels are marked one by one.
BACKGROUND = "background"


@dataclass(frozen=True)
class Folder:
    """A folder and what is declared about it; without a site it is a test set that all share."""

    root: Path
    federation: Federation
    site: str | None
    empty_slices: EmptySlices | None = None

    @cached_property
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

    @property
    def unmarked_slices(self) -> EmptySlices:
        """What becomes of slices that show nothing: as asked, or as the site declares."""
        if self.empty_slices is not None:
            return self.empty_slices
        return self.federation[self.site].empty_slices if self.site else "auto"

    @cached_property
    def annotated(self) -> tuple[int, ...]:
        """The labels that are marked in training images, as indices from 0."""
        labels = self.federation.labels
        marked = self.federation.annotated_by(self.site) if self.site else labels
        return tuple(labels.index(label) for label in marked)

    def source(self, split: Split) -> Source:
        """Return which kind of annotation says what the images of a split show."""
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

    @cached_property
    def images(self) -> Path:
        """The folder of images."""
        return image_folder(self.root)

    @cached_property
    def shelves(self) -> tuple[str, ...]:
        """The sub-folders of `images` that hold images, as "<sub>/"; the first is "", itself."""
        what, types = f"folder '{self.images.name}' of {self.who}", (*IMAGE_TYPES, *VOLUME_TYPES)
        return tuple(shelves(self.images, self.root, what, types, series=True))

    def beside(self, place: str, pattern: str) -> tuple[Path, ...]:
        """Return the files of a folder, and of those of its sub-folders that `images` has too."""
        inner = self.images if place == IMAGE_FOLDERS[0] else self.root / place
        return tuple(p for shelf in self.shelves for p in sorted((inner / shelf).glob(pattern)))

    @cached_property
    def _above(self) -> int:
        return len(str(self.root / "_")) - 1

    def place(self, path: Path) -> tuple[str, str]:
        """Return the folder that a file lies in, and its name there: "labels" and "sub/a.txt"."""
        place, _, name = str(path)[self._above :].partition(os.sep)
        return (place, name.replace(os.sep, "/")) if name else ("", place)

    def name(self, path: Path, kind: str = "image") -> str:
        """Return a file as it is named in sentences."""
        return f"{kind} '{self.place(path)[1]}' of {self.who}"

    def label(self, found: str, where: str) -> int:
        """Return the index from 1 of a label by its name, 0 for a background that is marked."""
        labels = self.federation.labels
        if found in labels:
            return labels.index(found) + 1
        if found == BACKGROUND and self.source("train") == "marks":
            return 0
        msg = (
            f"{where} has the label '{printable(found)}', but the federation's labels are "
            f"{listing(labels)}{suggestion(found, labels)}"
        )
        raise DataError(msg)


@dataclass(frozen=True)
class Picture:
    """One file of `images`, or a folder of slices.

    Attributes:
        name: The file's stem, or the folder's name; in a sub-folder, "<sub>/<stem>".
        path: The file or the folder.
        planes: How many slices a volume has; `None` for a plain image.
        patient: To whom it belongs, where the file says so.
        deep: Whether it is read as a volume, also where it has a single plane.
    """

    name: str
    path: Path
    planes: int | None = None
    patient: str | None = None
    deep: bool = False

    @property
    def file(self) -> str:
        """The name with its type, as tables may give it."""
        return shelf_of(self.name) + self.path.name

    def case(self, plane: int) -> str:
        """Return the name of a slice, or of the image itself."""
        return self.name if self.planes is None else f"{self.name}:{plane:03d}"


def shelf_of(name: str) -> str:
    """Return the sub-folder of an image as "<sub>/"; "" for one that lies in `images` itself."""
    return name[: name.rfind("/") + 1]


class Names(dict[str, str]):
    """The case that each name of an image stands for.

    Names without their sub-folder will do where only one image is called so.

    Attributes:
        refused: The names of images that were refused.
        shared: Names without their sub-folder that several images have.
    """

    def __init__(self, cases: Mapping[str, str], refused: Iterable[str] = ()) -> None:
        super().__init__(cases)
        self.refused = frozenset(refused) - set(cases)
        short: dict[str, set[str]] = {}
        for name, case in cases.items():
            plain = name.rpartition("/")[2]
            if plain not in cases and plain not in self.refused:
                short.setdefault(plain, set()).add(case)
        self.shared = frozenset(name for name, found in short.items() if len(found) > 1)
        self.update({name: min(found) for name, found in short.items() if len(found) == 1})


@dataclass(frozen=True)
class Entry:
    """One image: its files, its patient, and what the annotations say about it.

    Attributes:
        name: The name of the case: the file's stem after its sub-folder, or "<volume>:<slice>".
        image: The image file, or the folder of its series.
        mask: The mask file, where there is one.
        patient: To whom it belongs.
        split: What it is used for.
        tags: 1, 0 or -1 (unknown) for each label of the federation; `None` without a row.
        marks: What is drawn on it, in the order of labels.
        drawn: The source of its marks, also where it has none; `None` where it has a mask file.
        stated: The height and width that the annotations say it has, and where they say so.
        volume: The volume that it is a slice of.
        plane: Which slice of it.
        deep: Whether the image is read as a volume, also where it has a single plane.
        unread: Whether some of its marks could not be read or are not listed, as was told.
    """

    name: str
    image: Path
    mask: Path | None
    patient: str
    split: Split
    tags: tuple[int, ...] | None = None
    marks: tuple[Mark, ...] = ()
    drawn: str | None = None
    stated: tuple[Size, str] | None = None
    volume: str | None = None
    plane: int = 0
    deep: bool = False
    unread: bool = False

    @property
    def shown(self) -> str:
        """The image as it is named in sentences about many."""
        return shelf_of(self.name) + self.image.name if self.volume is None else self.name


@dataclass
class Annotations:
    """What one source (a table, a file, a folder of files) says about the images of a site.

    Attributes:
        source: Its name, for sentences.
        marks: What is drawn, by the names of cases.
        sizes: The height and width that it says images have, and where.
        listed: The images it speaks about; `None` where silence means that nothing is shown.
        missing: What is wrong with an image that is not listed, and the way out.
        damaged: Whether some of it could not be read at all, so that silence says nothing.
        unread: Images of which something could not be read; what is missing there says nothing.
    """

    source: str
    marks: dict[str, list[Mark]] = field(default_factory=dict)
    sizes: dict[str, tuple[Size, str]] = field(default_factory=dict)
    listed: set[str] | None = None
    missing: str = ""
    damaged: bool = False
    unread: set[str] = field(default_factory=set)

    def lost(self, image: str) -> bool:
        """Return whether nobody knows all that is drawn on an image: unread, or not listed."""
        unlisted = self.listed is not None and image not in self.listed
        return self.damaged or unlisted or image in self.unread

    def add(self, image: str, mark: Mark) -> None:
        """Add what is drawn on an image."""
        self.marks.setdefault(image, []).append(mark)


def in_split(entries: Iterable[Entry], split: Split) -> list[Entry]:
    """Return the images that are used for one thing."""
    return [entry for entry in entries if entry.split == split]
