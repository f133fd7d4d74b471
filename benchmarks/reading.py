"""Reading a folder of small PNGs with masks, against a bare Pillow loop over the same files.

Four ratios: processor time and wall clock against the bare loop; wall clock against the same loop
with a pool of threads; and processor time for files with a line of text, which
`consilia.readers.png` leaves to Pillow.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from benchmarks.harness import spread, told, write
from consilia.declare import Federation
from consilia.readers.folder import THREADS, read_folder

COUNT, SIZE = 5000, 128
GOAL = 0.8
Seconds = dict[str, list[float]]


def make_folder(root: Path, count: int, text: str = "") -> Federation:
    """Write noisy images with blocky masks, and return the federation that they belong to."""
    info = PngImagePlugin.PngInfo()
    if text:
        info.add_text("Comment", text)
    rng = np.random.default_rng(0)
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    base = rng.integers(0, 255, (64, SIZE, SIZE)).astype(np.uint8)
    for i in range(count):
        image = np.roll(base[i % 64], i, axis=1)
        image[0, :2] = divmod(i, 256)  # no two alike: copies across splits are refused
        Image.fromarray(image).save(root / f"images/case-{i:05d}.png", pnginfo=info)
        mask = np.zeros((SIZE, SIZE), np.uint8)
        mask[20 + i % 40 : 60 + i % 40, 30:90] = 255
        Image.fromarray(mask).save(root / f"masks/case-{i:05d}.png", pnginfo=info)
    table = {
        "name": "reading",
        "task": "segmentation",
        "labels": ["lesion"],
        "image": {"size": [SIZE, SIZE]},
        "site": [{"name": "here", "data": "."}],
    }
    return Federation.model_validate(table)


def bare(root: Path, threads: int = 0) -> int:
    """Decode every image and mask into one array each, and do nothing else."""
    names = sorted((root / "images").iterdir())
    image = np.empty((len(names), SIZE, SIZE), np.uint8)
    mask = np.empty_like(image)

    def decode(i: int) -> None:
        image[i] = np.asarray(Image.open(names[i]))
        mask[i] = np.asarray(Image.open(root / "masks" / names[i].name))

    if threads:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(decode, range(len(names))):
                pass
    else:
        for i in range(len(names)):
            decode(i)
    return len(names)


def measure(ways: dict[str, Callable[[], object]], repeats: int) -> tuple[Seconds, Seconds]:
    """Return processor and wall seconds of each way; which goes first takes turns."""
    processor: Seconds = {way: [] for way in ways}
    wall: Seconds = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way in [*ways][:: 1 if turn % 2 else -1]:
            began = time.process_time(), time.perf_counter()
            ways[way]()
            if turn:
                processor[way].append(time.process_time() - began[0])
                wall[way].append(time.perf_counter() - began[1])
    return processor, wall


def ratio(seconds: Seconds) -> dict[str, float]:
    """Return how fast `read_folder` is, as a part of the speed of the other way."""
    return spread([a / b for a, b in zip(seconds["other"], seconds["ours"], strict=True)])


def main(repeats: int = 15) -> None:
    """Print and write the ratios of speeds."""
    with tempfile.TemporaryDirectory() as folder:
        root, noted = Path(folder) / "plain", Path(folder) / "noted"
        federation = make_folder(root, COUNT)
        make_folder(noted, COUNT, "drawn")

        def against(other: Callable[[], object], place: Path) -> tuple[Seconds, Seconds]:
            ours = partial(read_folder, place, federation, "here")
            return measure({"other": other, "ours": ours}, repeats)

        processor, wall = against(partial(bare, root), root)
        _, pool = against(partial(bare, root, THREADS), root)
        text, _ = against(partial(bare, noted), noted)
    found = {
        "speed": ratio(processor),
        "wall": ratio(wall),
        "wall_pool": ratio(pool),
        "text": ratio(text),
    }
    write(
        "reading", {**found, "goal": GOAL, "images": COUNT, "size": SIZE, "pool_threads": THREADS}
    )
    print(f"read_folder / bare Pillow loop, speed ({COUNT} images of {SIZE} px with masks):")
    print(f"  processor time {told(found['speed'])}")
    print(f"  wall clock {told(found['wall'])}")
    print(f"  wall clock, bare loop with {THREADS} threads {told(found['wall_pool'])}")
    print(f"  processor time, files with a line of text {told(found['text'])}")


if __name__ == "__main__":
    main()
