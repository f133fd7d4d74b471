"""`make bench`: every benchmark that needs no GPU."""

from __future__ import annotations

from benchmarks import costs, noop, overhead, reading, scale, startup


def main() -> None:
    """Run them one after another; each prints its ratios and writes benchmarks/results/NAME.json."""
    startup.main()
    noop.main()
    overhead.main()
    costs.main()
    scale.main()
    reading.main()


if __name__ == "__main__":
    main()
