"""Tiny copies of public datasets, written to disk by tests: right layout, random pixels."""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 16


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def disc(seed: int = 0, value: int = 255, side: int = SIDE) -> np.ndarray:
    """Return a mask with a disc whose place depends on the seed."""
    y, x = np.mgrid[:side, :side]
    at = 5 + seed % (side - 10)
    return np.where((y - at) ** 2 + (x - 8) ** 2 < 10, value, 0).astype(np.uint8)


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def save_pairs(images: Path, masks: Path, count: int, kind: str = "png", suffix: str = "") -> None:
    for n in range(count):
        save(images / f"case{n}.{kind}", pixels(n, SIDE, SIDE, 3))
        save(masks / f"case{n}{suffix}.{kind}", disc(n))


def save_nifti(path: Path, values: np.ndarray) -> None:
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)


def volume(seed: int, slices: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return an image and labels in NIfTI order (x, y, z); the first slice shows no label."""
    image = np.random.default_rng(seed).normal(0, 300, (SIDE, SIDE, slices)).astype(np.int16)
    mask = np.repeat(disc(seed, 1)[..., None], slices, axis=2)
    mask[..., 0] = 0
    return image, mask


def save_metaimage(path: Path, values: np.ndarray, kind: str, **more: str) -> None:
    """Write a volume of (slices, rows, columns) as .mhd and .raw."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = path.with_suffix(".raw")
    header = {
        "ObjectType": "Image",
        "NDims": "3",
        "DimSize": " ".join(map(str, values.shape[::-1])),
        "ElementType": kind,
        **more,
        "ElementDataFile": raw.name,
    }
    path.write_text("".join(f"{key} = {value}\n" for key, value in header.items()))
    raw.write_bytes(values.tobytes())


def table(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
