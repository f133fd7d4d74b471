"""`python -m benchmarks.plots`: every result of `benchmarks/results` as a chart, and a page with all of them.

Bars are medians, whiskers the least and the greatest of the repeats, dashed marks goals. What has not been
measured has no chart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.harness import RESULTS

DOCS = Path(__file__).parent.parent / "docs/benchmarks"
BLUE, ORANGE, GREEN, SOFT, INK = "#2f6fa7", "#c8702d", "#4c9a6a", "#8a8f98", "#22262b"
STYLE = {
    "svg.hashsalt": "consilia",
    "svg.fonttype": "path",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#d9dce1",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
}

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """One measurement: its name, the median, and the least and the greatest."""

    name: str
    value: float
    low: float
    high: float
    color: str = BLUE
    goal: float | None = None


def spread_bar(name: str, found: Mapping[str, float], **look: Any) -> Bar:
    """Return the bar of what `harness.spread` gave."""
    return Bar(name, found["median"], found["low"], found["high"], **look)


def bars(
    each: Sequence[Bar],
    label: str,
    *,
    one: float | None = 1.0,
    log: bool = False,
    shown: str = ".2f",
) -> Figure:
    """Return horizontal bars with whiskers; each bar's own goal is a dashed mark."""
    figure = Figure(figsize=(6.9, 0.75 + 0.27 * len(each)), layout="constrained")
    axes = figure.add_subplot()
    longest = max(max(bar.high, bar.goal or 0) for bar in each)
    for at, bar in enumerate(each):
        reach = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
        axes.barh(at, bar.value, 0.62, color=bar.color, zorder=2)
        axes.errorbar(bar.value, at, xerr=reach, color=INK, linewidth=1, capsize=2.5, zorder=3)
        if bar.goal is not None:
            axes.plot(
                [bar.goal] * 2, [at - 0.44, at + 0.44], "--", color=ORANGE, linewidth=1.6, zorder=4
            )
        inside = bar.value > 0.12 * longest and not log
        axes.annotate(
            f"{bar.value:{shown}}",
            (0 if inside else max(bar.high, bar.value), at),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="white" if inside else INK,
            zorder=5,
        )
    axes.set_yticks(range(len(each)), [bar.name for bar in each])
    axes.set_ylim(len(each) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(right=1.6 * max(bar.high for bar in each))
    else:
        axes.set_xlim(0, 1.06 * longest)
    if one is not None:
        axes.axvline(one, color=SOFT, linewidth=1, zorder=1)
    axes.grid(axis="x")
    axes.set_xlabel(label)
    return figure


# --- charts ---


def goals(results: Mapping[str, Result]) -> Figure | None:
    """Return what has a goal, relative to it: left of 1 is better."""
    found = []
    if start := results.get("startup"):
        for name, row in start["rows"].items():
            ends = (row.get("wall_low_s", row["wall_s"]), row.get("wall_high_s", row["wall_s"]))
            parts = [value / row["goal_s"] for value in (row["wall_s"], *ends)]
            found.append(Bar(f"start-up on the wall: {name}", *parts))
    if noop := results.get("noop"):
        for name, row in noop["rows"].items():
            if row["goal_ms"]:
                keys = ("processor_ms", "processor_ms_low", "processor_ms_high")
                parts = [row[key] / row["goal_ms"] for key in keys]
                found.append(Bar(f"round without training, {name}", *parts))
    if over := results.get("overhead"):
        parts = [over[key] / 1.05 for key in ("ratio", "low", "high")]
        found.append(Bar("FedAvg round / bare loop", *parts))
    if (read := results.get("reading")) and "speed" in read:
        parts = [read["goal"] / read["speed"][key] for key in ("median", "high", "low")]
        found.append(Bar("reading PNGs (time)", *parts))
    if costs := results.get("costs"):
        worst = max(costs["rows"].values(), key=lambda row: row["ratio"]["median"] / row["goal"])
        parts = [worst["ratio"][key] / worst["goal"] for key in ("median", "low", "high")]
        found.append(Bar("dearest method / its arithmetic", *parts))
    return bars(found, "measured, relative to the goal (less is better)") if found else None


def arithmetic(results: Mapping[str, Result]) -> Figure | None:
    """Return each method's work at a site over a bare loop of the same passes."""
    costs = results.get("costs")
    if costs is None:
        return None
    found = [spread_bar(n, row["ratio"], goal=row["goal"]) for n, row in costs["rows"].items()]
    return bars(found, "processor time over a bare PyTorch loop of the same arithmetic")


def rounds(results: Mapping[str, Result]) -> Figure | None:
    """Return what a round of every method costs beside FedAvg's on the same study."""
    costs = results.get("costs-rounds")
    if costs is None:
        return None
    shades = dict(
        zip(
            dict.fromkeys(row["study"] for row in costs["rows"].values()),
            (BLUE, GREEN, "#7a68b3", "#b0833a", "#a3566b"),
            strict=False,
        )
    )
    found = []
    for name, row in costs["rows"].items():
        if name.startswith("fedavg ") or name == "fedavg":
            continue
        each, own = row["seconds"], row["against_fedavg"]
        low, high = (own * each[key] / each["median"] for key in ("low", "high"))
        found.append(Bar(name, own, low, high, shades[row["study"]]))
    figure = bars(found, "processor time of a round over FedAvg's", log=True)
    used = {bar.color for bar in found}
    handles = [mpl.patches.Patch(color=c, label=s) for s, c in shades.items() if c in used]
    figure.axes[0].legend(handles=handles, loc="lower right", fontsize=7.5, frameon=True)
    return figure


def scale(results: Mapping[str, Result]) -> Figure | None:
    """Return time per site and memory against the number of sites, relative to four sites."""
    kinds = {
        "scale": ("with training", BLUE),
        "scale-ends": ("with training, another run", GREEN),
        "scale-engine": ("nobody trains", ORANGE),
    }
    present = {key: results[key]["rows"] for key in kinds if key in results}
    if not present:
        return None
    figure = Figure(figsize=(6.9, 2.7), layout="constrained")
    both: list[Axes] = list(figure.subplots(1, 2))
    for axes, key, label in zip(
        both,
        ("time_ratio", "memory_ratio"),
        ("time per site, relative to 4 sites", "memory beyond the data, relative to 4 sites"),
        strict=True,
    ):
        for name, rows in present.items():
            text, color = kinds[name]
            x = [row["sites"] for row in rows]
            axes.plot(x, [row[key] for row in rows], "o-", color=color, label=text, markersize=4)
        axes.axhline(1.1, color=SOFT, linestyle="--", linewidth=1.2, label="goal")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
        ticks = sorted({int(row["sites"]) for rows in present.values() for row in rows})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        most = max(row[key] for rows in present.values() for row in rows)
        axes.set_ylim(0, max(1.3, 1.05 * most))
        axes.grid()
        axes.set_xlabel("sites")
        axes.set_title(label, fontsize=9)
    both[0].legend(fontsize=8)
    return figure


def noop(results: Mapping[str, Result]) -> Figure | None:
    """Return the milliseconds of a round in which nobody trains."""
    found = results.get("noop")
    if found is None:
        return None
    each = []
    for name, row in found["rows"].items():
        middle, low, high = (row[f"processor_ms{end}"] for end in ("", "_low", "_high"))
        each.append(Bar(name, middle, low, high, goal=row["goal_ms"]))
    return bars(each, "processor milliseconds of a round at 4 sites", one=None, shown=".0f")


def _peers(found: Result | None, label: str) -> Figure | None:
    if found is None or "bare PyTorch" not in found["rows"]:
        return None
    bare = found["rows"]["bare PyTorch"]
    each = []
    for clock, color in (("wall", SOFT), ("processor", "#a0a6af")):
        for name, row in found["rows"].items():
            middle = row.get(f"{clock}_s")
            if not middle or not bare.get(f"{clock}_s"):
                continue
            low, high = (row.get(f"{clock}_{end}_s", middle) for end in ("low", "high"))
            value, low, high = (part / bare[f"{clock}_s"] for part in (middle, low, high))
            shade = BLUE if name == "consilia" else color
            each.append(Bar(f"{name}, {clock}", value, low, high, shade))
    values = [bar.value for bar in each]
    return bars(each, label, log=max(values) > 8 * min(values))


def peers(results: Mapping[str, Result]) -> Figure | None:
    """Return a round with training under each framework, over the bare loop."""
    return _peers(
        results.get("peers"), "a round over a bare PyTorch loop's, on the wall and of the processor"
    )


def peers_noop(results: Mapping[str, Result]) -> Figure | None:
    """Return a round without training under each framework, over the bare loop."""
    label = "a round without training over a bare loop's"
    return _peers(results.get("peers-noop"), label)


def gpu(results: Mapping[str, Result]) -> Figure | None:
    """Return images per second on a GPU over the eager bare loop."""
    found = results.get("gpu")
    if found is None or not found["speed"]:
        return None
    each = []
    for row in found["speed"]:
        name = f"{row['network']}, {row['size']} px, {row['method']}"
        ways = {"eager": SOFT, "captured": GREEN, "lanes": BLUE, "bf16": "#7a68b3", "compiled": INK}
        for way, color in ways.items():
            ratios = row.get(f"{way}_ratios")
            if ratios is not None and ratios["median"] == ratios["median"]:  # not one that failed
                each.append(spread_bar(f"{name}: {way}", ratios, color=color))
    return bars(each, "images per second over the eager bare loop")


def table(results: Mapping[str, Result]) -> Figure | None:
    """Return seconds a round and test images a second as in FedLPPA's Table IX, beside FedAvg's."""
    found = results.get("costs-table-cuda") or results.get("costs-table-cpu")
    if found is None or "fedavg" not in found["rows"]:
        return None
    first = statistics_of(found["rows"]["fedavg"])
    each = []
    for name, row in found["rows"].items():
        if name == "fedavg" or "seconds" not in row:
            continue
        middle, low, high = (row["seconds"][key] / first for key in ("median", "low", "high"))
        goal = row["paper"][3] / 0.2 if row["paper"] else None
        each.append(Bar(name, middle, low, high, goal=goal))
    return bars(each, "seconds of a round over FedAvg's; dashed: in the paper")


def statistics_of(row: Mapping[str, Any]) -> float:
    """Return a row's median seconds."""
    return float(row["seconds"]["median"])


Chart = Callable[[Mapping[str, Result]], Figure | None]
#: File name -> what draws it, the heading, what one sees, and how it is measured.
CHARTS: dict[str, tuple[Chart, str, str, str]] = {
    "goals": (
        goals,
        "Goals at a glance",
        "Everything on the processor that has a goal, relative to it. Left of the line it is met. Wall times "
        "hold for a quiet machine only: see the load.",
        "make bench",
    ),
    "arithmetic": (
        arithmetic,
        "A method against the arithmetic it needs",
        "One round's work at a site over a bare loop that makes the same passes and comes to the same "
        "weights (but for FedLSM's loop, which draws other pairs to blend).",
        "python -m benchmarks.costs --arithmetic",
    ),
    "rounds": (
        rounds,
        "A round of every method beside FedAvg's",
        "Two local steps of four images on a small study of the method's family. Most of it is arithmetic: "
        "several networks, several passes. With so few steps, what is done once a round weighs more than it "
        "would in use.",
        "python -m benchmarks.costs --rounds",
    ),
    "table": (
        table,
        "Seconds a round as in FedLPPA's Table IX",
        "`phantom-disc@weak`, all images, on the device that the result names.",
        "python -m benchmarks.costs --table",
    ),
    "noop": (
        noop,
        "A round in which nobody trains",
        "What the engine itself takes with a U-Net of 1.8 million numbers, by what the ledger holds.",
        "python -m benchmarks.noop",
    ),
    "scale": (
        scale,
        "From four to a thousand sites",
        "Federations of all sizes take turns in one process; without training with `--engine`.",
        "python -m benchmarks.scale",
    ),
    "peers": (
        peers,
        "Other frameworks, with training",
        "The same network, images and local steps; whiskers are rounds.",
        "make bench-peers",
    ),
    "peers-noop": (
        peers_noop,
        "Other frameworks, without training",
        "The framework alone; whiskers are rounds.",
        "make bench-peers",
    ),
    "gpu": (
        gpu,
        "On a GPU",
        "Whole rounds, averaging and ledger included, over a careful eager loop in one script.",
        "make bench-gpu",
    ),
}
SOURCES = {
    "goals": ("startup", "noop", "overhead", "reading", "costs"),
    "arithmetic": ("costs",),
    "rounds": ("costs-rounds",),
    "table": ("costs-table-cuda", "costs-table-cpu"),
}


def machine_line(name: str, results: Mapping[str, Result]) -> str:
    """Return on what a chart's results were measured."""
    for source in SOURCES.get(name, (name,)):
        if source in results:
            facts = results[source]["machine"]
            card = results[source].get("gpu") or results[source].get("device")
            where = f", {card}" if card not in {None, "cpu", "none"} else ""
            return (
                f"{facts['cores']} {facts['processor']} cores{where}, PyTorch {facts['torch']}, "
                f"load {facts['load']:.1f} when it ended"
            )
    return ""


def read_results(folder: Path) -> dict[str, Result]:
    """Return every result by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def main() -> None:
    """Draw what has been measured, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=DOCS)
    parser.add_argument("--type", choices=("svg", "png"), default="svg", help="png only to look at")
    given, _ = parser.parse_known_args()
    results = read_results(given.results)
    parts = [
        "# Plots",
        "",
        "Made by `python -m benchmarks.plots` from `benchmarks/results/*.json`. Bars are medians, whiskers",
        "the least and the greatest of the repeats, dashed marks goals. Tables, and what they mean, are on",
        "the page [Speed and scale](speed.md).",
    ]
    for name, (draw, heading, words, command) in CHARTS.items():
        with mpl.rc_context(STYLE):  # type: ignore[arg-type]  # the stubs list every key
            figure = draw(results)
            if figure is None:
                print(f"{name:12s} not measured")
                continue
            path = given.out / f"{name}.{given.type}"
            options: dict[str, Any] = (
                {"metadata": {"Date": None}} if given.type == "svg" else {"dpi": 110}
            )
            figure.savefig(path, facecolor="white", **options)
        print(f"{name:12s} {path.name}")
        facts = machine_line(name, results)
        parts += ["", f"## {heading}", "", words, "", f"![{heading}]({name}.{given.type})", ""]
        parts += [f"`{command}`" + (f"; {facts}." if facts else "")]
    if given.type == "svg":
        (given.out / "plots.md").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
