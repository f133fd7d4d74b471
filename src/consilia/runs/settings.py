"""Settings of a study: the same images with other annotations, as `STUDY@SETTING`.

A run file lists them as tables of sites; a bare word is a form of supervision::

    [settings.uul]
    ashford = "none"
    bergen = "none"

    [settings.m2.graz]
    complete = false
    completeness = 0.2
"""

from __future__ import annotations

from typing import Any

from consilia.errors import UsageError, listing, suggestion


def apply_setting(table: dict[str, Any], name: str | None, where: str) -> None:
    """Change what a run table's sites declare, as one of its `[settings.NAME]` says.

    Args:
        table: A run file's tables, its federation resolved; changed in place.
        name: The setting; `None` leaves the declaration as it is.
        where: The file, for sentences.
    """
    settings = table.pop("settings", {})
    if name is None:
        return
    if not isinstance(settings, dict) or name not in settings:
        known = tuple(settings) if isinstance(settings, dict) else ()
        has = f"it has {listing(known)}" if known else "it has none"
        msg = f"{where}: no setting named '{name}'{suggestion(name, known)}; {has}"
        raise UsageError(msg)
    sites = {site["name"]: site for site in table["federation"]["site"]}
    for site, given in settings[name].items():
        if site not in sites:
            near = suggestion(site, sites)
            msg = f"{where}: setting '{name}' names the site '{site}', but there are {listing(sites)}{near}"
            raise UsageError(msg)
        changes = {"supervision": given} if isinstance(given, str) else dict(given)
        if "completeness" in changes:
            kept = table.setdefault("simulate", {}).setdefault("completeness", {})
            kept[site] = changes.pop("completeness")
            changes.setdefault("complete", False)
        sites[site].update(changes)
    table["study"] = f"{table['study']}@{name}"
