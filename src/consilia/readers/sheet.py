"""A contact sheet: a site's own images with its annotations, drawn as the site gave them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import ndimage

from consilia.datasets.contract import SiteData
from consilia.datasets.preview import COLORS
from consilia.labels import LabelView
from consilia.weaken.regions import Mask

COLUMNS = 4
INCHES = 2.2
#: Marks of the background; no label has this color.
BACKGROUND = "#FFFFFF"
#: Marks that cover less of the image than this are drawn more strongly.
SPARSE = 0.15
#: Parts smaller than this share of the image are ringed, unless there are too many of them.
TINY, MOST_RINGS = 0.002, 24
#: A caption names a case with this many letters at most.
LONGEST_NAME = 26


def draw_contact_sheet(
    data: SiteData, labels: tuple[str, ...], path: Path, count: int = 12
) -> None:
    """Write a PNG of training images with what is drawn on them.

    Masks are outlined; scribbles, points and blocks are tinted; boxes are framed; labels of whole
    images are written below them.

    Args:
        data: A site's images and its label view.
        labels: The federation's labels.
        path: The PNG.
        count: How many images to show at most: those with annotations first, evenly chosen.
    """
    chosen = choose(data.view, count)
    columns = max(1, min(COLUMNS, len(chosen)))
    rows = max(1, -(-len(chosen) // columns))
    height, width = data.train.image.shape[2:]
    tall = INCHES * height / width
    caption, legend = 0.4, 0.3 if _legend(data.view, labels) else 0.0
    size = (columns * (INCHES + 0.15) + 0.15, rows * (tall + caption) + legend)
    figure = Figure(figsize=size, facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for place in grid:
        place.set_axis_off()
    for place, at in zip(grid, chosen, strict=False):
        _draw_image(place, data.train.image[at])
        _draw_view(place, data.view, at)
        name = data.train.case[at]
        name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        below = f"{name}\n{_words(data.view, at, labels)}"
        place.text(0.5, -0.03, below, transform=place.transAxes, ha="center", va="top", fontsize=7)
    figure.subplots_adjust(
        left=0.1 / size[0],
        right=1 - 0.1 / size[0],
        top=1 - 0.08 / size[1],
        bottom=(legend + caption - 0.02) / size[1],
        wspace=0.07,
        hspace=caption / tall,
    )
    if not len(chosen):
        figure.text(0.5, 0.5, "no training images", ha="center")
    handles = _legend(data.view, labels)
    if handles:
        ncols = min(5, len(handles))
        figure.legend(handles=handles, loc="lower center", ncols=ncols, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def choose(view: LabelView, count: int) -> list[int]:
    """Return the images to show: evenly chosen, those on which something is marked first."""
    shows = np.array([bool(_present(view, at).any()) for at in range(len(view))], dtype=bool)
    marked, others = np.flatnonzero(shows), np.flatnonzero(~shows)
    if len(marked) >= count:
        return _evenly(marked, count)
    return sorted([*marked.tolist(), *_evenly(others, count - len(marked))])


def _evenly(places: np.ndarray, count: int) -> list[int]:
    if len(places) <= count:
        return [int(at) for at in places]
    return [int(at) for at in places[np.linspace(0, len(places) - 1, count).round().astype(int)]]


def _is_tags(view: LabelView, at: int) -> bool:
    """Return whether an image is known by what it shows as a whole."""
    if not view.segments:
        return True
    if view.constraint is None or view.known_pixels is None or view.known_pixels[at].any():
        return False
    planes = view.constraint[at]
    return bool((planes.all(axis=(1, 2)) | ~planes.any(axis=(1, 2))).all())


def _present(view: LabelView, at: int) -> np.ndarray:
    """Return which labels the annotation of an image shows."""
    known = view.known_labels[at]
    if not view.segments:
        return np.asarray(known & (view.target[at] == 1))
    if view.constraint is not None:
        return np.asarray(known & view.constraint[at].any(axis=(1, 2)))
    seen = view.target[at] if view.known_pixels is None else view.target[at][view.known_pixels[at]]
    return np.asarray(known & np.isin(np.arange(1, len(known) + 1), seen))


def _words(view: LabelView, at: int, labels: tuple[str, ...]) -> str:
    """Return what an image is said to show, and what is said about it to be unknown."""
    present = _present(view, at)
    shown = [label for label, has in zip(labels, present, strict=True) if has]
    unknown = [label for label, sure in zip(labels, view.known_labels[at], strict=True) if not sure]
    some = ", ".join(shown) or ("nothing marked" if view.known_labels[at].any() else "")
    return f"{some}{'; ' if some and unknown else ''}{f'{len(unknown)} unknown' * bool(unknown)}"


def _draw_image(place: Axes, image: np.ndarray) -> None:
    if len(image) == 3:
        place.imshow(image.transpose(1, 2, 0), interpolation="nearest")
    else:
        place.imshow(image[0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")


def _draw_view(place: Axes, view: LabelView, at: int) -> None:
    if _is_tags(view, at):
        return
    if view.constraint is not None:
        regions, width = view.constraint[at], 1.6
    else:
        shown = np.arange(1, view.known_labels.shape[1] + 1)[:, None, None]
        regions, width = view.target[at] == shown, 1.3
    present = [int(index) for index in np.flatnonzero(_present(view, at))]
    marks = view.constraint is None and view.known_pixels is not None
    if marks and view.known_pixels is not None:
        regions = regions & view.known_pixels[at]
        back = view.known_pixels[at] & (view.target[at] == 0)
        _tint(place, back, BACKGROUND, 0.75 if back.mean() < SPARSE else 0.3)
    for index in sorted(present, key=lambda index: -int(regions[index].sum())):  # small ones on top
        color = COLORS[index % len(COLORS)]
        if not marks:
            _outline(place, regions[index], color, width)
        else:
            _draw_marks(place, regions[index], color)


def _draw_marks(place: Axes, region: Mask, color: str) -> None:
    """Tint what was marked; outline large parts, and ring those that are hard to see."""
    dense = region.mean() >= SPARSE / 3
    _tint(place, region, color, 0.55 if dense else 1.0)
    if dense:
        _outline(place, region, color, 0.8)
    parts, count = ndimage.label(region, structure=np.ones((3, 3)))
    tiny = [n for n in range(1, count + 1) if (parts == n).sum() < TINY * region.size]
    if tiny and len(tiny) <= MOST_RINGS:
        rows, cols = np.array(ndimage.center_of_mass(region, parts, tiny)).T
        place.scatter(cols, rows, s=42, facecolors="none", edgecolors="black", linewidths=2.0)
        place.scatter(cols, rows, s=42, facecolors="none", edgecolors=color, linewidths=1.0)


def _outline(place: Axes, region: Mask, color: str, width: float) -> None:
    """Draw a line along the border of a region, also where it ends with the image."""
    edge = np.pad(region, 1).astype(float)
    axis = [np.arange(-1, length - 1) for length in edge.shape]
    limits = place.get_xlim(), place.get_ylim()
    place.contour(axis[1], axis[0], edge, levels=[0.5], colors="black", linewidths=width + 1.2)
    place.contour(axis[1], axis[0], edge, levels=[0.5], colors=color, linewidths=width)
    place.set_xlim(*limits[0])
    place.set_ylim(*limits[1])


def _tint(place: Axes, region: Mask, color: str, strength: float) -> None:
    layer = np.zeros((*region.shape, 4))
    layer[region] = (*to_rgb(color), strength)
    place.imshow(layer, interpolation="nearest")


def _legend(view: LabelView, labels: tuple[str, ...]) -> list[Line2D]:
    """Return the colors of what is drawn; none where nothing is."""
    if not view.segments or not len(view) or _is_tags(view, 0):
        return []
    own = np.asarray(view.known_labels.any(axis=0))
    handles = [
        Line2D([], [], color=COLORS[index % len(COLORS)], linewidth=2.5, label=label)
        for index, label in enumerate(labels)
        if own[index]
    ]
    if view.known_pixels is not None and view.constraint is None:
        handles.append(Line2D([], [], color="#BBBBBB", linewidth=5, label="marked as background"))
    return handles
