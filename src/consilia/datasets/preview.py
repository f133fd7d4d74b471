"""Contact sheets: a row of images per site with their truth, to look at before training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from consilia.datasets.contract import Cases

#: Okabe and Ito's colors without black and gray: distinguishable with any color vision.
COLORS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
INCH_PER_IMAGE = 1.25
#: A caption names this many labels and shortens the rest to an ellipsis.
MOST_NAMES = 3


def contact_sheet(
    cases: Mapping[str, Cases], labels: tuple[str, ...], path: Path, per_site: int = 8
) -> None:
    """Write a PNG with one row of evenly chosen images per site.

    Segmentation truth is drawn as contours, classification truth is written under each image.
    """
    lines = max(_caption_lines(found) for found in cases.values())
    gap = 0.05 + 0.11 * lines  # between rows, in image heights
    legend = 0.0 if lines else 0.3
    width = INCH_PER_IMAGE * per_site + 1
    height = INCH_PER_IMAGE * len(cases) * (1 + gap) + legend
    figure = Figure(figsize=(width, height), facecolor="white")
    grid = figure.subplots(len(cases), per_site, squeeze=False)
    for row, (site, found) in zip(grid, cases.items(), strict=True):
        _draw_row(row, site, found, labels)
    figure.subplots_adjust(
        left=0.95 / width,
        right=1 - 0.05 / width,
        top=1 - 0.03 / height,
        bottom=(legend + gap * INCH_PER_IMAGE - 0.03) / height,
        wspace=0.04,
        hspace=gap,
    )
    if not lines:
        handles = [
            Line2D([], [], color=_color(number), linewidth=2, label=label)
            for number, label in enumerate(labels)
        ]
        figure.legend(
            handles=handles, loc="lower center", ncols=len(labels), frameon=False, fontsize=9
        )
    figure.savefig(path, dpi=150)


def _caption_lines(cases: Cases) -> int:
    """Return how many lines the longest caption has; segmentation needs none."""
    if cases.truth is None or cases.truth.ndim == 3:
        return 0
    return int(min(MOST_NAMES + 1, max(1, cases.truth.sum(axis=1).max())))


def _draw_row(row: np.ndarray, site: str, cases: Cases, labels: tuple[str, ...]) -> None:
    chosen = np.unique(
        np.linspace(0, len(cases) - 1, min(len(row), len(cases))).round().astype(int)
    )
    for place in row:
        place.set_axis_off()
    for place, index in zip(row, chosen, strict=False):
        truth = None if cases.truth is None else cases.truth[index]
        _draw_case(place, cases.image[index], truth, labels)
    row[0].text(-0.06, 0.5, site, transform=row[0].transAxes, ha="right", va="center", fontsize=10)


def _draw_case(
    place: Axes,
    image: UInt8[np.ndarray, "c h w"],
    truth: UInt8[np.ndarray, "h w"] | UInt8[np.ndarray, " k"] | None,
    labels: tuple[str, ...],
) -> None:
    if len(image) == 3:
        place.imshow(image.transpose(1, 2, 0), interpolation="nearest")
    else:
        place.imshow(image[0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    if truth is None:
        return
    if truth.ndim == 2:
        for value in np.unique(truth[truth > 0]).tolist()[::-1]:  # inner labels last, so on top
            place.contour(truth == value, levels=[0.5], colors=_color(value - 1), linewidths=1.2)
        return
    present = [label for label, has in zip(labels, truth, strict=True) if has]
    caption = "\n".join(present[:MOST_NAMES] + ["…"] * (len(present) > MOST_NAMES)) or "none"
    place.text(
        0.5,
        -0.03,
        caption,
        transform=place.transAxes,
        ha="center",
        va="top",
        fontsize=7,
        linespacing=0.95,
    )


def _color(label: int) -> str:
    return COLORS[label % len(COLORS)]
