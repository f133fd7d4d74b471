"""The figures of a report: each takes a run's record and returns inline SVG, or `None` if empty."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from consilia.report.record import NAMED, Record, finite
from consilia.report.svg import COLORS, FONT, INK, PAPER, REST, drawing, inline, rounds_axis
from consilia.report.words import number, short, size

POINTS = 400  # so many rounds are drawn; longer runs are thinned
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d")


@dataclass(frozen=True)
class Line:
    """A site's values over rounds."""

    site: str
    slot: str
    x: list[int]
    y: list[float]

    @property
    def last(self) -> float:
        """The last value that is defined."""
        return next((y for y in reversed(self.y) if math.isfinite(y)), math.nan)


Values = Callable[[dict[str, Any]], Mapping[str, Any]]


def loss_figure(record: Record) -> Markup | None:
    """Return the training loss per round, one line per site."""
    lines = _lines(
        record, lambda line: {s: told.get("loss") for s, told in (line.get("sites") or {}).items()}
    )
    return _curves(lines, {}, "loss", "Training loss per round", _done(record))


def score_figure(record: Record, title: str) -> Markup | None:
    """Return the main metric at evaluated rounds; validation dashed, the reported round marked."""

    def of(part: str) -> Values:
        return lambda line: {s: v.get(record.main) for s, v in (line.get(part) or {}).items()}

    test, held = _lines(record, of("test")), _lines(record, of("validation"))
    marked = record.selected.rounds if record.selected else ()
    dashed = {line.site: line for line in held}
    return _curves(test, dashed, "score", title, _done(record), marked)


def share_figure(record: Record) -> Markup | None:
    """Return each site's part in the average, stacked, round by round."""
    lines = _lines(record, lambda line: line.get("shares") or {}, gaps=0.0)
    if not lines:
        return None
    x, bands = np.array(lines[0].x), _bands(lines)
    edge = 0.6 if min(float(y[-1]) for *_, y in bands) > 0.02 else 0.0
    look = {"edgecolor": PAPER, "linewidth": edge, "alpha": 0.9}
    with drawing() as (figure, axes):
        base, ends = np.zeros(len(x)), []
        for name, slot, y in bands:
            if len(x) <= 40:
                axes.bar(x, y, 0.82, base, color=COLORS[slot], **look)  # type: ignore[arg-type]  # a look
            else:
                axes.fill_between(x, base, base + y, facecolor=COLORS[slot], **look)  # type: ignore[arg-type]  # a look
            ends.append((name, slot, float(base[-1] + y[-1] / 2)))
            base = base + y
        axes.set_ylim(0, max(1e-9, float(base.max())))
        axes.set_xlim(0.4, _done(record) + 0.6)
        rounds_axis(axes)
        axes.grid(visible=False)
        _label_ends(axes, ends)
        last = ", ".join(f"{name} {number(y[-1], 2)}" for name, _, y in bands)
        return inline(figure, "shares", f"Shares in the average per round; in the last: {last}")


def _bands(lines: Sequence[Line]) -> list[tuple[str, str, np.ndarray]]:
    """Return (name, color, values) per site; sites without a color of their own are summed."""
    bands = [(line.site, line.slot, np.array(line.y)) for line in lines if line.slot != "rest"]
    rest = [line.y for line in lines if line.slot == "rest"]
    return [*bands, (f"{len(rest)} others", "rest", np.sum(rest, axis=0))] if rest else bands


def traffic_figure(record: Record) -> Markup | None:
    """Return the bytes that left the sites and the server, round by round."""
    lines = _thinned(record.rounds)
    if not lines:
        return None
    x = [line["round"] for line in lines]
    up, down = (
        np.nan_to_num([finite(line.get(f"bytes_{way}")) for line in lines])
        for way in ("up", "down")
    )
    largest = float(max(up.max(), down.max(), 1))
    unit = next((u for u in (1e9, 1e6, 1e3) if largest >= u), 1.0)
    with drawing() as (figure, axes):
        for values, style, marker in ((up, "-", "^"), (down, (0, (4, 2)), "v")):
            axes.plot(x, values / unit, color=INK, ls=style, marker=marker if len(x) <= 20 else "")
        axes.set_ylim(0, largest / unit * 1.08)
        axes.set_xlim(_around(_done(record)))
        rounds_axis(axes)
        axes.set_ylabel({1e9: "GB", 1e6: "MB", 1e3: "kB"}.get(unit, "bytes"))
        _label_ends(
            axes,
            [
                ("up, from sites", "", float(up[-1] / unit)),
                ("down, to sites", "", float(down[-1] / unit)),
            ],
        )
        alt = f"Bytes per round; in the last up {size(up[-1])}, down {size(down[-1])}"
        return inline(figure, "traffic", alt)


def case_figure(record: Record) -> Markup | None:
    """Return the main metric of every test case, one strip per site, medians marked."""
    strips = _strips(record)
    if not strips:
        return None
    with drawing(height=0.75 + 0.42 * len(strips), margin=0.25) as (figure, axes):
        for row, (site, slot, values) in enumerate(reversed(strips)):
            spread = row + 0.26 * _scatter(len(values))
            axes.scatter(
                values, spread, s=13, color=COLORS[slot], alpha=0.65, linewidths=0, clip_on=False
            )
            axes.plot([np.median(values)] * 2, [row - 0.36, row + 0.36], color=INK, lw=1.6)
            place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "clip_on": False}
            axes.plot(1.045, row, "s", ms=6, color=COLORS[slot], **place)
            axes.text(1.08, row, short(site), va="center", **place)
        axes.set_ylim(-0.55, len(strips) - 0.45)
        axes.set_xlim(
            min(0.0, *(v.min() for *_, v in strips)), max(1.0, *(v.max() for *_, v in strips))
        )
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        told = "; ".join(
            f"{s}: median {np.median(v):.2f}, lowest {v.min():.2f}" for s, _, v in strips
        )
        return inline(figure, "cases", f"{record.main} of every test case per site. {told}")


def _strips(record: Record) -> list[tuple[str, str, np.ndarray]]:
    """Return (name, color, scores) per site; sites without a color of their own share the last."""
    strips, rest, others = [], [], 0
    for site, table in record.cases.items():
        column = [finite(v) for v in (table.get("values") or {}).get(record.main, ())]
        values = [v for v in column if math.isfinite(v)]
        if record.slot(site) == "rest":
            rest += values
            others += 1
        elif values:
            strips.append((site, record.slot(site), np.array(values)))
    return [*strips, (f"{others} others", "rest", np.array(rest))] if rest else strips


def _done(record: Record) -> int:
    return int(record.rounds[-1]["round"]) if record.rounds else 0


def _around(rounds: int) -> tuple[float, float]:
    """Return the ends of an axis from round 1 to the last."""
    edge = max(0.5 if rounds == 1 else 0.0, 0.04 * (rounds - 1))
    return 1 - min(edge, 0.6), rounds + edge


def _thinned(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `POINTS` rounds, the last among them, and every evaluated one if few."""
    step = max(1, math.ceil(len(rounds) / POINTS))
    return [line for i, line in enumerate(rounds) if (len(rounds) - 1 - i) % step == 0]


def _lines(record: Record, values: Values, gaps: float = math.nan) -> list[Line]:
    """Return one line per site over the rounds in which any site has a value."""
    told = [line for line in record.rounds if any(v is not None for v in values(line).values())]
    rows = [(line["round"], values(line)) for line in _thinned(told)]
    sites = sorted({site for _, row in rows for site in row})
    rounds = [round_ for round_, _ in rows]
    lines = []
    for site in sites:
        y = [finite(row.get(site)) for _, row in rows]
        y = [gaps if math.isnan(value) else value for value in y]
        if any(math.isfinite(value) for value in y):
            lines.append(Line(site, record.slot(site), rounds, y))
    return lines


def _curves(
    lines: Sequence[Line],
    dashed: Mapping[str, Line],
    key: str,
    alt: str,
    rounds: int,
    marked: Sequence[int] = (),
) -> Markup | None:
    if not lines:
        return None
    with drawing() as (figure, axes):
        for number_ in marked:
            axes.axvline(number_, color=REST, alpha=0.35, lw=7)
        ends = _band(axes, [line for line in lines if line.slot == "rest"])
        for line in lines:
            if line.slot == "rest":
                continue
            color, marker = COLORS[line.slot], _marker(line)
            if line.site in dashed:
                held = dashed[line.site]
                axes.plot(held.x, held.y, color=color, ls=(0, (3, 2)), lw=1.2, alpha=0.85)
            axes.plot(line.x, line.y, color=color, marker=marker)
            ends.append((line.site, line.slot, line.last))
        axes.margins(y=0.08)
        axes.set_xlim(_around(rounds))
        rounds_axis(axes)
        _label_ends(axes, ends)
        told = ", ".join(f"{site} {number(value, 2)}" for site, _, value in ends)
        return inline(figure, key, f"{alt}; in the end: {told}")


def _marker(line: Line) -> str:
    if len(line.x) > 24:
        return ""
    index = int(line.slot[1:]) if line.slot[1:].isdigit() else 0
    return MARKERS[index % NAMED]


def _band(axes: Axes, rest: Sequence[Line]) -> list[tuple[str, str, float]]:
    """Draw the sites without a color of their own as a band with its median."""
    if not rest:
        return []
    values = np.array([line.y for line in rest])
    filled = np.isfinite(values).any(axis=0)
    x, values = np.array(rest[0].x)[filled], values[:, filled]
    axes.fill_between(x, np.nanmin(values, 0), np.nanmax(values, 0), color=REST, alpha=0.3, lw=0)
    middle = np.nanmedian(values, axis=0)
    axes.plot(x, middle, color=REST, lw=2.4)
    return [(f"{len(rest)} others", "rest", float(middle[-1]))]


def _label_ends(axes: Axes, ends: Sequence[tuple[str, str, float]]) -> None:
    """Write names beside the right end of their lines, moved apart where they would touch."""
    shown = sorted((end for end in ends if math.isfinite(end[2])), key=lambda end: end[2])
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height * 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]  # drawn axes have a figure
    wanted = [(value - low) / (high - low) for *_, value in shown]
    places = _apart(wanted, min((FONT + 2.5) / height, 1.08 / max(1, len(shown))))
    for (name, slot, _), at in zip(shown, places, strict=True):
        if slot:
            axes.plot(
                1.045, at, "s", ms=6, color=COLORS[slot], transform=axes.transAxes, clip_on=False
            )
        axes.text(
            1.045 + 0.035 * bool(slot), at, short(name), transform=axes.transAxes, va="center"
        )


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Return sorted places moved as little as needed to be at least a gap apart, within [0, 1]."""
    moved = list(places)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    over = max(0.0, moved[-1] - 1.02) if moved else 0.0
    for i in range(len(moved) - 1, -1, -1):
        ceiling = moved[i + 1] - gap if i + 1 < len(moved) else moved[i] - over
        moved[i] = min(moved[i], ceiling)
    return moved


def _scatter(amount: int) -> np.ndarray:
    """Return offsets in [-1, 1] that look random and are not: the golden-ratio sequence."""
    return np.asarray(np.modf(np.arange(1, amount + 1) * 0.6180339887)[0] * 2 - 1)
