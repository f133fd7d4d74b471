"""Settings of a study: the same images with other annotations, as `STUDY@SETTING`.

A run file lists them as tables of sites. A bare word is all that a site declares, a form in which it
marks every label completely; a table changes the keys it names; `"*"` is every site, and is applied
first; `run` holds tables that stand for those of the run file (presets of methods: each for its method's),
or names another declaration::

    [settings.uul]
    ashford = "none"
    bergen = "none"

    [settings.m2]
    graz = { completeness = 0.2 }

    [settings.fold2]
    "*" = { fold = "2-of-5" }

    [settings.small]
    "*" = "image"
    run = { federation = "small.toml", rounds = 10, training = { epochs = 2 } }

`completeness`, `fold` and `images` are no keys of a site: the first goes to `simulate.completeness`, the
others behind the site's `data`. Several settings can be joined, as `STUDY@SETTING+SETTING`; the later
one wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from consilia.errors import UsageError, listing, suggestion

EVERY = "*"
RUN = "run"
#: How a part of a dataset says that only some of its images are used.
FEWER = re.compile(r"-n\d+$")
#: Everything that a bare word says anew: the other keys of a site are where its images are.
PROMISE = ("supervision", "annotates", "complete", "style", "sparsity")


def apply_setting(
    table: dict[str, Any],
    name: str | None,
    where: str,
    declared: Callable[[str], dict[str, Any]],
) -> None:
    """Change what a run table's sites declare, as its `[settings.NAME]` say.

    Args:
        table: A run file's tables, its federation resolved; changed in place.
        name: The setting, or several with `+` between them; `None` leaves all as it is.
        where: The file, for sentences.
        declared: Returns the federation that another file declares, where a setting takes one.
    """
    settings = table.pop("settings", {})
    if name is None:
        return
    known = settings if isinstance(settings, dict) else {}
    for part in name.split("+"):
        if not isinstance(known.get(part), dict):
            has = f"it has {listing(known)}" if known else "it has none"
            if not part:
                msg = f"{where}: '@{name}' lacks the name of a setting; {has}; add it, or leave out the sign"
                raise UsageError(msg)
            msg = f"{where}: no setting named '{part}'; {has}{suggestion(part, known)}"
            raise UsageError(msg)
        _apply(table, dict(known[part]), part, where, declared)
    table["study"] = f"{table['study']}@{name}"


def _apply(
    table: dict[str, Any],
    setting: dict[str, Any],
    name: str,
    where: str,
    declared: Callable[[str], dict[str, Any]],
) -> None:
    run = setting.pop(RUN, {})
    if not isinstance(run, dict):
        msg = (
            f"{where}: '{RUN}' of setting '{name}' is a single value; expected tables of a run file"
        )
        raise UsageError(msg)
    if isinstance(file := run.get("federation"), str):
        table["federation"] = declared(file)
    presets, changed = table.get("methods"), run.get("methods")
    table.update({key: value for key, value in run.items() if key != "federation"})
    if isinstance(presets, dict) and isinstance(changed, dict):
        table["methods"] = {**presets, **changed}
    federation = table["federation"]
    listed = federation.get("site", []) if isinstance(federation, dict) else []
    sites = {site["name"]: site for site in listed if isinstance(site, dict) and "name" in site}
    every = setting.pop(EVERY, None)
    given = {} if every is None else dict.fromkeys(sites, every)
    for site, changes in [*given.items(), *setting.items()]:
        if site not in sites:
            near = suggestion(site, sites)
            msg = f"{where}: setting '{name}' names the site '{site}', but there are {listing(sites)}{near}"
            raise UsageError(msg)
        _declare(table, sites[site], changes, f"{where}: setting '{name}'")


def _declare(table: dict[str, Any], site: dict[str, Any], given: object, where: str) -> None:
    """Change one site's promise, by a word or a table."""
    kept = table.setdefault("simulate", {}).setdefault("completeness", {})
    if isinstance(given, str):
        for key in PROMISE:
            site.pop(key, None)
        kept.pop(site["name"], None)
        site["supervision"] = given
        return
    if not isinstance(given, dict):
        msg = f"{where} gives site '{site['name']}' {given}; expected a form of supervision or a table"
        raise UsageError(msg)
    changes = dict(given)
    if "completeness" in changes:
        kept[site["name"]] = changes.pop("completeness")
        changes.setdefault("complete", False)
    fold, images = changes.pop("fold", None), changes.pop("images", None)
    site.update(changes)
    if fold is not None:
        site["data"] = f"{str(site.get('data')).partition('/fold-')[0]}/fold-{fold}"
    if images is not None:
        site["data"] = f"{FEWER.sub('', str(site.get('data')))}-n{images}"
