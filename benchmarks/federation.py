"""An almost empty round across real processes over TLS, with 1, 2 and 4 sites: what Flower costs.

Each site takes one step on one tiny image, so that what is timed is the carrying of one U-Net each
way. The same study in one process is timed beside it.

    python -m benchmarks.federation
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

import psutil
import tomli_w

from benchmarks.harness import write
from consilia.engines.inprocess import run_in_process
from consilia.federation import coordinator as co
from consilia.federation import processes
from consilia.federation import site as si
from consilia.federation.across import run_across
from consilia.federation.up import up
from consilia.runs.spec import RunSpec

SITES = ("graz", "hanoi", "izmir", "jaipur")
ROUNDS = 7
#: ENGINES 2.5: Flower as it comes, packed, 9.8 MB each way; seconds per round by sites.
AS_IT_COMES = {1: 6.6, 2: 6.5, 4: 10.6}


def spec_of(count: int) -> RunSpec:
    """Return FedAvg with a U-Net of 2 million numbers and next to no arithmetic."""
    sites = [{"name": n, "data": f"dataset:phantom-lesions/{n}"} for n in SITES[:count]]
    table = {
        "study": "noop",
        "federation": {
            "name": "noop",
            "task": "segmentation",
            "labels": ["lesion"],
            "image": {"size": [16, 16], "channels": 1},
            "site": sites,
        },
        "rounds": ROUNDS,
        "learner": {"network": "unet-small"},
        "training": {"batch": 1, "steps": 1},
        "evaluate": {"every": ROUNDS},
        "engine": {"threads": 1, "device": "cpu", "checkpoint_every": 1},
    }
    return RunSpec.model_validate(table)


def seconds(run: Path) -> list[float]:
    """Return how long each round took that neither introduces nor evaluates."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines[1:-1]]


def measure(count: int, folder: Path) -> dict[str, float]:
    """Start a federation, run the study in it, and stop it."""
    spec = spec_of(count)
    folder.mkdir(parents=True)
    table = spec.federation.model_dump(mode="json", exclude_none=True)
    (folder / "federation.toml").write_text(tomli_w.dumps(table))
    where = {"host": "localhost", "port": processes.free_port(), "listen": "127.0.0.1"}
    invitations = co.make_coordinator(folder / "c", folder / "federation.toml", **where)  # type: ignore[arg-type]
    coordinator = co.Coordinator.open(folder / "c")
    sites = []
    for site in spec.federation.site:
        sites.append(si.join(invitations[site.name], folder / site.name, site.data))
        co.admit(coordinator, folder / site.name / f"{site.name}.enrolment")
    try:
        up(coordinator)
        for one in sites:
            si.prepare(one)
            processes.start(one.folder)
        run_across(coordinator, spec, folder / "run", data=folder)
        held = [processes.pids(one.folder) for one in sites]
        memory = statistics.mean(_memory(table.values()) for table in held)
    finally:
        for one in [*(s.folder for s in sites), coordinator.folder]:
            processes.stop(one)
    run_in_process(spec, folder / "one", data=folder)
    across, alone = seconds(folder / "run"), seconds(folder / "one")
    return {
        "sites": count,
        "seconds": statistics.median(across),
        "least": min(across),
        "most": max(across),
        "in_process": statistics.median(alone),
        "as_it_comes": AS_IT_COMES[count],
        "site_megabytes": memory,
    }


def _memory(pids: object) -> float:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6  # type: ignore[attr-defined]


def main() -> None:
    """Measure, print and write."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in AS_IT_COMES:
            row = measure(count, Path(folder) / str(count))
            rows.append(row)
            print(
                f"{count} sites: {row['seconds']:.1f} s a round ({row['least']:.1f} to {row['most']:.1f}); "
                f"in one process {row['in_process']:.2f} s; Flower as it comes {row['as_it_comes']} s; "
                f"{row['site_megabytes']:.0f} MB a site"
            )
    print(write("federation", {"rows": rows}))


if __name__ == "__main__":
    main()
