"""The ways in which shapes come, and which of them a folder holds.

They are looked for in this order, by what lies in the folder:

| format | where | can hold |
|---|---|---|
| boxes.csv | the folder | boxes, rotated boxes |
| points.csv | the folder | points |
| COCO | *.json with "images" or "annotations" in the folder or in `annotations` | masks, boxes |
| YOLO | labels/<image>.txt and classes.txt | boxes, rotated boxes (4 corners), masks (polygons) |
| Pascal VOC | <image>.xml in `annotations` or beside the images | boxes |
| LabelMe | <image>.json beside the images or in `annotations` | all but image labels |
| CVAT 1.1 | *.xml with <annotations> in the folder | all but image labels |

Files that speak of one image lie in the same sub-folder as it does in `images`, or in none.
Mask files in `masks` can hold masks, blocks, scribbles and points. Two sources that could both hold
what the training images of a site are declared to have are refused. Test images are judged by mask
files, or by the polygons of the same source where there is no folder `masks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consilia.declare import Supervision
from consilia.errors import listing
from consilia.readers import coco, csv_marks, cvat, labelme, voc, yolo
from consilia.readers.entries import Annotations, Folder, Picture, Split
from consilia.readers.files import OUTSIDE, Report, few, is_inside, list_files
from consilia.readers.images import MASK_TYPES
from consilia.readers.tables import was_refused
from consilia.readers.volumes import VOLUME_TYPES

Read = Callable[[Folder, tuple[Path, ...], Mapping[str, str], Report], Annotations]
MASK, BOX = Supervision.MASK, Supervision.BOX
ROTATED_BOX, POINT = Supervision.ROTATED_BOX, Supervision.POINT
DRAWN = frozenset(Supervision) - {Supervision.IMAGE, Supervision.NONE}
#: Folders of annotation files, beside `images`.
ANNOTATIONS = ("annotations", "Annotations", "labels")
#: What images are trained or judged by that can be drawn.
DRAWN_SOURCES = {"mask", "marks", "boxes"}


@dataclass(frozen=True)
class Format:
    """A way in which shapes come.

    Attributes:
        name: For sentences, where a folder of files stands for it.
        forms: What it can hold.
        find: Returns its files in a folder, or none.
        read: Returns what they say.
    """

    name: str
    forms: frozenset[Supervision]
    find: Callable[[Folder], tuple[Path, ...]]
    read: Read


FORMATS = (
    Format("boxes.csv", frozenset({BOX, ROTATED_BOX}), csv_marks.find_boxes, csv_marks.read_boxes),
    Format("points.csv", frozenset({POINT}), csv_marks.find_points, csv_marks.read_points),
    Format("COCO", frozenset({MASK, BOX}), coco.find, coco.read),
    Format("YOLO", frozenset({MASK, BOX, ROTATED_BOX}), yolo.find, yolo.read),
    Format("Pascal VOC", frozenset({BOX}), voc.find, voc.read),
    Format("LabelMe", DRAWN, labelme.find, labelme.read),
    Format("CVAT", DRAWN, cvat.find, cvat.read),
)


@dataclass(frozen=True)
class Found:
    """A format that a folder has, and its files there."""

    way: Format
    files: tuple[Path, ...]

    def shown(self, folder: Folder) -> str:
        """Return it for a sentence: a file, or the folder of several."""
        place, name = folder.place(self.files[0])
        if not place:
            return name
        return f"{place}/{name}" if len(self.files) == 1 else place


@dataclass
class Drawn:
    """Where the shapes and masks of a folder are.

    Attributes:
        masks: Mask files, by image.
        train: What is drawn on training images, unless they have mask files.
        judged: What is drawn on the other images, unless they have mask files.
        found: Whether images without a mask are at fault; not so where no source was found at all.
    """

    masks: dict[str, Path] = field(default_factory=dict)
    train: Annotations | None = None
    judged: Annotations | None = None
    found: bool = True

    def of(self, split: Split) -> Annotations | None:
        """Return what is drawn on the images of a split."""
        return self.train if split == "train" else self.judged


def find_drawn(
    folder: Folder,
    pictures: Mapping[str, Picture],
    splits: Mapping[str, Split],
    images: Mapping[str, str],
    report: Report,
) -> Drawn:
    """Return where shapes and masks are, for those splits that need them.

    Args:
        folder: To look in.
        pictures: Its images.
        splits: What each image is used for.
        images: The case that each name stands for.
        report: Hears of sources that are missing or compete.
    """
    needed = {split: folder.source(split) for split in set(splits.values())}
    needed = {split: source for split, source in needed.items() if source in DRAWN_SOURCES}
    if not needed:
        return Drawn()
    trains, judges = needed.get("train"), bool(set(needed) - {"train"})
    there = [Found(way, files) for way in FORMATS if (files := way.find(folder))]
    _note_strangers(folder, there, report)
    own = [one for one in there if trains and folder.form in one.way.forms]
    has_masks, wants_masks = (folder.root / "masks").is_dir(), set(needed.values()) != {"boxes"}
    masks = _find_masks(folder, pictures, images, report) if has_masks and wants_masks else {}
    rivals = [one.shown(folder) for one in own]
    if (
        own
        and trains != "boxes"
        and any(splits[name] == "train" for name in masks if name in splits)
    ):
        rivals = ["masks", *rivals]
    if len(rivals) > 1:
        report(
            "error",
            f"{folder.who} has both {listing(rivals)}, which can both hold what its supervision "
            f"'{folder.form}' draws on training images; keep one of them",
        )
        return Drawn(masks, found=False)
    complete = [one for one in own or there if MASK in one.way.forms] if judges else []
    judge = complete[0] if len(complete) == 1 and not has_masks else None
    found = Drawn(masks)
    if trains == "boxes" and not own:
        report("error", _no_boxes(folder))
    if not has_masks and ((judges and not judge) or (trains in {"mask", "marks"} and not own)):
        report("error", _no_masks(folder))
        found.found = False
    if own:
        found.train = own[0].way.read(folder, own[0].files, images, report)
    if judge:
        same = bool(own) and own[0] is judge
        found.judged = found.train if same else judge.way.read(folder, judge.files, images, report)
    return found


def _note_strangers(folder: Folder, there: list[Found], report: Report) -> None:
    """Report files where annotations lie that no format takes for its own."""
    taken = {path for one in there for path in one.files}
    others = [
        path
        for place in (folder.root, *(folder.root / name for name in ANNOTATIONS))
        for path in sorted(place.glob("*"))
        if path.suffix in {".json", ".xml"} and path not in taken
    ]
    for path in others:
        if not is_inside(path, folder.root):
            report("error", f"{folder.name(path, 'file')} {OUTSIDE}")
    strange = [path.name for path in others if is_inside(path, folder.root)]
    if strange:
        report(
            "warning",
            f"{folder.who} has files that are of no known annotation format, and are not read: "
            f"{few(strange)}; export them again, or remove them if they are none",
        )


def _no_masks(folder: Folder) -> str:
    need, or_else = f"its supervision is '{folder.form}'", ""
    if not folder.form.marks_pixels:
        need = "its test images need complete labels"
        or_else = ", or put all patients in 'train' in cases.csv"
    return f"{folder.who} has no folder 'masks', but {need}; put its masks there{or_else}"


def _no_boxes(folder: Folder) -> str:
    angle = ("angle",) if folder.form is ROTATED_BOX else ()
    return (
        f"{folder.who} has no table boxes.csv, but its supervision is '{folder.form}'; add one with "
        f"the columns {', '.join((*csv_marks.BOXES, *angle))}"
    )


def _find_masks(
    folder: Folder, pictures: Mapping[str, Picture], images: Mapping[str, str], report: Report
) -> dict[str, Path]:
    """Return the mask files by their stems; those of images that were refused are passed over."""
    inner, types = folder.root / "masks", (*MASK_TYPES, *VOLUME_TYPES)
    masks = list_files(inner, folder.root, "mask", folder.who, types, report, nested=True)
    alone = [
        folder.place(path)[1]
        for name, path in masks.items()
        if name not in pictures and not was_refused(name, images)
    ]
    if alone:
        report(
            "warning",
            f"{folder.who} has masks without an image of the same name, which are not read: "
            f"{few(alone)}",
        )
    return masks
