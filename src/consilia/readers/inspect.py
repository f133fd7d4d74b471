"""A site's folder -> everything that is wrong with it, and what it holds (`consilia check`).

The same functions that read a folder are run over all of its files, one at a time; where reading
would stop at the first error, an inspection notes it and goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from consilia.datasets.contract import Cases
from consilia.declare import Federation, Supervision
from consilia.errors import DataError, listing
from consilia.labels import LabelView
from consilia.readers.boxes import check_boxes
from consilia.readers.entries import SPLITS, UNSEEN, Entry, Folder, Split, in_split, shelf_of
from consilia.readers.files import Report, Size, few
from consilia.readers.folder import Copies, note_copy
from consilia.readers.images import Pixels, check_channels
from consilia.readers.load import Loader
from consilia.readers.masks import check_stated, read_mask
from consilia.readers.problems import Problem, Problems
from consilia.readers.survey import survey


@dataclass(frozen=True)
class LabelCount:
    """How often a label was found.

    Attributes:
        images: That hold it, of those that can be read.
        share: Of all pixels that were looked at in masks, those of which splits an inspection says;
            `None` where there are no masks.
    """

    images: int
    share: float | None


@dataclass(frozen=True)
class Inspection:
    """What a folder holds, and everything that is wrong with it.

    Attributes:
        path: The folder.
        site: Whose it is; `None` for a common test set.
        problems: In the order in which they were found.
        images: How many there are.
        patients: How many there are.
        splits: How many images are used for what.
        labels: How often each label of the federation was found.
        memory: Bytes that images and labels take once they are read.
        form: How the site declares that its training images are annotated.
        forms: How many images have annotations of each form, those that are judged included.
        looked_at: The splits whose masks the shares of labels are of.
    """

    path: str
    site: str | None
    problems: tuple[Problem, ...]
    images: int
    patients: int
    splits: dict[str, int]
    labels: dict[str, LabelCount]
    memory: int
    form: str = ""
    forms: dict[str, int] = field(default_factory=dict)
    looked_at: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[str, ...]:
        """The sentences that stop a run."""
        return tuple(p.sentence for p in self.problems if p.severity == "error")

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences that do not stop a run."""
        return tuple(p.sentence for p in self.problems if p.severity == "warning")

    @property
    def usable(self) -> bool:
        """Whether the folder can be read."""
        return not self.errors

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**asdict(self), "problems": [asdict(p) for p in self.problems]}


def inspect_folder(path: Path, federation: Federation, site: str | None) -> Inspection:
    """Return what a folder holds and all problems that it has; nothing is raised.

    Args:
        path: The folder.
        federation: Gives the labels, the image size and the site's declaration.
        site: Whose folder it is; `None` for a common test set.
    """
    report = Problems()
    folder = Folder(path, federation, site)
    tally = _Tally(folder, Loader(folder))
    entries: tuple[Entry, ...] = ()
    try:
        entries = survey(tally.loader, report)
    except DataError as problem:
        report("error", str(problem))
    for split in SPLITS:  # in the order in which they are read
        for entry in in_split(entries, split):
            _look_at(entry, tally, report)
    if entries:
        _warn(tally, entries, report)
    return Inspection(
        path=str(path),
        site=site,
        problems=report.grouped(),
        images=len(entries),
        patients=len({entry.patient for entry in entries}),
        splits={split: len(in_split(entries, split)) for split in SPLITS},
        labels=tally.counts(),
        memory=memory_needed(folder, entries),
        form="" if site and site not in federation.sites else folder.form.value,
        forms=dict(tally.forms),
        looked_at=tuple(split for split in SPLITS if split in tally.masked),
    )


def form_of(folder: Folder, split: Split) -> str:
    """Return how the images of a split are annotated: those that are judged, completely."""
    complete = Supervision.MASK if folder.segments else Supervision.IMAGE
    return (folder.form if split == "train" else complete).value


def memory_needed(folder: Folder, entries: tuple[Entry, ...]) -> int:
    """Return how many bytes the images and labels of a folder take once they are read."""
    if not entries:
        return 0
    height, width = folder.federation.image.size
    labels, area = len(folder.federation.labels), height * width
    per_image = {
        "mask": area,  # target or truth
        "marks": 2 * area,  # target and known pixels
        "boxes": (2 + labels) * area,  # and a plane for each label
        "tags": (2 + labels) * area if folder.segments else labels,
        "nothing": 2 * area if folder.segments else labels,
    }
    train = len(in_split(entries, "train"))
    return (
        len(entries) * folder.federation.image.channels * area
        + train * (per_image[folder.source("train")] + labels)  # and which labels are known
        + (len(entries) - train) * per_image[folder.source("test")]
    )


def inspect_arrays(
    path: str,
    folder: Folder,
    parts: Mapping[Split, Cases],
    view: LabelView | None,
    report: Problems | None,
) -> Inspection:
    """Return what arrays hold that were read or drawn, and what is odd about them.

    Args:
        path: Where they come from.
        folder: What is declared about them.
        parts: The images of each split, of which those that are judged have complete labels.
        view: What the annotations of training images say; `None` where there are none.
        report: Hears of images and labels that are probably not meant; `None`: nobody asks.
    """
    tally = _Tally(folder, Loader(folder))
    entries: list[Entry] = []
    memory = 0 if view is None else view.target.nbytes
    for split in SPLITS:
        cases = parts.get(split)
        if cases is None:
            continue
        memory += cases.image.nbytes
        for at, (name, patient) in enumerate(zip(cases.case, cases.group, strict=True)):
            entry = Entry(name, Path(name), None, patient, split)
            entries.append(entry)
            tally.forms[form_of(folder, split)] += 1
            if cases.image[at].min() == cases.image[at].max():
                tally.constant.append(entry.shown)
            if split == "train" and view is not None:
                _count_view(entry, tally, view, at)
            elif cases.truth is not None and cases.truth.ndim == 3:
                _count_mask(entry, tally, cases.truth[at])
            elif cases.truth is not None:
                tally.found(entry, cases.truth[at] == 1)
    if report is not None:
        _warn(tally, tuple(entries), report)
    return Inspection(
        path=path,
        site=folder.site,
        problems=() if report is None else report.grouped(),
        images=len(entries),
        patients=len({entry.patient for entry in entries}),
        splits={split: len(in_split(entries, split)) for split in SPLITS},
        labels=tally.counts(),
        memory=memory,
        form=folder.form.value,
        forms=dict(tally.forms),
        looked_at=tuple(split for split in SPLITS if split in tally.masked),
    )


def _count_view(entry: Entry, tally: _Tally, view: LabelView, at: int) -> None:
    """Count what the annotations of a training image say."""
    source = tally.folder.source("train")
    if source in {"mask", "marks"}:
        drawn = view.target[at]
        if view.known_pixels is not None:
            drawn = np.where(view.known_pixels[at], drawn, np.uint8(UNSEEN))
        _count_mask(entry, tally, drawn)
    elif not view.segments and source == "tags":
        tally.found(entry, (view.target[at] == 1) & view.known_labels[at])
    elif view.constraint is not None and source != "nothing":
        tally.found(entry, view.constraint[at].any(axis=(1, 2)) & view.known_labels[at])


@dataclass
class _Tally:
    """What was found so far, over all images of a site."""

    folder: Folder
    loader: Loader
    copies: Copies = field(default_factory=dict)
    constant: list[str] = field(default_factory=list)
    deep: list[str] = field(default_factory=list)
    lowest: float = np.inf
    highest: float = -np.inf
    masks: int = 0
    empty: list[str] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    foreign: dict[str, list[str]] = field(default_factory=dict)
    looked_at: int = 0
    trained_on: int = 0
    masked: set[str] = field(default_factory=set)
    forms: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        labels = len(self.folder.federation.labels)
        self.images = np.zeros(labels, dtype=np.int64)
        self.trained = np.zeros(labels, dtype=np.int64)
        self.pixels = np.zeros(labels, dtype=np.int64)

    def counts(self) -> dict[str, LabelCount]:
        """Return how often each label was found."""
        return {
            label: LabelCount(
                int(self.images[at]),
                float(self.pixels[at] / self.looked_at) if self.looked_at else None,
            )
            for at, label in enumerate(self.folder.federation.labels)
        }

    def found(self, entry: Entry, present: Bool[np.ndarray, " k"]) -> Bool[np.ndarray, " k"]:
        """Count the labels of an image that the site may speak of, and return which they are."""
        labels = self.folder.federation.labels
        if entry.split == "train":
            own = np.isin(np.arange(len(labels)), self.folder.annotated)
            for at in np.flatnonzero(present & ~own):
                self.foreign.setdefault(labels[at], []).append(entry.shown)
            present = present & own
            self.trained += present
            self.trained_on += 1
        self.images += present
        return present


def _look_at(entry: Entry, tally: _Tally, report: Report) -> None:
    """Read all files of one image, and note what they hold and what is wrong with them."""
    folder, source = tally.folder, tally.folder.source(entry.split)
    shape = _look_at_image(entry, tally, report)
    lost = entry.unread and not entry.marks  # nobody knows what was drawn
    drawn = entry.mask is not None or (entry.drawn is not None and not lost)
    if source == "nothing" or (entry.tags is not None if source == "tags" else drawn):
        tally.forms[form_of(folder, entry.split)] += 1
    measured = shape is not None or entry.mask is not None or entry.stated is not None
    if source in {"mask", "marks"} and drawn and measured:
        try:
            _count_mask(entry, tally, read_mask(tally.loader, entry, shape))
        except DataError as problem:
            report("error", str(problem))
    if source == "tags" and entry.tags is not None:
        tally.found(entry, np.array(entry.tags) == 1)
    if source == "boxes":
        if shape is not None:
            try:
                check_stated(entry, shape)
            except DataError as problem:
                report("error", str(problem))
            check_boxes(folder, entry, shape, report)
        if not entry.marks and not entry.unread:
            tally.unmarked.append(entry.shown)
        shown = {mark.label - 1 for mark in entry.marks}
        tally.found(entry, np.isin(np.arange(len(folder.federation.labels)), list(shown)))


def _look_at_image(entry: Entry, tally: _Tally, report: Report) -> Size | None:
    """Return the height and width of an image, or `None` where it cannot be read."""
    folder, what = tally.folder, tally.folder.name(entry.image)
    try:
        pixels = tally.loader.image(entry)
    except DataError as problem:
        report("error", str(problem))
        return None
    try:
        check_channels(pixels, folder.federation.image.channels, what)
    except DataError as problem:
        report("error", str(problem))
    note_copy(tally.loader, entry, pixels, tally.copies, report)
    _note_range(entry, tally, pixels)
    return pixels.shape[0], pixels.shape[1]


def _note_range(entry: Entry, tally: _Tally, pixels: Pixels) -> None:
    low, high = pixels.min(), pixels.max()
    if low == high:
        tally.constant.append(entry.shown)
    if pixels.dtype.kind != "b" and pixels.dtype != np.uint8:
        tally.deep.append(entry.shown)
        tally.lowest = min(tally.lowest, float(low))
        tally.highest = max(tally.highest, float(high))


def _count_mask(entry: Entry, tally: _Tally, mask: UInt8[np.ndarray, "h w"]) -> None:
    labels = len(tally.folder.federation.labels)
    counts = np.bincount(mask.ravel(), minlength=UNSEEN + 1)
    own = tally.found(entry, counts[1 : labels + 1] > 0)
    tally.pixels += np.where(own, counts[1 : labels + 1], 0)
    tally.looked_at += int(counts[:UNSEEN].sum())
    tally.masks += 1
    tally.masked.add(entry.split)
    if not own.any() and not entry.unread:
        tally.empty.append(_mask_name(entry))


def _mask_name(entry: Entry) -> str:
    if entry.mask is None or entry.volume is not None:
        return entry.shown
    return shelf_of(entry.name) + entry.mask.name


def _warn(tally: _Tally, entries: tuple[Entry, ...], report: Report) -> None:
    """Report what can be read but is probably not meant."""
    for sentence in (*_image_warnings(tally), *_label_warnings(tally, entries)):
        report("warning", sentence)


def _image_warnings(tally: _Tally) -> Iterator[str]:
    who = tally.folder.who
    if tally.constant:
        yield f"{who} has images with one value throughout: {few(tally.constant)}; check them"
    if tally.deep:
        yield (
            f"{who} has images of more than 8 bits, with values from {tally.lowest:g} to "
            f"{tally.highest:g}; of each, the range from its 0.5th to its 99.5th percentile becomes "
            f"0 to 255: {few(tally.deep)}"
        )


def _label_warnings(tally: _Tally, entries: tuple[Entry, ...]) -> Iterator[str]:
    folder, who = tally.folder, tally.folder.who
    labels = folder.federation.labels
    if tally.empty:
        yield (
            f"{who} has masks that mark none of its labels ({len(tally.empty)} of {tally.masks}): "
            f"{few(tally.empty)}"
        )
    for label, names in tally.foreign.items():
        yield (
            f"{who} does not annotate '{label}', so what its training images show of it is not "
            f"used: {few(names)}"
        )
    train = in_split(entries, "train")
    without = tally.unmarked
    if without:
        source = train[0].drawn or "boxes.csv"
        row = f"row in {source}" if source.endswith(".csv") else f"box in {source}"
        yield (
            f"{who} has training images without a {row}, which means that they show none "
            f"of its labels ({len(without)} of {len(train)}): {few(without)}"
        )
    never = [labels[at] for at in folder.annotated if not tally.trained[at]]
    if tally.trained_on and never and not any(entry.unread for entry in train):
        yield f"{who} annotates {listing(never)}, but no training image shows it"
    if not in_split(entries, "test"):
        yield f"{who} has no test images, so models cannot be judged on its own"
