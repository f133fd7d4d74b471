"""From files to cases: an adapter lists examinations, everything else happens here once.

A dataset on disk is an `Index`: a function that lists the examinations of a site without reading
their pixels. `FileDataset` chooses who is tested on, divides patients over sites where a study asks
for it, reads what is needed and brings it to the federation's size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
from jaxtyping import UInt8

from consilia.datasets.contract import Cases, Dataset, DatasetCard
from consilia.datasets.split import FOLD, SHARD, choose_fold, choose_some, choose_test, deal
from consilia.declare import ImageShape, SiteDeclaration, Supervision
from consilia.errors import DataError, UsageError, listing, suggestion
from consilia.labels import LabelView
from consilia.readers.images import Pixels, fit_image, fit_mask

#: The value of pixels that an annotator did not look at.
UNSEEN = 255


@dataclass(frozen=True)
class Frame:
    """One image as it is stored, with an index map or one value per label."""

    case: str
    pixels: Pixels
    truth: np.ndarray


@dataclass(frozen=True)
class Exam:
    """What belongs together on disk, an image or a volume; nothing of it is read yet.

    Attributes:
        name: Unique within its site.
        group: The patient or lesion; never on both sides of a split.
        read: Returns the image, or the slices of the volume.
        split: Where the dataset's authors put it; `None` leaves it to us.
        volume: Whether its frames are slices.
        marks: Returns the authors' own weak labels of one form, `UNSEEN` where they marked nothing,
            or `None` where they have none.
    """

    name: str
    group: str
    read: Callable[[], Sequence[Frame]]
    split: Literal["train", "test"] | None = None
    volume: bool = False
    marks: Callable[[str], np.ndarray | None] | None = None


@dataclass(frozen=True)
class Place:
    """Where a dataset should be, and the one sentence that says so where it is not."""

    card: DatasetCard
    root: Path

    @property
    def folder(self) -> Path:
        """The dataset's own folder."""
        return self.root / self.card.name

    def find(self, *names: str, within: Path | None = None) -> Path:
        """Return the first of some files or folders that is there."""
        start = within or self.folder
        for name in names:
            if (start / name).exists():
                return start / name
        missing = start / names[0]
        where = missing.relative_to(self.root) if missing.is_relative_to(self.root) else missing
        msg = (
            f"dataset '{self.card.name}' has no '{where}' in '{self.root}'; put it there (`consilia "
            f"datasets --card {self.card.name}` shows its layout and where it comes from), or say where "
            "it is with --data or CONSILIA_DATA"
        )
        raise DataError(msg)

    def what(self, path: Path) -> str:
        """Return a file as it is named in sentences."""
        return f"'{path.name}' of dataset '{self.card.name}'"


#: Which part of cross-validation is tested on, from 1, and of how many.
Fold = tuple[int, int]
#: The examinations of one site.
Index = Callable[[Place, str], Sequence[Exam]]


@final
@dataclass(frozen=True)
class FileDataset(Dataset):
    """A dataset that is read from disk.

    Attributes:
        card: Its layout is what a user is told to put on disk.
        shape: As the papers have it.
        index: Lists the examinations of a site.
        exclusive: Whether labels exclude each other.
        test: The share of patients, or the number of images, that is tested on.
        counts: Sites of which a paper says how many images it trains and tests on; one with as many in all is
            tested on as many.
        common: Whether all sites share one test set; who is in it is then decided over all sites,
            so that a patient seen at two of them is never trained on at one and tested on at
            another. A site without test patients of its own is judged on the shared test set.
            Only then can all patients be divided at random, as sites "i-of-k", or "i-of-k-n100"
            for 100 training images of such a part.
        authors: Whether the authors' own weak labels stand for those that would be drawn.
        tested_only: Further names that the index knows, whose images are only tested on.
        variants: Further names of sites, which share images with those on the card.
    """

    card: DatasetCard
    shape: ImageShape
    index: Index
    exclusive: bool = True
    test: float = 0.2
    counts: tuple[tuple[str, int, int], ...] = ()
    common: bool = False
    authors: bool = False
    tested_only: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    def load(self, site: str, root: Path, shape: ImageShape, seed: int = 0) -> tuple[Cases, Cases]:
        """Return a site's training and test cases; see `Dataset.load`."""
        train, test = self.exams(site, root, seed)
        if train and not test:
            msg = (
                f"site '{site}' of dataset '{self.card.name}' has a single patient, who cannot be both "
                "trained and tested on; use a site with more of them"
            )
            raise DataError(msg)
        return self._read(train, site, shape), self._read(test, site, shape)

    def common_test(self, root: Path, shape: ImageShape, seed: int = 0) -> Cases | None:
        """Return all test cases of all sites, where the dataset has a common test set."""
        if not self.common:
            return None
        tested, all_of = self._tested(root, seed)
        return self._read([e for e in all_of if e.group in tested], "common", shape)

    def annotation(
        self,
        site: str,
        declaration: SiteDeclaration,
        root: Path,
        shape: ImageShape,
        seed: int = 0,
    ) -> LabelView | None:
        """Return the authors' own weak labels, in the declared form."""
        form, noisy = declaration.supervision, declaration.style == "noisy"
        if not self.authors or form in {Supervision.MASK, Supervision.IMAGE, Supervision.NONE}:
            return None
        name = "scribble_noisy" if noisy else form.value
        train, _ = self.exams(site, root, seed)
        marks = [None if exam.marks is None else exam.marks(name) for exam in train]
        missing = [exam.name for exam, found in zip(train, marks, strict=True) if found is None]
        if missing:
            msg = (
                f"dataset '{self.card.name}' has no '{name}' labels of its authors for "
                f"'{missing[0]}' of site '{site}'; declare another supervision, or use "
                f"'{self.card.name.removesuffix('-authors')}' to have them drawn"
            )
            raise DataError(msg)
        return _view_of_marks(
            [m for m in marks if m is not None], form, declaration, self.card.labels, shape
        )

    # ------------------------------------------------------------------------------ who goes where

    def exams(self, site: str, root: Path, seed: int) -> tuple[list[Exam], list[Exam]]:
        """Return a site's examinations for training and for testing; nothing is read."""
        name = self.card.name
        site, fold = self._fold(site)
        self._check(site)
        if not self.common:
            mine = list(self.index(Place(self.card, root), site))
            said = {(name, trained + tested): tested for name, trained, tested in self.counts}
            much = said.get((site, len(mine)), self.test)
            return _parted(mine, self._chosen(mine, seed, fold, much))
        tested, everyone = self._tested(root, seed, fold)
        if shard := SHARD.fullmatch(site):
            number, count = int(shard[1]) - 1, int(shard[2])
            mine = []
            for part in _parted(everyone, tested):
                dealt = deal([exam.group for exam in part], count, name, seed)
                mine += [exam for exam in part if dealt[exam.group] == number]
        else:
            mine = list(self.index(Place(self.card, root), site))
        train, test = _parted(mine, tested)
        if shard and shard[3]:
            names, groups = [exam.name for exam in train], [exam.group for exam in train]
            some = choose_some(names, groups, int(shard[3]), name, seed)
            train = [exam for exam in train if exam.name in some]
        return train, test or _parted(everyone, tested)[1]

    def _tested(
        self, root: Path, seed: int, fold: Fold | None = None
    ) -> tuple[set[str], list[Exam]]:
        """Return the groups that are tested on, and the examinations of all sites."""
        place = Place(self.card, root)
        sites = (*self.card.sites, *self.tested_only)
        everyone = [exam for site in sites for exam in self.index(place, site)]
        return self._chosen(everyone, seed, fold, self.test), everyone

    def _chosen(self, exams: Sequence[Exam], seed: int, fold: Fold | None, much: float) -> set[str]:
        """Return the groups that the authors test on, or else as many as are asked for."""
        trained = {exam.group for exam in exams if exam.split == "train"}
        if any(exam.split == "test" for exam in exams):
            if fold is not None:
                msg = f"dataset '{self.card.name}' has a split of its authors; leave out the fold"
                raise UsageError(msg)
            return {exam.group for exam in exams if exam.split == "test"} - trained
        free = [exam.group for exam in exams if exam.group not in trained]
        if fold is not None:
            return choose_fold(free, *fold, self.card.name, seed)
        return choose_test(free, much, self.card.name, seed)

    def _fold(self, site: str) -> tuple[str, Fold | None]:
        """Return a site without the fold behind it, and the fold."""
        found = FOLD.fullmatch(site)
        if found is None:
            return site, None
        fold = int(found[2]), int(found[3])
        if not 1 <= fold[0] <= fold[1] or fold[1] < 2:
            msg = (
                f"dataset '{self.card.name}' has no fold {fold[0]} of {fold[1]}; folds are numbered "
                "from 1, and there are two at least"
            )
            raise UsageError(msg)
        return found[1], fold

    def _check(self, site: str) -> None:
        shard = SHARD.fullmatch(site)
        if site in self.card.sites or site in self.variants:
            return
        if shard and self.card.parts and int(shard[1]) <= int(shard[2]):
            return
        more = "; 'i-of-k' is the i-th of k random parts" if self.card.parts else ""
        msg = (
            f"dataset '{self.card.name}' has no site '{site}'{suggestion(site, self.card.sites)} "
            f"(known: {listing(self.card.sites)}{more})"
        )
        raise UsageError(msg)

    # ------------------------------------------------------------------------------------- reading

    def _read(self, exams: Sequence[Exam], site: str, shape: ImageShape) -> Cases:
        images: list[np.ndarray] = []
        truths: list[np.ndarray] = []
        case: list[str] = []
        group: list[str] = []
        volume: list[str] = []
        for exam in exams:
            for frame in exam.read():
                what = f"image '{frame.case}' of dataset '{self.card.name}'"
                images.append(fit_image(frame.pixels, shape.size, shape.channels, what))
                truth = frame.truth
                truths.append(fit_mask(truth, shape.size) if truth.ndim == 2 else truth)
                case.append(frame.case)
                group.append(exam.group)
                volume.append(exam.name)
        if not images:
            msg = (
                f"dataset '{self.card.name}' has no images for site '{site}'; `consilia datasets --card "
                f"{self.card.name}` shows what goes on disk"
            )
            raise DataError(msg)
        image, truth = np.stack(images), np.stack(truths).astype(np.uint8, copy=False)
        image.flags.writeable = truth.flags.writeable = False
        volumes = tuple(volume) if exams[0].volume else None
        return Cases(image, truth, _unique(case), tuple(group), volumes)


def _parted(exams: Iterable[Exam], tested: set[str]) -> tuple[list[Exam], list[Exam]]:
    """Return examinations to train on and to test on.

    What the authors put on one side is never used on the other: a test image whose patient they
    also train on is left out, and so is the reverse.
    """
    train, test = [], []
    for exam in exams:
        if exam.group in tested and exam.split != "train":
            test.append(exam)
        elif exam.group not in tested and exam.split != "test":
            train.append(exam)
    return train, test


def _unique(names: list[str]) -> tuple[str, ...]:
    """Return names with a number behind each that occurs more than once."""
    often, seen = Counter(names), Counter[str]()
    fresh = []
    for name in names:
        seen[name] += 1
        fresh.append(name if often[name] == 1 else f"{name}-{seen[name]}")
    return tuple(fresh)


def _view_of_marks(
    marks: list[np.ndarray],
    form: Supervision,
    declaration: SiteDeclaration,
    labels: tuple[str, ...],
    shape: ImageShape,
) -> LabelView:
    """Return marks as a label view; a box bounds its label by the background marked around it."""
    drawn = np.stack([fit_marks(found, shape.size) for found in marks])
    marked = labels if declaration.annotates is None else declaration.annotates
    own = np.array([label in marked for label in labels])
    pixels = drawn != UNSEEN
    target = np.where(pixels, drawn, 0).astype(np.uint8)
    target[np.isin(target, np.flatnonzero(~own) + 1)] = 0
    bounds = None
    if form.constrains:
        free = ~(pixels & (drawn == 0))[:, None]
        bounds = np.array(np.broadcast_to(free, (len(drawn), len(labels), *shape.size)))
    return LabelView(target, np.tile(own, (len(drawn), 1)), pixels, bounds)


def fit_marks(marks: UInt8[np.ndarray, "h0 w0"], size: tuple[int, int]) -> UInt8[np.ndarray, "h w"]:
    """Return marks in another size without losing thin ones; labels go before background."""
    if marks.shape == size:
        return marks
    fitted = np.array(fit_mask(marks, size))
    rows, cols = np.nonzero(marks != UNSEEN)
    values = marks[rows, cols]
    order = np.argsort(values, kind="stable")
    rows, cols, values = rows[order], cols[order], values[order]
    rows, cols = rows * size[0] // marks.shape[0], cols * size[1] // marks.shape[1]
    lost = fitted[rows, cols] == UNSEEN
    fitted[rows[lost], cols[lost]] = values[lost]
    return fitted
