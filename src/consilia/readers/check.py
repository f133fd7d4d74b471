"""What `consilia check` reads: a federation, a site's own file, or a bare folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from consilia.datasets.contract import Cases, SiteData
from consilia.declare import COMMON, Federation, SiteDeclaration
from consilia.declare.read import read_federation, read_site, read_toml, validate
from consilia.errors import (
    DataError,
    DeclarationError,
    UsageError,
    listing,
    reason,
    suggestion,
)
from consilia.labels import LabelView
from consilia.readers.entries import Folder, Split
from consilia.readers.folder import read_folder
from consilia.readers.guess import SITE, guess_federation
from consilia.readers.inspect import Inspection, inspect_arrays, inspect_folder
from consilia.readers.npz import SUFFIX, read_npz_site
from consilia.readers.problems import Problems
from consilia.readers.site import DATASET, data_root, load_common, load_site


@dataclass(frozen=True)
class Checked:
    """What a site's folder holds, and how to load it, for those who want to look at it.

    `guessed` where nobody has declared what it should hold, so that it was judged by its files.
    """

    inspection: Inspection
    federation: Federation
    load: Callable[[], SiteData]
    guessed: bool = False


def check_path(
    path: Path,
    *,
    federation: Path | None = None,
    only: str | None = None,
    data: Path | None = None,
) -> tuple[Checked, ...]:
    """Return what each site's folder holds and everything that is wrong with it.

    Args:
        path: A federation.toml (or a folder that holds one), a site.toml, or a site's folder or
            .npz file.
        federation: The federation a site.toml, a folder or a file belongs to; of a folder it is
            guessed where none is given.
        only: Check this site alone.
        data: Where relative paths begin.
    """
    if path.is_dir() and (path / "federation.toml").is_file():
        path = path / "federation.toml"
    if path.suffix == SUFFIX:
        declared, name = _belongs(path, federation, only, None)
        return (_inspect_npz(path, declared, name),)
    if path.is_dir():
        if federation is None:
            if only is not None:
                msg = (
                    f"--site says nothing about folder '{path}', which no federation declares; add "
                    "--federation or leave --site out"
                )
                raise UsageError(msg)
            declared, name = guess_federation(path), SITE
        else:
            declared, name = _belongs(path, federation, only, None)
        load = partial(read_folder, path, declared, name)
        found = inspect_folder(path, declared, name)
        return (Checked(found, declared, load, guessed=federation is None),)
    tables = read_toml(path)
    if isinstance(tables.get("site"), dict) and not {"task", "labels"} & set(tables):
        site = read_site(path)
        if only not in {None, site.name}:
            msg = f"'{path}' is the file of site '{site.name}', not of '{only}'; leave --site out"
            raise UsageError(msg)
        declared, name = _belongs(path, federation, site.name, site)
        return check_federation(declared, data_root(data, path.parent), only=name)
    if federation is not None:
        msg = f"'{path}' is a federation itself, so that --federation says nothing; leave it out"
        raise UsageError(msg)
    return check_federation(read_federation(path), data_root(data, path.parent), only=only)


def check_federation(
    federation: Federation,
    root: Path,
    *,
    only: str | None = None,
    load: Callable[[Federation, str, Path], SiteData] = load_site,
) -> tuple[Checked, ...]:
    """Return what each site of a federation holds and everything that is wrong with it.

    Args:
        federation: The declaration.
        root: Where relative paths begin.
        only: Check this site alone.
        load: Loads the data of one site.
    """
    names = federation.sites if only is None else (_known(federation, only),)
    checked = [_inspect(federation, name, root, load) for name in names]
    if federation.test is not None and only is None:
        checked.append(_inspect_common(federation, root))
    return tuple(checked)


def _inspect_common(federation: Federation, root: Path) -> Checked:
    """Look at the test set that all sites share."""
    assert federation.test is not None
    path = root / federation.test
    if federation.test.endswith(SUFFIX):
        return _inspect_npz(path, federation, None)
    if not federation.test.startswith(DATASET):
        load = partial(read_folder, path, federation, None)
        return Checked(inspect_folder(path, federation, None), federation, load)
    folder = Folder(root, federation, None)
    try:
        cases = load_common(federation, root)
    except (DeclarationError, UsageError) as problem:
        load = partial(_only_test, None)
        return Checked(_unread(federation.test, folder, problem), federation, load)
    parts: dict[Split, Cases] = {} if cases is None else {"test": cases}
    found = inspect_arrays(federation.test, folder, parts, None, None)
    return Checked(replace(found, site=COMMON), federation, partial(_only_test, cases))


def _only_test(cases: Cases | None) -> SiteData:
    assert cases is not None
    assert cases.truth is not None
    known = np.ones((len(cases), 1), dtype=bool)
    return SiteData(cases, LabelView(cases.truth, known), None, cases)


def _inspect(
    federation: Federation,
    name: str,
    root: Path,
    loader: Callable[[Federation, str, Path], SiteData],
) -> Checked:
    reference = federation[name].data
    if reference.endswith(SUFFIX):
        return _inspect_npz(root / reference, federation, name)
    load = partial(loader, federation, name, root)
    folder = Folder(root, federation, name)
    if not reference.startswith(DATASET):
        try:
            found = inspect_folder(root / reference, federation, name)
        except OSError as error:  # one closed folder does not keep others from being checked
            msg = (
                f"'{error.filename}' of site '{name}' cannot be read: {reason(error)}; check the path "
                "and who may read it"
            )
            found = _unread(str(root / reference), folder, DataError(msg))
        return Checked(found, federation, load)
    try:
        loaded = load()  # drawn or public, and complete by construction: it is only counted
    except (DeclarationError, UsageError) as problem:  # also a dataset that nobody knows
        return Checked(_unread(reference, folder, problem), federation, load)
    found = inspect_arrays(reference, folder, _parts(loaded), loaded.view, None)
    return Checked(found, federation, load)


def _unread(
    path: str, folder: Folder, problem: Exception, report: Problems | None = None
) -> Inspection:
    """Return what is known about data that cannot be loaded: why not, and how it is declared."""
    report = report or Problems()
    report("error", str(problem))
    return Inspection(path, folder.site, report.grouped(), 0, 0, {}, {}, 0, folder.form.value)


def _inspect_npz(path: Path, federation: Federation, name: str | None) -> Checked:
    """Look at a file of arrays; what stops its reading is its only problem."""
    load = partial(read_npz_site, path, federation, name)
    report, folder = Problems(), Folder(path.parent, federation, name)
    try:
        loaded = load(report)
    except DataError as problem:
        return Checked(_unread(str(path), folder, problem, report), federation, load)
    parts: dict[Split, Cases] = _parts(loaded) if name else {"test": loaded.test}
    found = inspect_arrays(str(path), folder, parts, loaded.view if name else None, report)
    return Checked(found, federation, load)


def _parts(data: SiteData) -> dict[Split, Cases]:
    held = {} if data.validation is None else {"validation": data.validation}
    return cast("dict[Split, Cases]", {"train": data.train, **held, "test": data.test})


def _belongs(
    path: Path, federation: Path | None, name: str | None, own: SiteDeclaration | None
) -> tuple[Federation, str]:
    if federation is None:
        msg = f"'{path}' says nothing about labels and image size; name its federation with --federation"
        raise UsageError(msg)
    declared = read_federation(federation)
    if own is not None:
        others = tuple(site for site in declared.site if site.name != own.name)
        table = {**declared.model_dump(), "site": [s.model_dump() for s in (*others, own)]}
        return validate(Federation, table, path.name), own.name
    if name is None:
        if len(declared.site) > 1:
            msg = f"federation '{declared.name}' has {len(declared.site)} sites; say which with --site"
            raise UsageError(msg)
        name = declared.sites[0]
    return declared, _known(declared, name)


def _known(federation: Federation, name: str) -> str:
    if name not in federation.sites:
        near, sites = suggestion(name, federation.sites), listing(federation.sites)
        msg = f"federation '{federation.name}' has no site '{name}'{near} (its sites: {sites})"
        raise UsageError(msg)
    return name
