"""10,000 sites, 1 % taking part: what the server does is measured, what the internet does is a model.

The server's work on one update is timed in a real run over 10,000 declared sites (nobody trains). The
rest of a round is simulated from the cost model below, with every number written down in `MODEL`.

A drawn site i answers after

    latency + bytes / down_i + steps * step_i + bytes / up_i

with `down_i`, `up_i` and `step_i` drawn log-normally around their medians. A site drops out with a fixed
probability. The round closes when the wanted part of the drawn sites has answered; the server checks
and adds up each update as it comes, so that only what is left after the last one counts.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.harness import write
from consilia.datasets.contract import Cases, SiteData
from consilia.engines.inprocess import run_in_process
from consilia.labels import LabelView
from consilia.runs.spec import RunSpec
from consilia.training.local import Trained

SITES, FRACTION, ROUNDS = 10_000, 0.01, 4
#: Medians, and spread as the standard deviation of the logarithm.
MODEL = {
    "megabytes of a model": 7.27,  # U-Net 16-256, float32
    "local steps": 100.0,
    "seconds of a step, median": 0.5,  # a hospital's CPU
    "spread of a step": 0.6,
    "megabits per second down, median": 100.0,
    "megabits per second up, median": 20.0,
    "spread of the network": 0.8,
    "latency, seconds": 0.5,
    "chance to drop out": 0.05,
}


def server_ms() -> tuple[float, float]:
    """Return processor milliseconds per update in a real engine, and those of a whole round."""
    names = [f"site-{at:05d}" for at in range(SITES)]
    spec = RunSpec.model_validate(
        {
            "study": "internet",
            "federation": {
                "name": "internet",
                "task": "segmentation",
                "labels": ["lesion"],
                "image": {"size": [16, 16]},
                "site": [{"name": name, "data": "made"} for name in names],
            },
            "rounds": ROUNDS,
            "learner": {"network": "unet-fedlppa"},
            "participation": {"fraction": FRACTION},
            "evaluate": {"every": 100_000, "pictures": 0},
            "engine": {"checkpoint_every": 100_000, "device": "cpu", "threads": 1},
        }
    )
    truth = np.ones((2, 16, 16), dtype=np.uint8)
    cases = Cases(np.zeros((2, 1, 16, 16), dtype=np.uint8), truth, ("a", "b"), ("a", "b"))
    one = SiteData(cases, LabelView(truth, np.ones((2, 1), dtype=bool)), None, cases)
    ends: list[float] = []
    untrained = patch(
        "consilia.methods.averaging.train_locally", lambda *_, **__: Trained(0.5, 1, 2)
    )
    with tempfile.TemporaryDirectory() as folder, untrained:
        path = Path(folder)
        listen = (lambda line: ends.append(time.process_time()),)
        sites = dict.fromkeys(names, one)
        run_in_process(spec, path / "run", data=path, sites=sites, listeners=listen)
    whole = 1000 * float(np.median(np.diff(ends)[:-1]))
    return whole / (SITES * FRACTION), whole


def round_seconds(wanted: float, rng: np.random.Generator) -> tuple[float, float, int]:
    """Return how long a simulated round takes, what it sends (GB), and how many updates came."""
    drawn = int(SITES * FRACTION)
    spread = MODEL["spread of the network"]
    bits = 8 * MODEL["megabytes of a model"]
    down = MODEL["megabits per second down, median"] * np.exp(spread * rng.standard_normal(drawn))
    up = MODEL["megabits per second up, median"] * np.exp(spread * rng.standard_normal(drawn))
    step = MODEL["seconds of a step, median"] * np.exp(
        MODEL["spread of a step"] * rng.standard_normal(drawn)
    )
    answer = MODEL["latency, seconds"] + bits / down + MODEL["local steps"] * step + bits / up
    answer[rng.random(drawn) < MODEL["chance to drop out"]] = np.inf
    come = np.sort(answer)
    need = min(int(np.ceil(wanted * drawn)), int(np.isfinite(come).sum()))
    sent = MODEL["megabytes of a model"] * (drawn + need) / 1000
    return float(come[need - 1]), sent, need


def main(repeats: int = 1000) -> None:
    """Print and write the table."""
    each, whole = server_ms()
    print(f"server: {each:.1f} ms of processor per update, {whole / 1000:.2f} s per round")
    rows = []
    for wanted in (1.0, 0.9, 0.8):
        rng = np.random.default_rng(0)
        told = np.array([round_seconds(wanted, rng) for _ in range(repeats)])
        seconds = told[:, 0] + each / 1000
        rows.append(
            {
                "wanted": wanted,
                "seconds": float(np.median(seconds)),
                "low": float(np.quantile(seconds, 0.05)),
                "high": float(np.quantile(seconds, 0.95)),
                "gigabytes": float(np.median(told[:, 1])),
                "updates": float(np.median(told[:, 2])),
                "hours_per_100_rounds": float(np.median(seconds)) * 100 / 3600,
            }
        )
        print(
            f"closes at {wanted:.0%} of the drawn sites: {rows[-1]['seconds']:.0f} s a round "
            f"({rows[-1]['low']:.0f} to {rows[-1]['high']:.0f}), {rows[-1]['updates']:.0f} updates, "
            f"{rows[-1]['gigabytes']:.2f} GB, {rows[-1]['hours_per_100_rounds']:.1f} h for 100 rounds"
        )
    write("internet", {"model": MODEL, "server_ms_per_update": each, "rows": rows})


if __name__ == "__main__":
    main()
