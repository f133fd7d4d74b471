"""A site's folder -> its images, its label view and its test cases.

::

    site/
      images/     *.png, *.jpg, *.jpeg, *.tif, *.tiff, *.bmp or *.npy: one image each
                  *.nii, *.nii.gz: a volume each; *.dcm: an image each; <name>/: a DICOM series each
      masks/      <same stem>.png, .tif, .tiff, .bmp, .npy, .nii, .nii.gz, or .dcm (DICOM SEG)
      boxes.csv   image,label,left,top,right,bottom[,angle]
      points.csv  image,label,row,column[,radius]
      labels.csv  image,<label>,<label>,...          (or labels.parquet)
      cases.csv   image,patient,split

Shapes may come as COCO, YOLO, Pascal VOC, LabelMe or CVAT files instead (`consilia.readers.formats`).

*Masks* hold 0 for background and `c` for the federation's c-th label. Where the federation has a
single label, 255 may stand for it. At sites with scribbles, points or blocks, 255 means "not looked
at" in training images. *Boxes* are in pixels of the stored image, both ends included; an image
without a row shows none of the site's labels. *Labels* are 1 (present), 0 (absent) or blank
(unknown). *Cases* are optional: without them each image is a patient, and a hash of its name puts
one in five into the test set. Test and validation images need complete labels whatever the site
declares. Tables name images with or without their file type, and slices as "<volume>:<zzz>".

Volumes are cut into axial slices, each a case. Of training volumes with masks, only slices that show
one of the site's labels are used, unless `empty_slices` says otherwise.

Images may lie in sub-folders of `images`, and are then named "<sub>/<stem>"; masks and files of
annotation tools lie in the same sub-folders, and tables may leave a sub-folder out where only one
image is called so. Sub-folders are no splits. `images` may be called `JPEGImages`.

Problems go to a `Report`: `read_folder` stops at the first error, `consilia.readers.inspect` runs
the same functions and collects everything.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int8, UInt8

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import Federation
from consilia.errors import DataError
from consilia.labels import LabelView
from consilia.readers.boxes import check_boxes, fit_boxes
from consilia.readers.entries import EmptySlices, Entry, Folder, Source, in_split
from consilia.readers.files import Report, Size, refuse
from consilia.readers.images import STRICTLY, Pixels, fit_image, fit_mask
from consilia.readers.load import Loader
from consilia.readers.masks import check_stated, fit_marks, read_mask
from consilia.readers.patients import report_copy
from consilia.readers.survey import survey
from consilia.readers.views import (
    Boxes,
    view_of_boxes,
    view_of_masks,
    view_of_nothing,
    view_of_tags,
)

#: The first image with certain pixels, by their checksum, shape and type.
Copies = dict[tuple[int, tuple[int, ...], str], Entry]
#: Large files are decoded by this many threads, and at most so many are held before they are stored.
THREADS, AHEAD = 2, 8
#: From this many bytes a file is large; small ones are faster one by one.
LARGE = 1 << 17


def read_folder(
    path: Path,
    federation: Federation,
    site: str | None,
    *,
    empty_slices: EmptySlices | None = None,
) -> SiteData:
    """Return everything a site's folder holds, with its label view as the site declared it.

    Args:
        path: The site's folder.
        federation: Gives the labels, the image size and the site's declaration.
        site: Whose folder it is; `None` for a common test set, of which all cases are test cases.
        empty_slices: What becomes of the slices of training volumes that show none of the site's
            labels: "drop", "keep", or "auto", which drops them where the site has masks. As the
            site declares by default.

    Raises:
        DataError: Something in the folder cannot be used; the sentence says what, and the way out.
    """
    loader = Loader(Folder(path, federation, site, empty_slices))
    entries = survey(loader, refuse)
    copies: Copies = {}
    train, view = _read_train(loader, in_split(entries, "train"), copies)
    validation = _read_judged(loader, in_split(entries, "validation"), copies)
    test = _read_judged(loader, in_split(entries, "test"), copies)
    return SiteData(train, view, validation if len(validation) else None, test)


# ----------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Part:
    """The images of one split as they are read, and what was drawn on them."""

    image: UInt8[np.ndarray, "n c h w"]
    drawn: UInt8[np.ndarray, "n h w"] | None
    boxes: list[Boxes]


@dataclass(frozen=True)
class Decoded:
    """One image in its final form; a problem that was found after its pixels were read."""

    pixels: Pixels
    checksum: int
    image: UInt8[np.ndarray, "c h w"] | None = None
    drawn: UInt8[np.ndarray, "h w"] | None = None
    boxes: Boxes | None = None
    problem: DataError | None = None


def note_copy(
    loader: Loader,
    entry: Entry,
    pixels: Pixels,
    copies: Copies,
    report: Report,
    checksum: int | None = None,
) -> None:
    """Report an image that has the same pixels as one before, unless it is constant."""
    folder = loader.folder
    checksum = crc32(np.ascontiguousarray(pixels).data) if checksum is None else checksum
    first = copies.setdefault((checksum, pixels.shape, pixels.dtype.char), entry)
    if first is entry or pixels.min() == pixels.max():
        return
    if not np.array_equal(pixels, loader.again.image(first)):
        return  # the same checksum by chance
    report_copy(folder, (first.shown, first.split), (entry.shown, entry.split), report)


def _read_part(loader: Loader, entries: Sequence[Entry], source: Source, copies: Copies) -> Part:
    """Read images, and what is drawn on them, one by one into arrays of their final size."""
    shape, size = loader.folder.federation.image, loader.folder.federation.image.size
    image = np.empty((len(entries), shape.channels, *size), dtype=np.uint8)
    drawn = np.empty((len(entries), *size), np.uint8) if source in {"mask", "marks"} else None
    boxes = []
    with STRICTLY, closing(_decode_all(loader, entries, source)) as decoded:
        for at, (entry, one) in enumerate(decoded):
            note_copy(loader, entry, one.pixels, copies, refuse, one.checksum)
            if one.problem is not None:
                raise one.problem
            if one.image is not None:
                image[at] = one.image
            if drawn is not None and one.drawn is not None:
                drawn[at] = one.drawn
            if one.boxes is not None:
                boxes.append(one.boxes)
    return Part(image, drawn, boxes)


def _decode_all(
    loader: Loader, entries: Sequence[Entry], source: Source
) -> Generator[tuple[Entry, Decoded], None, None]:
    """Yield images in order; large files are decoded ahead by a few threads, volumes are not."""
    sliced = any(entry.deep for entry in entries)
    if sliced or not entries or entries[0].image.stat().st_size < LARGE:
        for entry in entries:
            yield entry, _decode(loader, entry, source)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: list[tuple[Entry, Future[Decoded]]] = []
        rest = iter(entries)
        try:
            while True:
                waiting += [
                    (entry, pool.submit(_decode, loader, entry, source))
                    for entry in islice(rest, AHEAD - len(waiting))
                ]
                if not waiting:
                    return
                entry, future = waiting.pop(0)
                yield entry, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _decode(loader: Loader, entry: Entry, source: Source) -> Decoded:
    """Return one image in the size of the federation, with what is drawn on it."""
    folder = loader.folder
    size, channels = folder.federation.image.size, folder.federation.image.channels
    pixels = loader.image(entry)
    checksum = crc32(np.ascontiguousarray(pixels).data)
    stored: Size = (pixels.shape[0], pixels.shape[1])
    drawn = boxes = None
    try:
        image = fit_image(pixels, size, channels, folder.name(entry.image))
        if source in {"mask", "marks"}:
            mask = read_mask(loader, entry, stored)
            drawn = fit_marks(mask, size) if source == "marks" else fit_mask(mask, size)
        if source == "boxes":
            check_stated(entry, stored)
            check_boxes(folder, entry, stored, refuse)
            boxes = fit_boxes(folder, entry, stored)
    except DataError as problem:
        return Decoded(pixels, checksum, problem=problem)
    return Decoded(pixels, checksum, image, drawn, boxes)


def _read_judged(loader: Loader, entries: Sequence[Entry], copies: Copies) -> Cases:
    """Return images that models are judged on, with complete labels."""
    part = _read_part(loader, entries, loader.folder.source("test"), copies)
    truth = _tags(loader.folder, entries).astype(np.uint8) if part.drawn is None else part.drawn
    return _cases(loader, entries, part, truth)


def _cases(loader: Loader, entries: Sequence[Entry], part: Part, truth: np.ndarray | None) -> Cases:
    names, patients = tuple(e.name for e in entries), tuple(e.patient for e in entries)
    volumes = tuple(e.volume or e.name for e in entries)
    sliced = any(entry.volume is not None for entry in entries)
    spacing = _spacing(loader, entries)
    return Cases(part.image, truth, names, patients, volumes if sliced else None, spacing=spacing)


def _spacing(loader: Loader, entries: Sequence[Entry]) -> Float[np.ndarray, "n 3"] | None:
    """Return the spacing of every image at its final size; `None` unless all files say theirs."""
    if not entries or not all(entry.deep for entry in entries):
        return None
    size, steps = loader.folder.federation.image.size, []
    for entry in entries:
        where = loader.geometry(entry.image)
        if where.affine is None or not where.measured or min(where.spacing) <= 0:
            return None
        plane, row, column = where.spacing
        steps.append((plane, row * where.shape[1] / size[0], column * where.shape[2] / size[1]))
    return np.array(steps)


def _tags(folder: Folder, entries: Sequence[Entry]) -> Int8[np.ndarray, "n k"]:
    tags = np.array([entry.tags for entry in entries], dtype=np.int8)
    return tags.reshape(len(entries), len(folder.federation.labels))


def _read_train(
    loader: Loader, entries: Sequence[Entry], copies: Copies
) -> tuple[Cases, LabelView]:
    """Return training images and what the site's annotations say about them.

    Their truth is known only where every label is: complete masks or tags of all labels.
    """
    folder = loader.folder
    source = folder.source("train")
    part = _read_part(loader, entries, source, copies)
    if source == "tags":
        view = view_of_tags(folder, _tags(folder, entries))
    elif source == "boxes":
        view = view_of_boxes(folder, entries, part.boxes)
    elif part.drawn is not None:
        view = view_of_masks(folder, part.drawn, source)
    else:
        view = view_of_nothing(folder, len(entries))
    complete = folder.site is None or folder.federation[folder.site].complete
    everything = complete and bool(view.known_labels.all())
    known = everything and source == ("mask" if folder.segments else "tags")
    return _cases(loader, entries, part, view.target if known else None), view
