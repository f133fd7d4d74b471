"""run.toml -> RunSpec: everything that decides a run, in one frozen object."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from consilia.declare.federation import DATASET, Declared, Federation
from consilia.declare.read import TOO_DEEP, TOO_LONG, read_federation, read_toml, validate
from consilia.errors import UsageError, listing, reason, suggestion
from consilia.runs.settings import apply_setting
from consilia.training.settings import LearnerSettings, Training

STUDIES = Path(__file__).parent.parent / "studies"
Count = Annotated[int, Field(ge=1)]
Pixels = Annotated[int, Field(ge=0, le=512)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class MethodChoice(Declared):
    """Which method, with the values that differ from its defaults."""

    name: str = "fedavg"
    settings: dict[str, Any] = Field(default_factory=dict)


class EvaluateSettings(Declared):
    """When and how models are judged."""

    every: Count = 5
    selection: Literal["last_round", "last_ten", "best_validation"] = "last_round"
    validation: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    unit: Literal["volume", "image"] = "volume"
    per_case: bool = False
    portraits: bool = False
    pictures: Annotated[int, Field(ge=0, le=50)] = 3

    @model_validator(mode="after")
    def _best_needs_validation(self) -> Self:
        if self.selection == "best_validation" and not self.validation:
            msg = (
                "evaluate.selection 'best_validation' needs images to select on; set "
                "`evaluate.validation` to the part of each site's training patients to hold out"
            )
            raise UsageError(msg)
        return self


class EngineSettings(Declared):
    """Where a run computes and what it keeps on the way."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    capture: Literal["auto", "off"] = "auto"
    compile: Literal["on", "off"] = "off"
    kernels: Literal["auto", "on", "off"] = "auto"
    precision: Literal["tf32", "float32", "bf16"] = "tf32"
    lanes: Count | Literal["auto"] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    memory_mib: Count = 256
    checkpoint_every: Count = 5
    ledger: Literal["shapes", "hashes"] = "shapes"
    track: tuple[Literal["tensorboard", "mlflow"], ...] = ()


class Participation(Declared):
    """Who is there in which round; absences are for trying out what a real federation will meet."""

    min_sites: Count = 1
    fraction: Fraction = 1.0
    absent: dict[str, tuple[Count, ...]] = Field(default_factory=dict)
    joins: dict[str, Count] = Field(default_factory=dict)


class Simulation(Declared):
    """How declared annotations are drawn where a study starts from complete ones."""

    seed: int = 0
    completeness: dict[str, Fraction] = Field(default_factory=dict)
    margin: tuple[Pixels, Pixels] = (1, 10)

    @model_validator(mode="after")
    def _margin_has_an_order(self) -> Self:
        if self.margin[0] > self.margin[1]:
            msg = f"simulate.margin is {list(self.margin)}; expected the smallest first"
            raise UsageError(msg)
        return self


class RunSpec(Declared):
    """One run: a federation, a method, a schedule and a seed."""

    study: str
    federation: Federation
    method: MethodChoice = MethodChoice()
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 40
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    learner: LearnerSettings = LearnerSettings()
    training: Training = Training()
    evaluate: EvaluateSettings = EvaluateSettings()
    engine: EngineSettings = EngineSettings()
    participation: Participation = Participation()
    simulate: Simulation = Simulation()

    @field_validator("study")
    @classmethod
    def _study_is_a_name(cls, study: str) -> str:
        bare = study.strip()
        if bare != study or not bare or bare[0] in ".@" or "/" in bare or not bare.isprintable():
            msg = (
                f"study '{study}' must be a plain name that does not begin with '.', '@' or a space and "
                "has no '/'; run folders are named after it"
            )
            raise UsageError(msg)
        return study

    @model_validator(mode="after")
    def _names_its_sites(self) -> Self:
        sites = self.federation.sites
        for table, named in (
            ("participation.absent", self.participation.absent),
            ("participation.joins", self.participation.joins),
            ("simulate.completeness", self.simulate.completeness),
        ):
            unknown = [name for name in named if name not in sites]
            if unknown:
                near = suggestion(unknown[0], sites) or "; correct the name"
                msg = (
                    f"{table} names the site {listing(unknown)}, but the federation's sites are "
                    f"{listing(sites)}{near}"
                )
                raise UsageError(msg)
        late = [name for name, first in self.participation.joins.items() if first > self.rounds]
        if late:
            msg = (
                f"participation.joins lets {listing(late)} join after the last of {self.rounds} rounds; "
                "let them join earlier, or leave them out of the federation"
            )
            raise UsageError(msg)
        if all(self.participation.joins.get(name, 1) > 1 for name in sites):
            msg = "participation.joins leaves nobody in round 1; let at least one site join then"
            raise UsageError(msg)
        if self.participation.min_sites > len(sites):
            msg = (
                f"participation.min_sites is {self.participation.min_sites}, but the federation has "
                f"{len(sites)} site{'s' * (len(sites) > 1)}; use at most {len(sites)}"
            )
            raise UsageError(msg)
        self._is_never_deserted()
        return self

    @model_validator(mode="after")
    def _crops_are_parts_of_images(self) -> Self:
        height, width = self.federation.image.size
        if self.training.crop > min(height, width):
            msg = (
                f"training.crop is {self.training.crop}, but `image.size` is {height} x {width}; crop to "
                f"{min(height, width)} at most, or leave images whole with 0"
            )
            raise UsageError(msg)
        return self

    def _is_never_deserted(self) -> None:
        """Refuse a round without any site; it would end the run, hours after it began."""
        joins = {site: self.participation.joins.get(site, 1) for site in self.federation.sites}
        away = {site: set(self.participation.absent.get(site, ())) for site in joins}
        first = min(joins, key=lambda site: joins[site])  # there from round 1, but for its absences
        for number in sorted(away[first]):
            if number <= self.rounds and all(
                number in away[site] or number < joins[site] for site in joins
            ):
                msg = (
                    f"participation leaves nobody in round {number}: each site is absent then, or joins "
                    "later; let at least one site take part in it"
                )
                raise UsageError(msg)

    @property
    def run_name(self) -> str:
        """The folder name of this run within its study."""
        return f"{self.method.name}-{self.seed}"


def studies() -> tuple[str, ...]:
    """Return the names of the built-in studies."""
    return tuple(sorted(path.parent.name for path in STUDIES.glob("*/run.toml")))


def describe_studies() -> list[dict[str, Any]]:
    """Return what each built-in study is: its task, sites, settings, and what it needs on disk."""
    found = []
    for name in studies():
        table = read_toml(STUDIES / name / "run.toml", UsageError)
        spec = read_spec(name)
        datasets = {
            site.data.removeprefix(DATASET).partition("/")[0] for site in spec.federation.site
        }
        kept = sorted(dataset for dataset in datasets if not dataset.startswith("phantom-"))
        found.append(
            {
                "id": name,
                "task": spec.federation.task,
                "labels": list(spec.federation.labels),
                "sites": list(spec.federation.sites),
                "rounds": spec.rounds,
                "needs": ", ".join(kept) or "nothing: drawn",
                "settings": list(table.get("settings", {})),
            }
        )
    return found


def read_spec(study: str, changes: Mapping[str, Any] | None = None) -> RunSpec:
    """Return the run of a built-in study or of a run file, with some values changed.

    Args:
        study: A study's name, or the path of a run file or of a folder that holds `run.toml`;
            `@SETTING` behind it picks one of its settings, `@SETTING+SETTING` several.
        changes: New values by dotted key, e.g. `{"training.batch": 4}`.
    """
    name, sign, setting = study.partition("@")
    path = locate(name)
    table = read_toml(path, UsageError)
    folder = path.resolve().parent
    where = f"{folder.name}/{path.name}"
    if {"labels", "site"} <= set(table):
        msg = (
            f"{where} declares a federation; expected a run file: write run.toml beside it, with "
            f'`federation = "{path.name}"`, and name that'
        )
        raise UsageError(msg)

    def declared(file: str) -> dict[str, Any]:
        return read_federation(path.parent / file).model_dump(mode="json", exclude_none=True)

    federation = table.get("federation", "federation.toml")
    if isinstance(federation, str):
        table["federation"] = declared(federation)
    table.setdefault("study", folder.name)
    apply_setting(table, setting if sign else None, where, declared)
    _choose_method(table, dict(changes or {}), where)
    for key, value in (changes or {}).items():
        _change(table, key, value)
    return validate(RunSpec, table, where, UsageError)


def locate(study: str) -> Path:
    """Return the run file of a study, by its name or path, without a setting."""
    path, known = Path(study), studies()
    if study in known:
        return STUDIES / study / "run.toml"
    try:
        if path.is_dir() and not (path / "run.toml").exists():
            msg = f"folder '{path}' holds no run.toml; write one there, or name another file"
            raise UsageError(msg)
        if path.is_dir():
            return path / "run.toml"
        if path.suffix == ".toml" or path.exists():
            return path
    except OSError as error:
        msg = f"study '{study}' cannot be looked up: {reason(error)}; name another one"
        raise UsageError(msg) from None
    near = suggestion(study, known)
    msg = f"no study or run file named '{study}'{near} (`consilia studies` lists all {len(known)})"
    raise UsageError(msg)


def _choose_method(table: dict[str, Any], changes: Mapping[str, Any], where: str) -> None:
    """Bring `[method]` and the study's `[methods.NAME]` presets into the resolved form.

    A run file may hold settings for several methods; only those of the chosen one apply.
    """
    presets, given = table.pop("methods", {}), table.get("method", {})
    named = given.get("name", "fedavg") if isinstance(given, dict) else ""
    name = changes.get("method.name", named)
    preset = presets.get(str(name), {}) if isinstance(presets, dict) else presets
    if not isinstance(given, dict) or not isinstance(preset, dict):
        found = "method" if not isinstance(given, dict) else f"methods.{name}"
        msg = f"{where}: '{found}' is a single value; expected a table: write [{found}]"
        raise UsageError(msg)
    rest = {key: value for key, value in given.items() if key != "name"}
    own = rest.pop("settings", None)
    if own is None:  # `[method]` holds the settings themselves, as people write them
        own, rest = rest, {}
    if isinstance(own, dict):
        own = {**preset, **(own if name == named else {})}
    table["method"] = {"name": name, "settings": own, **rest}


def _change(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = _resolved(key).split(".")
    for at, parent in enumerate(parents):
        inner = table.setdefault(parent, {})
        if isinstance(inner, list):
            whole = ".".join(parents[: at + 1])
            msg = (
                f"--set {key}: '{whole}' is a list, of which no part can be changed alone; give all of "
                f"it (--set {whole}=[...]), or change the file"
            )
            raise UsageError(msg)
        if not isinstance(inner, dict):
            msg = (
                f"--set {key}: '{parent}' is a single value, not a table; change '{parent}' itself"
            )
            raise UsageError(msg)
        table = inner
    table[last] = value


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """Return `key=value` pairs as values; a value is read as TOML, and as text where it is not."""
    changes: dict[str, Any] = {}
    given: dict[str, str] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        key = key.strip()
        if not sign or not key:
            msg = f"--set {pair}: expected key=value, for example training.batch=4"
            raise UsageError(msg)
        if not pair.isprintable():
            msg = (
                f"--set {pair}: expected one key=value on one line, in printable characters; give each "
                "change a --set of its own"
            )
            raise UsageError(msg)
        for other in given:
            if decides(other, key) or decides(key, other):
                msg = (
                    f"--set {given[other]} and --set {pair} both say what '{max(other, key, key=len)}' "
                    "is; leave out one of them"
                )
                raise UsageError(msg)
        given[key] = pair
        changes[key] = _value(key, text)
    return changes


def _value(key: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError:
        msg = f"--set {key}: {TOO_LONG}"
        raise UsageError(msg) from None
    except RecursionError:
        msg = f"--set {key}: {TOO_DEEP}"
        raise UsageError(msg) from None


def decides(change: str, key: str) -> bool:
    """Whether a change says what a key is: it names the key itself, or a table that the key is in."""
    return f"{_resolved(key)}.".startswith(f"{_resolved(change)}.")


def _resolved(key: str) -> str:
    """Return a key as a resolved run has it: `method.mu` is short for `method.settings.mu`."""
    table, _, rest = key.partition(".")
    short = table == "method" and rest and rest.partition(".")[0] not in {"name", "settings"}
    return f"method.settings.{rest}" if short else key
