"""Run folders written by hand: what a report reads, without any training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

LABELS = ("irf", "srf")
FINDINGS = ("nodule", "effusion", "mass")


def spec(
    sites: tuple[str, ...], task: str, labels: tuple[str, ...], **changes: Any
) -> dict[str, Any]:
    form = "mask" if task == "segmentation" else "image"
    declared = [{"name": name, "data": f"data/{name}", "supervision": form} for name in sites]
    federation = {
        "name": "toy",
        "task": task,
        "labels": list(labels),
        "exclusive": task == "segmentation",
        "image": {"size": [16, 16], "channels": 1},
        "site": declared,
    }
    return {"study": "toy", "federation": federation, "rounds": 4, **changes}


def scores(task: str, value: float | None) -> dict[str, float | None]:
    if task == "segmentation":
        return {"dice": value, "iou": value, "hd95": 3.0, "dice/irf": value, "dice/srf": None}
    return {"auroc": value, "auroc/nodule": value, "average_precision": None, "accuracy": 0.5}


def round_line(number: int, sites: tuple[str, ...], task: str, evaluated: bool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "round": number,
        "took_part": list(sites),
        "sites": {s: {"images": 8 + i, "loss": 1 / (number + i)} for i, s in enumerate(sites)},
        "shares": {s: 1 / len(sites) for s in sites},
        "events": [],
        "seconds": 1.5,
        "bytes_up": 4000 * len(sites),
        "bytes_down": 4000 * len(sites),
    }
    if evaluated:
        line["test"] = {s: scores(task, 0.5 + 0.01 * (i % 40)) for i, s in enumerate(sites)}
        line["validation"] = {s: scores(task, 0.6) for s in sites}
    return line


def field(site: str, direction: str, message: str, name: str, **entry: Any) -> dict[str, Any]:
    plain = {"dtype": "int", "shape": "[]", "numbers": 1, "bytes": 2}
    head = {"round": 1, "site": site, "direction": direction, "verb": "train", "message": message}
    return {**head, "field": name, **plain, **entry}


WEIGHTS = {"dtype": "float32", "shape": "74 tensors", "numbers": 1000, "bytes": 4000}


def ledger(sites: tuple[str, ...]) -> list[dict[str, Any]]:
    lines = []
    for site in sites:
        lines.append(field(site, "down", "Down", "weights", **WEIGHTS))
        lines.append(field(site, "up", "Up", "weights", **WEIGHTS))
        lines.append(field(site, "up", "Up", "images"))
        lines.append(field(site, "up", "Examination", "case", dtype="table", bytes=40))
    return lines


def pictures(path: Path, task: str, labels: int, channels: int = 1, side: int = 16) -> None:
    rng = np.random.default_rng(0)
    cases = 4
    image = rng.integers(0, 256, (cases, channels, side, side), np.uint8)
    if task == "segmentation":
        truth = np.zeros((cases, side, side), np.uint8)
        truth[:3, 4:10, 4:10] = 1
        truth[:3, 10:14, 4:10] = labels
        predicted = np.roll(truth, 2, axis=2)
    else:
        truth = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0]], np.uint8)
        predicted = rng.random((cases, labels)).astype(np.float32)
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        path,
        image=image,
        truth=truth,
        predicted=predicted,
        score=np.array([0.9, 0.5, 0.2, 0.0]),
        case=np.array(["case-a", "case-b", "case-c", "case-d"]),
        rank=np.array(["best", "median", "worst", "worst"]),
    )


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a function that writes a finished run; its arguments change what was asked."""

    def make(
        sites: tuple[str, ...] = ("bergen", "cusco", "delft"),
        task: str = "segmentation",
        name: str = "run",
        **changes: Any,
    ) -> Path:
        labels = changes.pop("labels", LABELS if task == "segmentation" else FINDINGS)
        run = tmp_path / name
        run.mkdir()
        asked = spec(sites, task, labels, **changes)
        (run / "spec.toml").write_text(tomli_w.dumps(asked))
        rounds = asked["rounds"]
        lines = [round_line(n, sites, task, n in (2, rounds)) for n in range(1, rounds + 1)]
        write_lines(run / "rounds.jsonl", lines)
        write_lines(run / "ledger.jsonl", ledger(sites))
        metrics = {
            "study": asked["study"],
            "method": "fedavg",
            "seed": 0,
            "rounds": rounds,
            "selection": "last_round",
            "sites": lines[-1]["test"],
            "mean": scores(task, 0.512),
            "seconds": 6.0,
            "bytes_up": 1,
            "bytes_down": 1,
        }
        (run / "metrics.json").write_text(json.dumps(metrics))
        (run / "environment.json").write_text(
            json.dumps({"consilia": "0.1.0", "packages": {"torch": "2"}})
        )
        if task == "segmentation":
            values = {"dice": [0.9, 0.1, None], "iou": [0.8, 0.1, None]}
            table = {"case": ["a", "b", "c"], "group": ["p", "p", "q"], "values": values}
            (run / "cases.json").write_text(json.dumps(dict.fromkeys(sites, table)))
        for site in sites[:3]:
            pictures(run / "predictions" / f"{site}.npz", task, len(labels))
        return run

    return make


@pytest.fixture(name="pictures")
def draw_pictures() -> Callable[..., None]:
    """Return the function that writes a site's pictures."""
    return pictures
