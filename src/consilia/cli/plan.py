"""`consilia plan`."""

from __future__ import annotations

import typer

from consilia.cli.options import AsJson, Changes, MethodName, RoundCount, Seed, Study, spec_of
from consilia.cli.show import number, out_json, plural, size, table

EXAMPLES = (
    "consilia plan phantom-mixed",
    "consilia plan phantom-mixed@bbl --method fedmix",
    "consilia plan run.toml --method fedprox --set method.mu=0.01",
)


def plan(
    study: Study,
    method: MethodName = None,
    rounds: RoundCount = None,
    seed: Seed = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run will do and what will leave each site, before anything trains."""
    spec = spec_of(study, method, rounds, seed, changes)
    from consilia.engines.plan import make_plan

    planned = make_plan(spec)
    if as_json:
        out_json(planned.to_dict())
        return
    head = f"{spec.federation.name}: {spec.federation.task}, labels {', '.join(spec.federation.labels)}"
    rows = [[s.site, s.supervision, s.annotates, s.complete, s.part] for s in planned.sites]
    table(head, ["site", "supervision", "annotates", "complete", "part in training"], rows)
    rows = [[h.name, h.value, h.meaning, h.source] for h in planned.hypers]
    table(
        f"method {spec.method.name}: {planned.summary}",
        ["setting", "value", "meaning", "source"],
        rows,
    )
    rows = [
        [f.direction, f.message, f.field, f"{f.numbers:,}", size(f.bytes)] for f in planned.fields
    ]
    table(
        "what travels, per site and message",
        ["direction", "message", "field", "numbers", "size"],
        rows,
    )
    typer.echo(
        f"learner  {planned.network}, {planned.parameters:,} parameters, objective {planned.objective}"
    )
    typer.echo(f"rounds   {spec.rounds} of {planned.work}, seed {spec.seed}")
    typer.echo(
        f"judged   every {plural(spec.evaluate.every, 'round')}; reported: {spec.evaluate.selection}"
    )
    if spec.participation.fraction < 1:
        typer.echo(
            f"present  {number(spec.participation.fraction * 100, 0)} % of the sites each round"
        )
