"""Reading a folder of small PNGs with masks, against a bare Pillow loop over the same files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.harness import spread, told, write
from consilia.declare import Federation
from consilia.readers.folder import read_folder

COUNT, SIZE = 5000, 128
GOAL = 0.8


def make_folder(root: Path, count: int) -> Federation:
    """Write noisy images with blocky masks, and return the federation that they belong to."""
    rng = np.random.default_rng(0)
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    base = rng.integers(0, 255, (64, SIZE, SIZE)).astype(np.uint8)
    for i in range(count):
        image = np.roll(base[i % 64], i, axis=1)
        image[0, :2] = divmod(i, 256)  # no two alike: copies across splits are refused
        Image.fromarray(image).save(root / f"images/case-{i:05d}.png")
        mask = np.zeros((SIZE, SIZE), np.uint8)
        mask[20 + i % 40 : 60 + i % 40, 30:90] = 255
        Image.fromarray(mask).save(root / f"masks/case-{i:05d}.png")
    table = {
        "name": "reading",
        "task": "segmentation",
        "labels": ["lesion"],
        "image": {"size": [SIZE, SIZE]},
        "site": [{"name": "here", "data": "."}],
    }
    return Federation.model_validate(table)


def bare(root: Path) -> int:
    """Decode every image and mask into one array each, and do nothing else."""
    names = sorted((root / "images").iterdir())
    image = np.empty((len(names), SIZE, SIZE), np.uint8)
    mask = np.empty_like(image)
    for i, name in enumerate(names):
        image[i] = np.asarray(Image.open(name))
        mask[i] = np.asarray(Image.open(root / "masks" / name.name))
    return len(names)


def main(repeats: int = 7) -> None:
    """Print and write the ratio of speeds; which of the two goes first takes turns."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        federation = make_folder(root, COUNT)
        ways: dict[str, Callable[[], object]] = {
            "bare": lambda: bare(root),
            "ours": lambda: read_folder(root, federation, "here"),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(repeats + 1):
            for way in [*ways][:: 1 if turn % 2 else -1]:
                began = time.process_time()
                ways[way]()
                if turn:
                    seconds[way].append(time.process_time() - began)
    found = spread([a / b for a, b in zip(seconds["bare"], seconds["ours"], strict=True)])
    write("reading", {"speed": found, "goal": GOAL, "images": COUNT, "size": SIZE})
    print(
        f"read_folder / bare Pillow loop, speed: {told(found)} "
        f"({COUNT} images of {SIZE} px with masks)"
    )


if __name__ == "__main__":
    main()
