"""A site's `data` reference -> its images, its label view and its test cases."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from consilia.datasets.contract import Cases, Dataset, SiteData
from consilia.datasets.match import match_cases, match_view, places
from consilia.datasets.registry import parse_reference
from consilia.declare import DATASET, Federation
from consilia.errors import DataError, DeclarationError, listing
from consilia.labels import LabelView, unite
from consilia.readers.folder import read_folder
from consilia.readers.npz import SUFFIX, read_npz_site
from consilia.weaken import weaken

__all__ = ["DATASET", "data_root", "load_common", "load_site", "pool"]


def data_root(given: Path | None, beside: Path | None = None) -> Path:
    """Return where relative `data` paths begin: `--data`, else CONSILIA_DATA, else beside the file."""
    if given is not None:
        return given
    named = os.environ.get("CONSILIA_DATA")
    return Path(named) if named else beside or Path.cwd()


def load_site(
    federation: Federation,
    name: str,
    root: Path,
    *,
    seed: int = 0,
    completeness: float | None = None,
    margin: tuple[int, int] = (1, 10),
    validation: float = 0.0,
) -> SiteData:
    """Return everything a site brings, with its label view as it declared.

    Where the data holds complete labels (a drawn or public dataset), the declared form is drawn from
    them with `seed`; a folder is read as it is.

    Args:
        federation: Gives the labels, the image size and the site's declaration.
        name: The site.
        root: Where relative paths begin.
        seed: Decides what is drawn, and who is held out.
        completeness: The share of objects kept where the site declares `complete = false`.
        margin: The smallest and the largest margin of boxes that are drawn, in pixels.
        validation: The share of training patients to hold out, where a site has not done so itself.
    """
    declaration = federation[name]
    if not declaration.data.startswith(DATASET):
        read = read_npz_site if declaration.data.endswith(SUFFIX) else read_folder
        data = read(root / declaration.data, federation, name)
        return _held_out(name, data, validation, seed)
    dataset, site = parse_reference(declaration.data)
    _check_task(dataset, federation, f"site '{name}'")
    own, image = dataset.card.labels, federation.image
    at = places(own, federation.labels, f"dataset '{dataset.card.name}'")
    unmarked = [label for label, place in zip(federation.labels, at, strict=True) if place is None]
    asked = [label for label in federation.annotated_by(name) if label in unmarked]
    if asked:
        msg = (
            f"site '{name}' annotates {listing(asked)}, but dataset '{dataset.card.name}' marks "
            f"{listing(own)}; leave the others out of `annotates`"
        )
        raise DeclarationError(msg)
    train, test = (match_cases(c, at) for c in dataset.load(site, root, image, seed))
    drawn = dataset.annotation(site, declaration, root, image, seed)
    view: LabelView
    if drawn is not None:
        view = match_view(drawn, at)
    else:
        view, _ = weaken(
            train,
            federation.labels,
            declaration,
            seed=seed,
            completeness=completeness,
            exclusive=federation.exclusive,
            margin=margin,
        )
    return _held_out(name, SiteData(train, view, None, test), validation, seed)


def load_common(federation: Federation, root: Path, *, seed: int = 0) -> Cases | None:
    """Return the test set that all sites share, where the federation names one."""
    if federation.test is None:
        return None
    if not federation.test.startswith(DATASET):
        read = read_npz_site if federation.test.endswith(SUFFIX) else read_folder
        return read(root / federation.test, federation, None).test
    dataset, _ = parse_reference(federation.test)
    _check_task(dataset, federation, "the common test set")
    at = places(dataset.card.labels, federation.labels, f"dataset '{dataset.card.name}'")
    cases = dataset.common_test(root, federation.image, seed)
    return None if cases is None else match_cases(cases, at)


def pool(sites: Mapping[str, SiteData]) -> SiteData:
    """Return one site that holds all training images, each with its own known labels."""
    ordered = [sites[name] for name in sorted(sites)]
    train = [data.train for data in ordered]
    volumes = [data.volume or data.case for data in train]
    united = Cases(
        np.concatenate([cases.image for cases in train]),
        None,
        tuple(f"{name}/{case}" for name in sorted(sites) for case in sites[name].train.case),
        tuple(f"{name}/{group}" for name in sorted(sites) for group in sites[name].train.group),
        tuple(volume for part in volumes for volume in part),
    )
    return SiteData(united, unite([data.view for data in ordered]), None, united.take(np.arange(0)))


def _check_task(dataset: Dataset, federation: Federation, who: str) -> None:
    """Refuse a dataset that was made for something else than the federation asks."""
    card, task = dataset.card, federation.task
    if card.task != task:
        msg = (
            f"{who} refers to dataset '{card.name}', which is for {card.task}, but the federation's "
            f"task is {task}; choose another dataset or change `task`"
        )
        raise DeclarationError(msg)
    if task == "classification" and federation.exclusive and not dataset.exclusive:
        msg = (
            f"{who} refers to dataset '{card.name}', whose labels may occur together, but the "
            "federation's labels are exclusive; set `exclusive = false`"
        )
        raise DeclarationError(msg)


def _held_out(name: str, data: SiteData, validation: float, seed: int) -> SiteData:
    """Hold out whole patients, chosen by a hash of their names, so that the order does not matter."""
    if not validation or data.validation is not None:  # the site chose its own
        return data
    train = data.train
    patients = sorted(
        set(train.group), key=lambda g: hashlib.sha256(f"{seed}/{g}".encode()).hexdigest()
    )
    held = set(patients[: max(1, round(validation * len(patients)))])
    if len(held) == len(patients):
        found = "1 training patient and cannot hold one out; set evaluate.validation = 0"
        if len(patients) > 1:
            found = (
                f"{len(patients)} training patients, and evaluate.validation = {validation} would hold "
                "out all of them; set a smaller part"
            )
        msg = f"site '{name}' has {found}, or list validation cases in its cases.csv"
        raise DataError(msg)
    if train.truth is None:
        msg = (
            f"site '{name}' cannot hold out training images, for they have no complete labels; list "
            "validation cases that have in its cases.csv, or set evaluate.validation = 0"
        )
        raise DataError(msg)
    out = np.array([group in held for group in train.group])
    keep = np.flatnonzero(~out)
    return SiteData(
        train.take(keep), data.view.take(keep), train.take(np.flatnonzero(out)), data.test
    )
