"""What was asked: settings, hyper-parameters with their sources, and what to cite."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

import consilia
from consilia.report.record import Record

CONSILIA = """@software{consilia,
  title={Consilia: federated learning for medical imaging when hospitals' annotations differ},
  author={{The Consilia authors}},
  year={2026},
  version={%s}
}"""


@dataclass(frozen=True)
class Setting:
    """A value of the run file; `own` where it differs from the default."""

    name: str
    value: str
    own: bool


@dataclass(frozen=True)
class Hyper:
    """A hyper-parameter of the method."""

    name: str
    value: str
    origin: str
    meaning: str
    source: str


def settings(record: Record) -> dict[str, list[Setting]]:
    """Return the tables of the run file, each value marked where it is not the default."""
    spec = record.spec
    tables: dict[str, list[Setting]] = {
        "run": [
            Setting(
                "rounds", str(spec.rounds), spec.rounds != type(spec).model_fields["rounds"].default
            ),
            Setting("seed", str(spec.seed), spec.seed != 0),
            Setting("image size", " × ".join(map(str, spec.federation.image.size)), own=False),
            Setting("channels", str(spec.federation.image.channels), own=False),
        ]
    }
    for name in ("training", "learner", "evaluate", "participation", "simulate", "engine"):
        tables[name] = _settings(getattr(spec, name))
    return tables


def _settings(table: BaseModel) -> list[Setting]:
    default = type(table)()
    return [
        Setting(name, _text(value), value != getattr(default, name))
        for name, value in ((name, getattr(table, name)) for name in type(table).model_fields)
    ]


def _text(value: Any) -> str:
    if value is None or value == () or value == {}:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_text(inner)}" for key, inner in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def hypers(record: Record) -> list[Hyper]:
    """Return the method's hyper-parameters; of an unknown method, what the run file sets."""
    given = record.spec.method.settings
    if record.entry is None:
        return [Hyper(name, _text(value), "run file", "", "") for name, value in given.items()]
    preset, found = record.entry.preset, []
    for field in dataclasses.fields(record.entry.method):  # type: ignore[arg-type]  # all are dataclasses
        origin = (
            "run file" if field.name in given else "preset" if field.name in preset else "default"
        )
        value = given.get(field.name, preset.get(field.name, field.default))
        meaning, source = (str(field.metadata.get(key, "")) for key in ("meaning", "source"))
        found.append(Hyper(field.name, _text(value), origin, meaning, source))
    known = {hyper.name for hyper in found}
    found += [
        Hyper(k, _text(v), "run file", "not known here", "")
        for k, v in given.items()
        if k not in known
    ]
    return found


def citations(record: Record) -> list[str]:
    """Return BibTeX for the method, where it has a paper, and for Consilia."""
    version = record.environment.get("consilia", consilia.__version__)
    entry = record.entry
    method = [entry.card.bibtex] if entry is not None and entry.card.bibtex else []
    return [*method, CONSILIA % version]


def environment(record: Record) -> list[tuple[str, str]]:
    """Return on what the run was made, packages last."""
    plain = [(k, str(v)) for k, v in record.environment.items() if not isinstance(v, dict)]
    packages = record.environment.get("packages")
    return plain + [
        (k, str(v)) for k, v in (packages.items() if isinstance(packages, dict) else ())
    ]
