"""Example pictures: what a site's model gets right and wrong, as small inline PNGs."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from consilia.report.record import NAMED, Record

SIDE = 160  # longest side of a picture in pixels; smaller ones are enlarged by the browser
RANKS = ("best", "median", "worst")
LABEL_COLORS = (
    "#00b386",
    "#f0e442",
    "#cc79a7",
    "#ffffff",
    "#56b4e9",
    "#d55e00",
    "#b3a2ff",
    "#8c6bb1",
)
VERDICTS = {
    "agreement": "#dfe6ec",
    "missed": "#1e88e5",
    "false alarm": "#ffb300",
    "wrong label": "#d81b60",
}
EXACT = 4096  # up to so many colors, as in a tinted gray image, the slower palette is near exact
BARS = 8  # so many labels of a classified image are listed


@dataclass(frozen=True)
class Tile:
    """One picture: its name, its content and its description."""

    title: str
    image: np.ndarray
    alt: str

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return png(self.image)


@dataclass(frozen=True)
class Bar:
    """A label of a classified image: the model's probability, and whether it is there."""

    label: str
    probability: float
    true: bool


@dataclass(frozen=True)
class Example:
    """A test case with its pictures and its score."""

    case: str
    ranks: tuple[str, ...]
    score: float | None
    note: str
    tiles: tuple[Tile, ...]
    bars: tuple[Bar, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Gallery:
    """A site's examples, or the reason why there are none."""

    site: str
    examples: tuple[Example, ...]
    trouble: str = ""


def galleries(record: Record) -> list[Gallery]:
    """Return the examples of up to a dozen sites, in the order of their names."""
    folder = record.path / "predictions"
    files = sorted(folder.glob("*.npz"), key=lambda p: p.stem) if folder.is_dir() else []
    return [_gallery(record, path) for path in files[:NAMED]]


def left_out(record: Record) -> int:
    """Return how many sites have pictures that the page does not show."""
    return max(0, len(list((record.path / "predictions").glob("*.npz"))) - NAMED)


def _gallery(record: Record, path: Path) -> Gallery:
    try:
        with np.load(path, allow_pickle=False) as pack:
            kept = {
                name: pack[name]
                for name in ("image", "truth", "predicted", "score", "case", "rank")
            }
        examples = tuple(_example(record, kept, index, ranks) for index, ranks in _chosen(kept))
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        return Gallery(path.stem, (), f"{path.name} cannot be read ({type(error).__name__})")
    return Gallery(path.stem, examples)


def _chosen(kept: dict[str, np.ndarray]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield one case per rank; a case that holds several ranks comes once."""
    score = np.where(_rightly_empty(kept["truth"], kept["predicted"]), 1.0, kept["score"])
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for rank in RANKS:
        rows = np.flatnonzero(kept["rank"] == rank)
        if not len(rows):
            continue
        worst = rows[np.argmin(score[rows])]
        row = {"best": rows[0], "median": rows[len(rows) // 2], "worst": worst}[rank]
        case = str(kept["case"][row])
        index, before = found.get(case, (int(row), ()))
        found[case] = (index, (*before, rank))
    yield from found.values()


def _rightly_empty(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return which cases of a segmentation hold nothing and were left unmarked."""
    if truth.ndim != 3:
        return np.zeros(len(truth), bool)
    return np.asarray(~(truth > 0).any((1, 2)) & ~(predicted > 0).any((1, 2)))


def _example(
    record: Record, kept: dict[str, np.ndarray], row: int, ranks: tuple[str, ...]
) -> Example:
    case, image = str(kept["case"][row]), picture(kept["image"][row])
    truth, predicted = kept["truth"][row], kept["predicted"][row]
    score = float(kept["score"][row]) if np.isfinite(kept["score"][row]) else None
    if truth.ndim == 1:
        bars = _bars(record.federation.labels, predicted, truth)
        alt = f"Test image {case}"
        tiles = (Tile("image", _shrunk(image), alt),)
        return Example(case, ranks, score, "", tiles, bars[:BARS], len(bars[BARS:]))
    note = ""
    if _rightly_empty(truth[None], predicted[None])[0]:
        score, note = None, "nothing to find, nothing marked"
    return Example(case, ranks, score, note, _tiles(case, image, truth, predicted))


def _bars(labels: Sequence[str], predicted: np.ndarray, truth: np.ndarray) -> tuple[Bar, ...]:
    """Return what is true first, then by probability."""
    bars = [
        Bar(label, float(np.nan_to_num(p)), bool(t))
        for label, p, t in zip(labels, predicted, truth, strict=True)
    ]
    return tuple(sorted(bars, key=lambda bar: (not bar.true, -bar.probability)))


def _tiles(
    case: str, image: np.ndarray, truth: np.ndarray, predicted: np.ndarray
) -> tuple[Tile, ...]:
    image = _shrunk(image)
    truth, predicted = (_shrunk(part.astype(np.uint8)) for part in (truth, predicted))
    verdict = verdicts(truth, predicted)
    parts = ", ".join(
        f"{name} {np.mean(verdict == i):.1%}" for i, name in enumerate(VERDICTS, start=1)
    )
    return (
        Tile("image", image, f"Test image {case}"),
        Tile("truth", painted(image, truth), f"{case}, truth: {_covered(truth)}"),
        Tile("prediction", painted(image, predicted), f"{case}, prediction: {_covered(predicted)}"),
        Tile("difference", judged(image, verdict), f"{case}, difference, of the image: {parts}"),
    )


def _covered(labels: np.ndarray) -> str:
    return f"marked on {np.mean(labels > 0):.1%} of the image"


def picture(image: np.ndarray) -> np.ndarray:
    """Return `(c, h, w)` channels as `(h, w, 3)`; other than gray or RGB, the first channel."""
    channels = image if len(image) == 3 else image[:1]
    rgb = np.broadcast_to(channels, (3, *image.shape[1:])).transpose(1, 2, 0)
    return rgb.astype(np.uint8)


def verdicts(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return per pixel 0 for background, else the place of its verdict in `VERDICTS`, from 1."""
    there, marked = truth > 0, predicted > 0
    found = np.zeros(truth.shape, np.uint8)
    found[there & marked & (truth == predicted)] = 1
    found[there & ~marked] = 2
    found[~there & marked] = 3
    found[there & marked & (truth != predicted)] = 4
    return found


def painted(image: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return an image with its labels tinted and outlined."""
    tint = _table(LABEL_COLORS)[labels]
    edge = _edges(labels)[..., None]
    alpha = np.where(edge, 1.0, 0.38) * (labels > 0)[..., None]
    return _mixed(image, tint, alpha)


def judged(image: np.ndarray, verdict: np.ndarray) -> np.ndarray:
    """Return a dimmed image with every verdict in its color."""
    tint = _table(tuple(VERDICTS.values()))[verdict]
    alpha = np.where(verdict == 1, 0.55, 0.9) * (verdict > 0)
    return _mixed(image * 0.45, tint, alpha[..., None])


def _mixed(image: np.ndarray, tint: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    mixed: np.ndarray = np.round(image * (1 - alpha) + tint * alpha).astype(np.uint8)
    return mixed


def _table(colors: Sequence[str]) -> np.ndarray:
    """Return the color of every class value; 0 is unused, and colors repeat when they run out."""
    rgb = [tuple(bytes.fromhex(color[1:])) for color in colors]
    return np.array([(0, 0, 0), *(rgb[i % len(rgb)] for i in range(255))], np.float64)


def _edges(labels: np.ndarray) -> np.ndarray:
    """Return where a pixel has another label above, below, left or right of it."""
    padded = np.pad(labels, 1, mode="edge")
    around = (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:])
    return np.asarray(np.any([labels != other for other in around], axis=0))


def _shrunk(array: np.ndarray) -> np.ndarray:
    """Return an array no larger than a tile: images averaged, labels by their nearest pixel."""
    longest = max(array.shape[:2])
    if longest <= SIDE:
        return array
    to = tuple(max(1, round(side * SIDE / longest)) for side in reversed(array.shape[:2]))
    how = Image.Resampling.BOX if array.ndim == 3 else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(array).resize((to[0], to[1]), how))


def png(image: np.ndarray) -> str:
    """Return an image as a data URI: gray where it is gray, else in at most 256 colors."""
    if (image == image[..., :1]).all():
        drawn = Image.fromarray(np.ascontiguousarray(image[..., 0]))
    else:
        many = len(np.unique(image.reshape(-1, 3).astype(np.uint32) @ (1, 256, 65536))) > EXACT
        how = Image.Quantize.FASTOCTREE if many else Image.Quantize.MEDIANCUT
        drawn = Image.fromarray(image).quantize(256, how, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
