"""A toy federation for tests, public so that authors of outside methods can use it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import Federation
from consilia.engines.inprocess import run_in_process
from consilia.methods import labels_seen, make_method
from consilia.runs.spec import RunSpec, parse_changes
from consilia.weaken import weaken

SIZE = 16


def toy_spec(task: str = "segmentation", **changes: Any) -> RunSpec:
    """Return a run of seconds: small sites of 16-pixel images, a tiny network, three rounds.

    Args:
        task: "segmentation", "multi-label" or "single-label".
        changes: `sites` (a list of `[[site]]` tables without `data`), `labels`, or any table or key of
            a run file.
    """
    segments = task == "segmentation"
    form = "mask" if segments else "image"
    named = ("anna", "bo", "cleo")
    sites = changes.pop("sites", [{"name": name, "supervision": form} for name in named])
    federation = {
        "name": "toy",
        "task": "segmentation" if segments else "classification",
        "labels": changes.pop("labels", ["round", "square"]),
        "exclusive": task != "multi-label",
        "image": {"size": [SIZE, SIZE], "channels": 1},
        "site": [{"data": "dataset:toy", **site} for site in sites],
    }
    table: dict[str, Any] = {
        "study": "toy",
        "federation": federation,
        "rounds": 3,
        "learner": {"network": "unet-tiny" if segments else "cnn-small"},
        "training": {"batch": 4, "augment": "flips"},
        "evaluate": {"every": 1, "pictures": 1, "per_case": True},
        "engine": {"threads": 1, "checkpoint_every": 1, "device": "cpu"},
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            table[key] = {**table[key], **value}
        else:
            table[key] = value
    return RunSpec.model_validate(table)


def toy_cases(federation: Federation, site: str, split: str, count: int) -> Cases:
    """Return drawn cases: bright discs and squares on noise, each label in about half of the images."""
    seed = [ord(letter) for letter in f"{site}/{split}"]
    rng = np.random.default_rng(seed)
    labels = len(federation.labels)
    image = rng.normal(90 + 10 * len(site), 20, (count, 1, SIZE, SIZE))
    masks = np.zeros((count, SIZE, SIZE), np.uint8)
    rows, cols = np.mgrid[:SIZE, :SIZE]
    for i in range(count):
        for label in range(labels):
            if federation.exclusive and federation.task == "classification" and label != i % labels:
                continue
            if rng.random() < 0.3 and not federation.exclusive:
                continue
            y, x = rng.integers(4, SIZE - 4, 2)
            reach = (
                np.maximum(abs(rows - y), abs(cols - x))
                if label % 2
                else np.hypot(rows - y, cols - x)
            )
            inside = reach < 3
            masks[i][inside] = label + 1
            image[i, 0][inside] += 50 + 40 * label
    truth = masks
    if federation.task == "classification":
        truth = np.stack([(masks == label + 1).any((1, 2)) for label in range(labels)], 1).astype(
            np.uint8
        )
        if federation.exclusive:
            truth = np.eye(labels, dtype=np.uint8)[np.arange(count) % labels]
    names = tuple(f"{split}-{i:02d}" for i in range(count))
    return Cases(image.clip(0, 255).astype(np.uint8), truth, names, names)


def toy_sites(spec: RunSpec, train: int = 10, test: int = 6) -> dict[str, SiteData]:
    """Return the data of every site of a toy run, with the label views that it declares."""
    federation = spec.federation
    found = {}
    for name in federation.sites:
        cases = toy_cases(federation, name, "train", train)
        view, _ = weaken(
            cases,
            federation.labels,
            federation[name],
            seed=spec.simulate.seed,
            completeness=spec.simulate.completeness.get(name),
            exclusive=federation.exclusive,
            margin=spec.simulate.margin,
        )
        held = toy_cases(federation, name, "validation", 4) if spec.evaluate.validation else None
        found[name] = SiteData(cases, view, held, toy_cases(federation, name, "test", test))
    return found


def run_toy(spec: RunSpec, path: Path, sites: dict[str, SiteData] | None = None) -> dict[str, Any]:
    """Run a toy spec and return what `metrics.json` holds."""
    if sites is None:
        seen = labels_seen(make_method(spec.method.name), spec.federation)
        sites = toy_sites(spec.model_copy(update={"federation": seen}))
    return run_in_process(spec, path, data=path, sites=sites)


def with_changes(spec: RunSpec, *pairs: str) -> RunSpec:
    """Return a spec with `key=value` changes, as `--set` makes them."""
    table = spec.model_dump()
    for key, value in parse_changes(list(pairs)).items():
        *parents, last = key.split(".")
        inner = table
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return RunSpec.model_validate(table)
