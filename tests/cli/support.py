"""A study in a folder, small enough to run in a second, and the real entry point to run it with."""

import csv
import sys
from dataclasses import dataclass

import numpy as np
import tomli_w
from PIL import Image

from consilia.cli import main
from consilia.declare import Federation
from consilia.testing import toy_cases

SIZE = 16
SITES = ("anna", "bo")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code and what it printed."""

    code: int
    out: str
    err: str


def consilia(capfd, monkeypatch, *words):
    """Run a command line as `consilia` does, and return how it ended."""
    monkeypatch.setattr(sys, "argv", ["consilia", *map(str, words)])
    capfd.readouterr()
    code = 0
    try:
        main.main()
    except SystemExit as ended:
        code = ended.code
    return Ended(code, *capfd.readouterr())


def flat(group):
    """Return every command by the words that call it; a group's by two words."""
    found = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {k}": v for k, v in inner.items()} if inner else {name: command}
    return found


def federation_table(task="segmentation", **changes):
    """Return the tables of a federation.toml; a change to None removes a key."""
    segments = task == "segmentation"
    form = "mask" if segments else "image"
    table = {
        "name": "toy",
        "task": task,
        "labels": ["round", "square"],
        "image": {"size": [SIZE, SIZE], "channels": 1},
        "site": [{"name": name, "data": name, "supervision": form} for name in SITES],
    }
    return changed(table, changes)


def run_table(task="segmentation", **changes):
    """Return the tables of a run.toml."""
    table = {
        "study": "toy",
        "rounds": 1,
        "learner": {"network": "unet-tiny" if task == "segmentation" else "cnn-small"},
        "training": {"batch": 4},
        "evaluate": {"every": 1, "pictures": 1, "per_case": True},
        "engine": {"device": "cpu", "threads": 1},
    }
    return changed(table, changes)


def changed(table, changes):
    merged = dict(table)
    for key, value in changes.items():
        inner = merged.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        merged[key] = changed(inner, value) if both else value
    return {key: value for key, value in merged.items() if value is not None}


def write_toml(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table if isinstance(table, str) else tomli_w.dumps(table))


def write_study(folder, task="segmentation", federation=None, run=None):
    """Write federation.toml, run.toml and the folders of both sites; return the run file."""
    declared = federation_table(task, **(federation or {}))
    write_toml(folder / "federation.toml", declared)
    write_toml(folder / "run.toml", run_table(task, **(run or {})))
    for name in SITES:
        write_site(folder / name, Federation.model_validate(federation_table(task)), name)
    return folder / "run.toml"


def write_site(folder, federation, name, train=6, test=3):
    """Write a site's images with their masks, or with labels.csv, and cases.csv."""
    (folder / "images").mkdir(parents=True)
    tags, patients = [], []
    for split, count in (("train", train), ("test", test)):
        cases = toy_cases(federation, name, split, count)
        for case, image, truth in zip(cases.case, cases.image, cases.truth, strict=True):
            Image.fromarray(image[0]).save(folder / "images" / f"{case}.png")
            patients.append((case, case, split))
            if federation.task == "segmentation":
                write_mask(folder / "masks" / f"{case}.png", truth)
            else:
                tags.append((case, *truth.tolist()))
    write_csv(folder / "cases.csv", ("image", "patient", "split"), patients)
    if tags:
        write_csv(folder / "labels.csv", ("image", *federation.labels), tags)


def write_mask(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype=np.uint8)).save(path)


def write_csv(path, head, rows):
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows([head, *rows])


def tree(folder):
    """Return every file of a folder with what it holds, so that a change can be seen."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
