"""`consilia cite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilia.cli.options import AsJson
from consilia.cli.show import out_json

OURS = """@software{consilia,
  title={Consilia: federated learning for medical imaging when hospitals' annotations differ},
  author={{The Consilia authors}},
  year={2026},
  version={%s}
}"""

EXAMPLES = (
    "consilia cite fedmix",
    "consilia cite runs/phantom-mixed/fedavg-0",
)


def cite(
    what: Annotated[str, typer.Argument(help="A run folder, or a method's name.")],
    as_json: AsJson = False,
) -> None:
    """Print BibTeX for what a run used, or for one method."""
    import consilia
    from consilia.methods import METHODS, make_method
    from consilia.runs.store import RunFolder

    folder = Path(what)
    is_run = folder.is_dir() or len(folder.parts) > 1
    name = RunFolder.open(folder).spec().method.name if is_run else what
    make_method(name)
    entries = [METHODS[name].card.bibtex, OURS % consilia.__version__]
    found = [entry for entry in entries if entry]
    if as_json:
        out_json(found)
    else:
        typer.echo("\n\n".join(found))
