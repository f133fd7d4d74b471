"""Tuberculosis and COVID-19 on chest radiographs: one label each (FedPSL's setup B)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import picture_exam, pictures
from consilia.datasets.source import Exam, FileDataset, Place
from consilia.datasets.split import shuffled
from consilia.declare import ImageShape

SAMPLE = 1000
#: How many images with and without the label the sample is tested on.
PER_LABEL = 300


def index(sick: str, place: Place, site: str) -> list[Exam]:
    """Return all images, or 1,000 to train on, as many of them sick as in all, and 600 to test on."""
    found = {label: _pictures(place.find(name)) for label, name in ((1, sick), (0, "Normal"))}
    if site != f"sample-{SAMPLE}":
        return _exams(place, found)
    train = _sampled(found)
    rest = {
        label: [path for path in paths if path not in set(train[label])]
        for label, paths in found.items()
    }
    test = {label: _some(paths, PER_LABEL, "test") for label, paths in rest.items()}
    return [*_exams(place, train, "train"), *_exams(place, test, "test")]


def _exams(place: Place, found: dict[int, list[Path]], split: Any = None) -> list[Exam]:
    return [
        picture_exam(place, path, label=np.array([label], dtype=np.uint8), split=split)
        for label, paths in found.items()
        for path in paths
    ]


def _some(paths: list[Path], count: int, why: str) -> list[Path]:
    """Return some of the images, the same each time."""
    by_name = {path.name: path for path in paths}
    return [by_name[name] for name in shuffled(by_name, why)[:count]]


def _pictures(folder: Path) -> list[Path]:
    inner = folder / "images"
    return list(pictures(inner if inner.is_dir() else folder).values())


def _sampled(found: dict[int, list[Path]]) -> dict[int, list[Path]]:
    """Return 1,000 images, the same each time: 167 sick of the TB set, 262 of the COVID-19 set."""
    total = sum(map(len, found.values()))
    sick = min(round(SAMPLE * len(found[1]) / total), len(found[1]))
    counts = {1: sick, 0: SAMPLE - sick}
    return {label: _some(found[label], count, "sample") for label, count in counts.items()}


def _dataset(name: str, title: str, label: str, sick: str, **more: Any) -> FileDataset:
    card = DatasetCard(name, title, "classification", (label,), ("all", f"sample-{SAMPLE}"), **more)
    shape = ImageShape(size=(224, 224), channels=1)
    return FileDataset(card, shape, partial(index, sick), exclusive=False)


RADIOGRAPHY = (
    _dataset(
        "tb-xray",
        "Tuberculosis on chest radiographs",
        "tuberculosis",
        "Tuberculosis",
        source="kaggle.com/datasets/tawsifurrahman/tuberculosis-tb-chest-xray-dataset",
        licence="research use, as its page asks",
        citation="Rahman et al. Reliable tuberculosis detection. IEEE Access 2020.",
        layout="tb-xray/{Tuberculosis,Normal}/*.png (patients are not told apart)",
    ),
    _dataset(
        "covid-xray",
        "COVID-19 on chest radiographs",
        "covid-19",
        "COVID",
        source="kaggle.com/datasets/tawsifurrahman/covid19-radiography-database",
        licence="research use, as its page asks",
        citation="Chowdhury et al. IEEE Access 2020; Rahman et al. 2021.",
        layout="covid-xray/{COVID,Normal}/images/*.png (patients are not told apart)",
    ),
)
