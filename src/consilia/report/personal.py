"""What a report shows of sites that are not alike: affinity, prompts, features and shares.

All of it is read from `findings.json` (what the server learned) and `portraits.json` (what sites
showed, where the study asked). Each figure is inline SVG, or `None` where there is nothing to draw.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from consilia.report.record import Record
from consilia.report.svg import COLORS, INK, drawing, figure_of, inline
from consilia.report.words import number, short

MOST_MAPS = 12
FEWEST_POINTS = 8


def section(record: Record) -> dict[str, Any]:
    """Return what the page's section on personal parts shows, by the template's names."""
    return {
        "affinity_figure": affinity_figure(record),
        "map_figure": map_figure(record),
        "pca_figure": feature_figure(record, "PCA"),
        "tsne_figure": feature_figure(record, "t-SNE"),
        "follow_figure": follow_figure(record),
    }


def affinity_figure(record: Record) -> Markup | None:
    """Return the matrix of affinities, each cell with its number."""
    affinity = record.findings.get("affinity", {})
    sites = [site for site in record.federation.sites if site in affinity]
    if not sites:
        return None
    values = np.array([[affinity[a].get(b, np.nan) for b in sites] for a in sites], dtype=float)
    with drawing(height=1.1 + 0.34 * len(sites), margin=0.02) as (figure, axes):
        _room_for_names(axes, sites)
        for row, column in np.ndindex(values.shape):
            value = float(values[row, column])
            shade = min(max(value, 0.0), 1.0) if np.isfinite(value) else 0.0
            box = axes.bar(column, 1, 1, row - 0.5, color=INK, alpha=0.05 + 0.5 * shade)
            box[0].set_linewidth(0)
            if len(sites) <= 12:
                axes.text(column, row, number(value, 2), ha="center", va="center")
        axes.set_xlim(-0.5, len(sites) - 0.5)
        axes.set_ylim(len(sites) - 0.5, -0.5)
        axes.set_xticks(range(len(sites)), [short(site) for site in sites], rotation=30, ha="right")
        axes.set_yticks(range(len(sites)), [short(site) for site in sites])
        axes.tick_params(length=0)
        apart = values[~np.eye(len(sites), dtype=bool) & np.isfinite(values)]
        told = f"between {apart.min():.2f} and {apart.max():.2f}" if apart.size else ""
        return inline(figure, "affinity", f"Affinity of {len(sites)} sites {told}".rstrip())


def map_figure(record: Record) -> Markup | None:
    """Return the learned maps side by side, all on one gray scale."""
    maps = record.findings.get("maps", {})
    shown = {name: np.array(values, dtype=float) for name, values in list(maps.items())[:MOST_MAPS]}
    defined = [value for values in shown.values() for value in values[np.isfinite(values)]]
    if not defined:
        return None
    low, high = min(defined), max(defined)
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    with figure_of(height=1.45 * rows) as figure:
        for index, (name, values) in enumerate(shown.items()):
            axes = figure.add_subplot(rows, columns, index + 1)
            axes.imshow(values, cmap="gray", vmin=low, vmax=high)
            axes.set_title(short(name), fontsize=9)
            axes.set_axis_off()
        figure.subplots_adjust(0.01, 0.01, 0.99, 0.88, 0.08, 0.3)
        alt = f"Learned prompts: {', '.join(shown)}; from {low:.2f} (black) to {high:.2f} (white)"
        return inline(figure, "maps", alt)


def feature_figure(record: Record, kind: Literal["PCA", "t-SNE"]) -> Markup | None:
    """Return the sites' projected features in two dimensions, one color per site."""
    sites, points = _points(record)
    if len(points) < FEWEST_POINTS:
        return None
    flat = principal(points) if kind == "PCA" else neighbors(points)
    with drawing(margin=0.25) as (figure, axes):
        for site in dict.fromkeys(sites):
            own = flat[[s == site for s in sites]]
            color = COLORS[record.slot(site)]
            axes.scatter(own[:, 0], own[:, 1], s=11, color=color, alpha=0.7, linewidths=0)
        axes.set_xticks([])
        axes.set_yticks([])
        for at, site in enumerate(list(dict.fromkeys(sites))[:MOST_MAPS]):
            place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
            axes.plot(1.045, 0.97 - 0.085 * at, "s", ms=6, color=COLORS[record.slot(site)], **place)
            axes.text(1.08, 0.97 - 0.085 * at, short(site), va="center", **place)
        alt = f"{kind} of the features of {len(points)} training images of {len(set(sites))} sites"
        return inline(figure, kind.lower(), alt)


def follow_figure(record: Record) -> Markup | None:
    """Return, per site, how many numbers of its decoders follow the server how far."""
    told = {
        site: portrait["follow"]
        for site, portrait in record.portraits.items()
        if portrait["follow"]
    }
    if not told:
        return None
    rows = [
        (site, part, np.array(n, float))
        for site, parts in told.items()
        for part, n in parts.items()
    ]
    tall = 0.7 + 0.42 * len(rows)
    with figure_of(height=tall) as figure:
        axes = figure.add_axes((0.34, 0.55 / tall, 0.62, 1 - 0.6 / tall))
        for row, (site, part, counts) in enumerate(rows):
            height = 0.85 * np.sqrt(counts / max(1.0, counts.max()))
            edges = (np.arange(len(counts)) + 0.5) / len(counts)
            base = len(rows) - 1 - row
            axes.bar(
                edges, height, 0.94 / len(counts), base, color=COLORS[record.slot(site)], alpha=0.9
            )
            axes.text(-0.03, base + 0.2, f"{short(site)}, {part}", ha="right", va="center")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, len(rows))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("W: 0 keeps its own, 1 follows the server")
        means = ", ".join(f"{site} {part} {_mean(counts):.2f}" for site, part, counts in rows)
        return inline(figure, "follow", f"How far decoders follow the server; mean W: {means}")


def principal(points: np.ndarray) -> np.ndarray:
    """Return points on their two principal axes, signs fixed by the largest loading."""
    centered = points - points.mean(0)
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    two = axes[:2]
    signs = np.sign(two[np.arange(len(two)), np.abs(two).argmax(1)])
    flat: np.ndarray = centered @ (two * signs[:, None]).T
    return flat if flat.shape[1] == 2 else np.pad(flat, ((0, 0), (0, 1)))


def neighbors(points: np.ndarray) -> np.ndarray:
    """Return points in two dimensions so that neighbors stay neighbors (t-SNE, always alike)."""
    from sklearn.manifold import TSNE

    perplexity = float(min(30, (len(points) - 1) / 3))
    model = TSNE(2, perplexity=perplexity, init="random", random_state=0, learning_rate="auto")
    return np.asarray(model.fit_transform(points.astype(np.float32)))


def _points(record: Record) -> tuple[list[str], np.ndarray]:
    """Return the features of all sites' images, and whose each is; only those that are numbers."""
    rows = [
        (site, row)
        for site, portrait in record.portraits.items()
        for row in np.array(portrait["points"], dtype=float)
        if np.isfinite(row).all()
    ]
    return [site for site, _ in rows], np.array([row for _, row in rows])


def _mean(counts: np.ndarray) -> float:
    middle = (np.arange(len(counts)) + 0.5) / len(counts)
    return float((counts * middle).sum() / max(1.0, counts.sum()))


def _room_for_names(axes: Axes, sites: list[str]) -> None:
    widest = max(len(short(site)) for site in sites)
    left, bottom, width, height = axes.get_position().bounds
    room, below = min(0.32, 0.02 * widest + 0.04), 0.5 / axes.get_figure(root=True).get_figheight()  # type: ignore[union-attr]  # drawn axes have a figure
    axes.set_position(
        (left + room - 0.1, bottom + below - 0.05, width - room + 0.1, height - below + 0.05)
    )
