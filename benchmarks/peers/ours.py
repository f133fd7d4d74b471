"""FedAvg in Consilia's in-process engine: ledger, checks and log included."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.peers import work
from consilia.datasets.contract import Cases, SiteData
from consilia.engines.inprocess import run_in_process
from consilia.labels import LabelView
from consilia.runs.spec import RunSpec
from consilia.training.local import Trained


def main() -> None:
    """Run all rounds."""
    names = [f"site-{site}" for site in range(work.SITES)]
    spec = RunSpec.model_validate(
        {
            "study": "peers",
            "federation": {
                "name": "peers",
                "task": "segmentation",
                "labels": ["lesion"],
                "image": {"size": [work.SIZE, work.SIZE]},
                "site": [{"name": name, "data": "made"} for name in names],
            },
            "rounds": work.ROUNDS,
            "learner": {"network": "unet-fedlppa"},
            "training": {
                "batch": work.BATCH,
                "learning_rate": work.RATE,
                "augment": "none",
                "keep_optimizer": False,
            },
            "evaluate": {"every": 10_000, "pictures": 0},
            "engine": {"checkpoint_every": 10_000, "device": "cpu", "threads": 1},
        }
    )
    sites = {}
    for at, name in enumerate(names):
        image, target = work.data(at)
        truth = target[:, 0].numpy().astype(np.uint8)
        ids = tuple(map(str, range(work.IMAGES)))
        cases = Cases((image.numpy() * 255).astype(np.uint8), truth, ids, ids)
        view = LabelView(truth, np.ones((work.IMAGES, 1), dtype=bool))
        sites[name] = SiteData(cases, view, None, cases.take(np.arange(1)))
    ends: list[tuple[float, float]] = []
    untrained = patch(
        "consilia.methods.averaging.train_locally", lambda *_, **__: Trained(0.5, 1, work.IMAGES)
    )
    with tempfile.TemporaryDirectory() as folder, nullcontext() if work.TRAINS else untrained:
        path = Path(folder)
        listen = (lambda line: ends.append(work.now()),)
        run_in_process(spec, path / "run", data=path, sites=sites, listeners=listen)
    work.tell(ends)


if __name__ == "__main__":
    main()
