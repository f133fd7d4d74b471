"""Predicting new images with the model of a finished run."""

from __future__ import annotations

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from consilia.datasets.contract import Cases
from consilia.declare import COMMON, Federation
from consilia.engines.inprocess import make_bench, only_test, set_threads
from consilia.engines.judge import predict
from consilia.engines.memory import MemoryStore
from consilia.engines.site import SiteWorker
from consilia.errors import UsageError, listing, suggestion
from consilia.methods import make_method, wire_of
from consilia.methods.contract import Panel
from consilia.payload import Weights, load
from consilia.readers.images import read_images
from consilia.runs.spec import RunSpec
from consilia.runs.store import RunFolder, refuse_full
from consilia.training.site import Workbench


def predict_folder(run: Path, folder: Path, target: Path, site: str | None = None) -> int:
    """Write a mask per image, or one CSV of probabilities, and return how many images there were."""
    store = RunFolder.open(run)
    spec = store.spec()
    refuse_full(target)
    federation = spec.federation
    images, names, sizes = read_images(folder, federation.image.size, federation.image.channels)
    set_threads(spec)
    bench = make_bench(spec, make_method(spec.method.name, spec.method.settings), federation)
    models = load_models(store, spec, bench, site)
    if site is not None:
        bench.enter(site)
    probability = torch.stack([predict(bench, model, images) for model in models]).mean(0)
    target.mkdir(parents=True, exist_ok=True)
    if federation.task == "segmentation":
        _write_masks(target, bench.learner.decide(probability).numpy(), names, sizes, federation)
    else:
        _write_table(target / "probabilities.csv", probability.numpy(), names, federation)
    return len(names)


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
    server = load(path / "server.safetensors", wire_of(type(method)).server)
    name = site or COMMON
    with TemporaryDirectory(prefix="consilia-") as scratch:  # the run itself may still be going on
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


def _write_masks(
    target: Path,
    masks: np.ndarray,
    names: tuple[str, ...],
    sizes: list[tuple[int, int]],
    federation: Federation,
) -> None:
    """Write index maps at the images' own sizes; a single label is drawn as 255, to be seen."""
    shown = masks * 255 if len(federation.labels) == 1 else masks
    for mask, name, (height, width) in zip(shown, names, sizes, strict=True):
        picture = Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST)
        picture.save(target / f"{name}.png")


def _write_table(
    path: Path, probability: np.ndarray, names: tuple[str, ...], federation: Federation
) -> None:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["image", *federation.labels])
        for name, row in zip(names, probability, strict=True):
            writer.writerow([name, *(f"{value:.6f}" for value in row)])
