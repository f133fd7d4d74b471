"""`consilia studies`."""

from __future__ import annotations

import typer

from consilia.cli.options import AsJson
from consilia.cli.show import out_json, table

EXAMPLES = ("consilia studies",)


def studies(as_json: AsJson = False) -> None:
    """List the built-in studies with their settings, and what they need on disk."""
    from consilia.runs.spec import describe_studies

    found = describe_studies()
    if as_json:
        out_json(found)
        return
    rows = [
        [one["id"], one["task"], str(len(one["sites"])), one["needs"], ", ".join(one["settings"])]
        for one in found
    ]
    heads = ["study", "task", "sites", "needs", "settings"]
    table("studies", heads, rows, names=["needs"])
    typer.echo("run one as STUDY or STUDY@SETTING: consilia run phantom-mixed@uul --method fedmix")
