"""`make bench`: every benchmark that needs no GPU."""

from __future__ import annotations

from benchmarks import costs, noop, overhead, plots, reading, scale, startup, steps


def main() -> None:
    """Run them one after another; each prints its ratios and writes benchmarks/results/NAME.json.

    The last draws them all.
    """
    startup.main()
    noop.main()
    steps.main()
    overhead.main()
    costs.main()
    scale.main()
    reading.main()
    plots.main()


if __name__ == "__main__":
    main()
