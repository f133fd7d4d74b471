"""What a folder holds: its images one by one, with all that tables and annotations say about them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from consilia.declare import Supervision
from consilia.errors import DataError, suggestion
from consilia.readers.entries import (
    UNSEEN,
    Entry,
    Folder,
    Names,
    Picture,
    Split,
    in_split,
    shelf_of,
)
from consilia.readers.files import Report, few, list_files, quoted, split_name, walk
from consilia.readers.formats import DRAWN_SOURCES, Drawn, find_drawn
from consilia.readers.images import IMAGE_TYPES, RANGE
from consilia.readers.load import Loader
from consilia.readers.patients import assign
from consilia.readers.shapes import (
    NOUNS,
    Bitmap,
    Dots,
    Line,
    Mark,
    Polygon,
    Shape,
    from_corners,
)
from consilia.readers.tags import check_tags, read_tags
from consilia.readers.volumes import VOLUME_TYPES, Geometry, is_deep
from consilia.weaken import Box, RotatedBox

#: Files of annotation tools that may lie beside images.
BESIDE = (".json", ".xml")
#: Folders of pictures that are no images to learn from.
DRAWN_FOLDERS = {"masks", "labels", "annotations", "segmentationclass", "segmentationobject"}
#: Which shapes can stand for what a site declares.
ACCEPTED: dict[Supervision, tuple[type, ...]] = {
    Supervision.MASK: (Polygon, Bitmap),
    Supervision.BLOCK: (Polygon, Bitmap),
    Supervision.ROTATED_BOX: (RotatedBox, Box),
    Supervision.BOX: (Box,),
    Supervision.SCRIBBLE: (Line, Bitmap),
    Supervision.POINT: (Dots, Bitmap),
}


def survey(loader: Loader, report: Report) -> tuple[Entry, ...]:
    """Return the images of a folder by name, with all that is said about them; no image is opened.

    Of volumes the headers are read, and the masks of those whose empty slices are left out.

    Raises:
        DataError: There is nothing to survey.
    """
    folder = loader.folder
    _check_declaration(folder)
    pictures = find_pictures(loader, report)
    images = case_names(folder, pictures)
    assigned = assign(folder, pictures, report, images.refused)
    _note_shelves(folder, pictures, report)
    splits = {name: split for name, (_, split) in assigned.items()}
    drawn = find_drawn(folder, pictures, splits, images, report)
    tags: dict[str, tuple[int, ...]] | None = {}
    tagged = {split for split in splits.values() if folder.source(split) == "tags"}
    if tagged:
        tags = read_tags(folder, images, report)
    entries: list[Entry] = []
    for picture in pictures.values():
        entries += _entries(loader, picture, *assigned[picture.name], drawn, tags)
    for entry in entries:
        if folder.source(entry.split) in DRAWN_SOURCES and drawn.found:
            _check_drawn(folder, entry, drawn, report)
        if entry.split in tagged and tags is not None:
            check_tags(folder, entry, report)
    _check_shapes(folder, entries, report)
    settled = tuple(_settled(folder, entry) for entry in entries)
    if folder.site and not in_split(settled, "train"):
        report("error", _nothing_to_train_on(folder))
    return settled


def _check_declaration(folder: Folder) -> None:
    """Refuse what this layout cannot hold."""
    if folder.site and folder.site not in folder.federation.sites:
        near = suggestion(folder.site, folder.federation.sites)
        msg = f"no site is named '{folder.site}'{near} (known: {quoted(folder.federation.sites)})"
        raise DataError(msg)
    if folder.segments and len(folder.federation.labels) >= UNSEEN:
        msg = (
            f"the federation has {len(folder.federation.labels)} labels, but the masks of "
            f"{folder.who} can tell {UNSEEN - 1} apart; unite some labels"
        )
        raise DataError(msg)


# ----------------------------------------------------------------------------------------- images


def find_pictures(loader: Loader, report: Report) -> dict[str, Picture]:
    """Return the images of a folder by their names, and how many slices each has."""
    folder = loader.folder
    root, who = folder.root, folder.who
    if not root.is_dir():
        found = "is not a folder" if root.exists() else "does not exist"
        msg = f"folder '{root}' of {who} {found}; check `data` and where relative paths begin"
        raise DataError(msg)
    place, types = folder.images, (*IMAGE_TYPES, *VOLUME_TYPES)
    if not place.is_dir():
        msg = f"folder '{root}' of {who} has no folder 'images'; {images_elsewhere(root)}"
        raise DataError(msg)
    files = list_files(
        place, root, "image", who, types, report, beside=BESIDE, series=True, nested=True
    )
    pictures, volumes = {}, {}
    for name, path in files.items():
        if not is_deep(path):
            pictures[name] = Picture(name, path)
            continue
        try:
            where = volumes[shelf_of(name) + path.name] = loader.geometry(path)
        except DataError as problem:
            report("error", str(problem))
            continue
        single = path.is_file() and where.instances  # one DICOM file is one image
        planes = None if single else where.shape[0]
        pictures[name] = Picture(name, path, planes, where.patient, deep=True)
    if not pictures:
        msg = f"{who} has no images that can be read in '{place.name}'; expected {', '.join(types)}"
        raise DataError(msg)
    _remark(folder, volumes, report)
    return pictures


def case_names(folder: Folder, pictures: Mapping[str, Picture]) -> Names:
    """Return the case that each name stands for: slices by theirs, images with or without type."""
    images = {p.case(at): p.case(at) for p in pictures.values() for at in range(p.planes or 1)}
    images |= {p.file: p.name for p in pictures.values() if p.planes is None}
    used = {p.file for p in pictures.values()}
    place, types = folder.images, (*IMAGE_TYPES, *VOLUME_TYPES)
    what = f"folder '{place.name}' of {folder.who}"
    refused: set[str] = set()
    for prefix, entry in walk(place, folder.root, what, types, series=True):
        name = prefix + entry.name
        if name in used:
            continue
        stem, suffix = split_name(entry.name)
        if suffix.lower() not in BESIDE:
            refused |= {name} if prefix + stem in pictures else {name, prefix + stem}
    return Names(images, refused)


def images_elsewhere(root: Path) -> str:
    """Return where a folder without a folder of images has some, and the way out."""
    found = {name: count for name, count in _count_images(root, "") if count}
    if not found:
        return "put its images there"
    if "" in found:
        return (
            f"found {found['']} images in the folder itself: move them to 'images', and their "
            "masks, if any, to 'masks' under the same names"
        )
    shown = [f"{count} images in '{name}'" for name, count in found.items()]
    if len(shown) == 1:
        return f"found {shown[0]}: rename it to 'images' or link it"
    more = f" and {len(shown) - 3} more folders" if len(shown) > 3 else ""
    return (
        f"found {', '.join(shown[:3])}{more}: move the folders that hold images to sub-folders of "
        "'images', and what was drawn on them to the same sub-folders of 'masks' or 'labels'"
    )


def _count_images(folder: Path, prefix: str, levels: int = 2) -> Iterator[tuple[str, int]]:
    """Yield how many images there are in a folder and in those below it."""
    types = (*IMAGE_TYPES, *VOLUME_TYPES)
    try:
        with os.scandir(folder) as entries:
            inner = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError:
        return
    yield prefix, sum(split_name(e.name)[1].lower() in types and e.is_file() for e in inner)
    for entry in inner:
        drawn = entry.name.lower() in DRAWN_FOLDERS
        if (
            levels
            and entry.is_dir(follow_symlinks=False)
            and not drawn
            and entry.name.isprintable()
        ):
            below = f"{prefix}/{entry.name}" if prefix else entry.name
            yield from _count_images(folder / entry.name, below, levels - 1)


def _note_shelves(folder: Folder, pictures: Mapping[str, Picture], report: Report) -> None:
    """Report sub-folders that could be meant as patients or splits, where nobody says so."""
    names = {shelf_of(p.name).rstrip("/") for p in pictures.values() if p.patient is None} - {""}
    if names and folder.site and not folder.has("cases.csv"):
        report(
            "warning",
            f"{folder.who} has images in sub-folders of '{folder.images.name}', which are not taken "
            f"for patients or splits: {few(sorted(names))}; each image is a patient, and one in five "
            "is tested on, unless a table cases.csv says otherwise",
        )


def _remark(folder: Folder, volumes: Mapping[str, Geometry], report: Report) -> None:
    """Report what is odd about volumes, but can be read."""
    for bits in sorted({where.unwindowed for where in volumes.values()} - {0}):
        names = [name for name, where in volumes.items() if where.unwindowed == bits]
        report(
            "warning",
            f"{folder.who} has {bits}-bit DICOM without window; of each series, the range from its "
            f"{RANGE[0]}th to its {RANGE[1]}th percentile becomes 0 to 255: {few(names)}",
        )
    uneven = [name for name, where in volumes.items() if where.uneven]
    if uneven:
        report(
            "warning",
            f"{folder.who} has series whose slices are not evenly spaced: {few(uneven)}; check "
            "whether slices are missing",
        )
    kinds = sorted({where.modality for where in volumes.values() if where.modality})
    if len(kinds) > 1:
        report("warning", f"{folder.who} has DICOM of several modalities: {few(kinds)}; check them")


# ---------------------------------------------------------------------------------------- entries


def _entries(
    loader: Loader,
    picture: Picture,
    patient: str,
    split: Split,
    drawn: Drawn,
    tags: Mapping[str, tuple[int, ...]] | None,
) -> list[Entry]:
    """Return an image, or those slices of a volume that are used, with what is drawn on them."""
    source, mask = drawn.of(split), None
    if source is None and loader.folder.source(split) in {"mask", "marks"}:
        mask = drawn.masks.get(picture.name)
    slices = [
        Entry(
            case,
            picture.path,
            mask,
            patient,
            split,
            None if tags is None else tags.get(case),
            () if source is None else tuple(source.marks.get(case, ())),
            None if source is None else source.source,
            None if source is None else source.sizes.get(case),
            None if picture.planes is None else picture.name,
            plane,
            picture.deep,
            source is not None and source.lost(case),
        )
        for plane in range(picture.planes or 1)
        for case in (picture.case(plane),)
    ]
    return _annotated_slices(loader, slices) if picture.planes is not None else slices


def _annotated_slices(loader: Loader, slices: list[Entry]) -> list[Entry]:
    """Return the slices to use: without those that show nothing, where they are not wanted."""
    folder, first = loader.folder, slices[0]
    source = folder.source(first.split)
    drops = folder.unmarked_slices == "drop" or (
        folder.unmarked_slices == "auto" and source == "mask"
    )
    if first.split != "train" or not drops or source in {"tags", "nothing"}:
        return slices
    if first.mask is None:
        return [entry for entry in slices if entry.marks] or slices
    try:
        values = loader.mask_planes(first.image, first.mask)
    except DataError:
        return slices  # told when they are read
    if source == "marks":
        shown = values != UNSEEN
    else:
        own = [index + 1 for index in folder.annotated]
        shown = np.isin(values, own) | (values > len(folder.federation.labels))
    return [entry for entry in slices if shown[entry.plane].any()]


def _check_drawn(folder: Folder, entry: Entry, drawn: Drawn, report: Report) -> None:
    """Report an image that nothing is said about, where silence is no answer."""
    source, boxed = drawn.of(entry.split), folder.source(entry.split) == "boxes"
    if source is None and entry.mask is None and entry.plane == 0 and not boxed:
        report("error", _no_mask(folder, entry))
    if source is not None and source.listed is not None and entry.name not in source.listed:
        report("error", f"{folder.name(entry.image)} {source.missing}")


def _no_mask(folder: Folder, entry: Entry) -> str:
    add = f"add 'masks/{entry.volume or entry.name}.{'png' if entry.volume is None else 'nii.gz'}'"
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


# ----------------------------------------------------------------------------------------- shapes


def _check_shapes(folder: Folder, entries: Iterable[Entry], report: Report) -> None:
    """Report shapes that cannot stand for what they should, once for each kind."""
    told: set[tuple[str, bool]] = set()
    for entry in entries:
        form = folder.form if entry.split == "train" else Supervision.MASK
        for mark in entry.marks:
            noun = NOUNS[type(mark.shape)]
            if chosen_shape(mark, form) is not None or (noun, entry.split == "train") in told:
                continue
            told.add((noun, entry.split == "train"))
            need = f"the supervision of {folder.who} is '{form}'"
            if entry.split != "train":
                need = f"{entry.split} images need complete labels"
            wanted = " or ".join(NOUNS[kind] for kind in ACCEPTED[form])
            report(
                "error",
                f"{mark.where} has a {noun}, but {need}; expected a {wanted}: redraw it or correct "
                "`supervision`",
            )


def chosen_shape(mark: Mark, form: Supervision) -> Shape | None:
    """Return the shape of a mark that can stand for a form."""
    for shape in mark.shapes:
        if isinstance(shape, ACCEPTED[form]):
            return shape
        if isinstance(shape, Polygon) and form is Supervision.ROTATED_BOX:
            return from_corners(shape.rings[0])
    return None


def _settled(folder: Folder, entry: Entry) -> Entry:
    """Return an entry with one shape for each mark, in the order of labels."""
    if not entry.marks:
        return entry
    form = folder.form if entry.split == "train" else Supervision.MASK
    chosen = [(mark, chosen_shape(mark, form)) for mark in entry.marks]
    marks = [replace(mark, shapes=(shape,)) for mark, shape in chosen if shape is not None]
    return replace(entry, marks=tuple(sorted(marks, key=lambda mark: mark.label)))
