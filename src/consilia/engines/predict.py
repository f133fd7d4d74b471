"""Predicting new images with the model of a finished run."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from consilia.datasets.contract import Cases
from consilia.declare import COMMON, Federation
from consilia.engines.inprocess import make_bench, only_test
from consilia.engines.judge import BATCH, predict
from consilia.engines.machine import settle
from consilia.engines.memory import MemoryStore
from consilia.engines.site import SiteWorker
from consilia.errors import UsageError, listing, suggestion
from consilia.methods import make_method, wire_of
from consilia.methods.contract import Panel
from consilia.payload import Weights, load
from consilia.readers.nifti import write_mask
from consilia.readers.unlabelled import Unlabelled, read_unlabelled
from consilia.readers.whole import whole_folder
from consilia.runs.spec import RunSpec
from consilia.runs.store import RunFolder, refuse_full
from consilia.training.site import Workbench


def predict_folder(run: Path, folder: Path, target: Path, site: str | None = None) -> int:
    """Write a mask per image, or one CSV of probabilities, and return how many images there were."""
    store = RunFolder.open(run)
    spec = store.spec()
    refuse_full(target)
    if folder.is_dir() and target.resolve().is_relative_to(folder.resolve()):
        msg = f"--out {target} lies in '{folder}', whose images are read; choose another --out"
        raise UsageError(msg)
    federation = spec.federation
    found = read_unlabelled(folder, federation.image.size, federation.image.channels)
    first = next(found)  # a folder that cannot be used is refused before anything is written
    settle(spec)
    bench = make_bench(spec, make_method(spec.method.name, spec.method.settings), federation)
    models = load_models(store, spec, bench, site)
    bench.enter(site or COMMON)
    with whole_folder(target) as made:
        return _write(made, chain((first,), found), bench, models, federation)


def _write(
    target: Path,
    found: Iterable[Unlabelled],
    bench: Workbench,
    models: tuple[Weights, ...],
    federation: Federation,
) -> int:
    rows: list[tuple[str, np.ndarray]] = []
    count = 0
    for files in _batches(found):
        image = np.concatenate([file.image for file in files])
        probability = torch.stack([predict(bench, model, image) for model in models]).mean(0)
        at = 0
        for file in files:
            part = probability[at : at + len(file.image)]
            at, count = at + len(part), count + 1
            if federation.task == "segmentation":
                _write_mask(target, file, bench.learner.decide(part).numpy(), federation)
            else:
                rows += zip(_planes_of(file), part.numpy(), strict=True)
    if federation.task != "segmentation":
        _write_table(target / "probabilities.csv", rows, federation)
    return count


def _batches(files: Iterable[Unlabelled]) -> Iterator[list[Unlabelled]]:
    """Yield files that fill a batch together; a volume goes alone."""
    waiting: list[Unlabelled] = []
    for file in files:
        waiting.append(file)
        if sum(len(one.image) for one in waiting) >= BATCH:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _planes_of(file: Unlabelled) -> list[str]:
    """Return the name of each plane, as cases are named in training."""
    if file.place is None:
        return [file.name]
    return [f"{file.name}:{plane:03d}" for plane in range(len(file.image))]


def load_models(
    store: RunFolder, spec: RunSpec, bench: Workbench, site: str | None
) -> tuple[Weights, ...]:
    """Return the weights of a run's last checkpoint: a site's own, or the global ones."""
    found = store.selected_state()
    if found is None:
        msg = f"run '{store.path}' has no checkpoint yet; `consilia resume` goes on with it"
        raise UsageError(msg)
    sites = spec.federation.sites
    if site is not None and site not in sites:
        near = suggestion(site, sites)
        msg = f"run '{store.path}' has no site '{site}'{near} (its sites: {listing(sites)})"
        raise UsageError(msg)
    round_, path = found
    method = make_method(spec.method.name, spec.method.settings)
    name = site or COMMON
    with (
        store.reading(path),
        TemporaryDirectory(prefix="consilia-") as scratch,  # the run itself may still be going on
    ):
        server = load(path / "server.safetensors", wire_of(type(method)).server)
        memories = MemoryStore(Path(scratch) / "memories", 1 << 30)
        memories.restore(path / "memories")
        shape = (0, spec.federation.image.channels, *spec.federation.image.size)
        worker = SiteWorker(
            name,
            method=method,
            federation=spec.federation,
            spec=spec,
            data=only_test(_no_cases(spec.federation, shape), len(spec.federation.labels)),
            bench=bench,
            memories=memories,
        )
        model = worker.model(method.broadcast(server, name), round_)
    models = model.models if isinstance(model, Panel) else (model,)
    if not models:
        msg = (
            f"method '{spec.method.name}' gives each site a model of its own; name one with --site "
            f"({listing(sites)})"
        )
        raise UsageError(msg)
    return models


def _no_cases(federation: Federation, shape: tuple[int, ...]) -> Cases:
    truth = (0, *shape[2:]) if federation.task == "segmentation" else (0, len(federation.labels))
    return Cases(np.zeros(shape, np.uint8), np.zeros(truth, np.uint8), (), ())


def _write_mask(target: Path, file: Unlabelled, masks: np.ndarray, federation: Federation) -> None:
    """Write an index map at the file's own size: a picture as .png, a volume as .nii.gz.

    A single label is drawn as 255 in a picture, to be seen.
    """
    (target / file.name).parent.mkdir(parents=True, exist_ok=True)
    height, width = file.stored
    own = np.stack(
        [
            np.asarray(Image.fromarray(m).resize((width, height), Image.Resampling.NEAREST))
            for m in masks
        ]
    )
    if file.place is None:
        shown = own[0] * 255 if len(federation.labels) == 1 else own[0]
        Image.fromarray(shown).save(target / f"{file.name}.png")
    else:
        write_mask(target / f"{file.name}.nii.gz", own, file.place, file.path)


def _write_table(
    path: Path, rows: Iterable[tuple[str, np.ndarray]], federation: Federation
) -> None:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["image", *federation.labels])
        for name, row in rows:
            writer.writerow([name, *(f"{value:.6f}" for value in row)])
