"""A small folder that is right in every way, for tests to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from consilia.declare import Federation
from consilia.errors import DataError
from consilia.readers.folder import read_folder
from consilia.readers.inspect import inspect_folder

SIZE = (8, 10)  # height and width differ, so that no test passes with them swapped
NAMES = ("a", "b", "c", "d")


class SiteFolder:
    """Writes the files of one site; images a, b and c are for training and d is for testing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "images").mkdir(parents=True)
        self.rng = np.random.default_rng(0)
        self.images = {name: self.rng.integers(0, 256, SIZE).astype(np.uint8) for name in NAMES}
        for name, pixels in self.images.items():
            self.save(f"images/{name}.png", pixels)
        self.table(
            "cases.csv", "image,patient,split", "a,1,train", "b,1,train", "c,2,train", "d,3,test"
        )

    def save(self, name: str, pixels: np.ndarray, **options: Any) -> Path:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, pixels)
        else:
            Image.fromarray(pixels).save(path, **options)
        return path

    def remove(self, *names: str) -> None:
        for name in names:
            (self.root / name).unlink()

    def table(self, name: str, *rows: str) -> Path:
        path = self.root / name
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        return path

    def masks(self, *names: str, values: tuple[int, ...] = (0, 1, 2)) -> dict[str, np.ndarray]:
        drawn = {}
        for name in names or NAMES:
            drawn[name] = self.rng.choice(values, SIZE).astype(np.uint8)
            self.save(f"masks/{name}.png", drawn[name])
        return drawn


def declare(**changes: Any) -> Federation:
    """Return a federation of one site 'x'; keys of a site change the site."""
    site = {"name": "x", "data": "x"}
    own = ("supervision", "annotates", "complete", "sparsity", "empty_slices")
    site |= {key: changes.pop(key) for key in own if key in changes}
    table = {
        "name": "f",
        "task": "segmentation",
        "labels": ("liver", "spleen"),
        "image": {"size": SIZE, "channels": 1},
        "site": [site],
    }
    return Federation.model_validate(table | changes)


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    """Return a folder with four images and a table of cases, but no annotations."""
    return SiteFolder(tmp_path / "x")


@pytest.fixture
def federation() -> Callable[..., Federation]:
    """Return a function that declares a federation, by default of masks of two labels."""
    return declare


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Return a function that gives the sentence with which a folder is refused.

    An inspection must say the same first.
    """

    def refused(root: Path, declared: Federation, name: str | None = "x") -> str:
        with pytest.raises(DataError) as problem:
            read_folder(root, declared, name)
        sentence = str(problem.value)
        first, _, _ = inspect_folder(root, declared, name).errors[0].partition(" (also '")
        assert first == sentence
        assert "\n" not in sentence
        assert not sentence.endswith(".") or sentence.endswith("...")
        return sentence

    return refused
