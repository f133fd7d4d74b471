"""Matplotlib figures as inline SVG that takes its colors and fonts from the page.

Inside a figure every color is a stand-in; `inline` swaps it for a CSS variable, so that one drawing
serves light, dark and print.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilia.report.record import NAMED

WIDTH, HEIGHT = 4.7, 2.9  # inches; a column of the page, or the width of a phone
FONT = 10

INK, SOFT, REST, PAPER = "#010101", "#010102", "#010103", "#010104"
COLORS = {"ink": INK, "soft": SOFT, "rest": REST, "paper": PAPER} | {
    f"s{index}": f"#0102{index:02x}" for index in range(NAMED)
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "consilia",
    "text.parse_math": False,
    "text.color": INK,
    "font.size": FONT,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": SOFT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
}


@contextmanager
def drawing(*, height: float = HEIGHT, margin: float = 0.25) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure and its axes; `margin` is the part of the width kept free for labels."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # the stubs list every key
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.add_axes((0.115, 0.46 / height, 0.865 - margin, 1 - 0.56 / height))
        yield figure, axes


@contextmanager
def figure_of(height: float) -> Iterator[Figure]:
    """Yield a figure without axes, as wide as a column of the page."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # the stubs list every key
        yield Figure(figsize=(WIDTH, height))


def rounds_axis(axes: Axes) -> None:
    """Label the horizontal axis as rounds, whole numbers only."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 4, 5, 10], min_n_ticks=3))
    axes.grid(axis="y")
    axes.tick_params(length=3)


def inline(figure: Figure, key: str, alt: str) -> Markup:
    """Return a figure as an `<svg>` element; `key` keeps its ids apart from other figures'."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # the stubs list every key
        nothing: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    view = re.search(r'viewBox="([^"]+)"', text)
    body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    for pattern in (r"<metadata>.*?</metadata>", r"<style.*?</style>", r"<!--.*?-->"):
        body = re.sub(pattern, "", body, flags=re.DOTALL)
    body = re.sub(r'(xlink:)?href="#', f'href="#{key}-', body)
    body = body.replace('id="', f'id="{key}-').replace("url(#", f"url(#{key}-")
    body = re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d[0]), body)
    for name, stand_in in COLORS.items():
        body = body.replace(stand_in, f"var(--{name})")
    body = re.sub(r"\s*\n\s*", " ", body)
    box = view[1] if view else "0 0 100 100"
    return Markup(
        f'<svg class="plot" viewBox="{box}" role="img" aria-label="{escape(alt)}">{body}</svg>'
    )
