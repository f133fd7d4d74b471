"""The documentation says what the code does: every key, option, method, metric and exit code."""

import dataclasses
import json
import re
import shlex
import tomllib
import typing
from enum import StrEnum
from pathlib import Path

import pytest
import tomli_w
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from consilia import errors
from consilia.cli.main import app
from consilia.datasets.registry import DATASETS
from consilia.declare.federation import Declared, Federation, ImageShape, SiteDeclaration
from consilia.declare.read import validate
from consilia.evaluate.metrics import METRICS
from consilia.evaluate.selection import RULES
from consilia.methods import METHODS, Wire, make_method, wire_of
from consilia.readers.formats import FORMATS
from consilia.readers.images import IMAGE_TYPES, MASK_TYPES
from consilia.readers.volumes import VOLUME_TYPES
from consilia.readers.write import FORMS
from consilia.runs import published
from consilia.runs.spec import (
    STUDIES,
    EngineSettings,
    EvaluateSettings,
    MethodChoice,
    Participation,
    RunSpec,
    Simulation,
    parse_changes,
    read_spec,
    studies,
)
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.learner import NETWORKS
from consilia.training.settings import LearnerSettings, Training
from consilia.weaken import PRESETS
from tests.cli.support import flat

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
KEYS = {
    Federation: ("declaration", "Federation"),
    ImageShape: ("declaration", "`[image]`"),
    SiteDeclaration: ("declaration", "`[[site]]`"),
    RunSpec: ("run-file", "Top level"),
    MethodChoice: ("run-file", "`[method]`"),
    LearnerSettings: ("run-file", "`[learner]`"),
    Training: ("run-file", "`[training]`"),
    EvaluateSettings: ("run-file", "`[evaluate]`"),
    EngineSettings: ("run-file", "`[engine]`"),
    Participation: ("run-file", "`[participation]`"),
    Simulation: ("run-file", "`[simulate]`"),
}
COMMANDS = flat(typer.main.get_command(app))


def of(page):
    return page.relative_to(ROOT).as_posix()


def reference(name):
    return (DOCS / "reference" / f"{name}.md").read_text()


def section(text, heading):
    """Return the text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"there is no section '## {heading}'"
    return found[1]


def table(text):
    """Return the rows of all tables, as lists of cells without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = {at - 1 for at, row in enumerate(rows) if set("".join(row)) <= set("-:")}
    return [row for at, row in enumerate(rows) if at not in heads and at - 1 not in heads]


def blocks(text, *languages):
    """Return the fenced blocks in some languages."""
    return [
        code
        for language, code in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
        if language in languages
    ]


def written(value):
    """Return a value as TOML has it, in backticks."""
    if isinstance(value, dict):
        return "`{}`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(written(v).strip('`') for v in value)}]`"
    return f"`{json.dumps(value)}`"


def choices(kind):
    """Return the values a type allows, wherever they are inside it, as TOML has them."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {written(str(member)) for member in kind}
    if typing.get_origin(kind) is typing.Literal:
        return {written(choice) for choice in typing.get_args(kind)}
    return {choice for part in typing.get_args(kind) for choice in choices(part)}


# --- pages ---


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_relative_links_resolve(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_sources_are_ones_that_a_reader_has():
    """Papers, their code or a reason of ours; never a section of notes that are not in here."""
    pages = [*DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.toml")]
    assert len(pages) > 200
    private = re.compile(r"METHODS(\.md| \d)")
    assert [of(page) for page in pages if private.search(page.read_text())] == []


def test_the_site_fetches_nothing():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert re.search(r"^plugins:\n  - search\n\n", settings, re.M)
    assert "http" not in settings


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_declarations_and_run_files_that_are_shown_are_valid(page, tmp_path):
    toy = toy_spec().federation.model_dump(mode="json", exclude_none=True)
    for code in blocks(page.read_text(), "toml"):
        found = tomllib.loads(code)
        if "site" in found:
            validate(Federation, found, page.name)
            continue
        weak = {"data": "x", "complete": False}
        more = [{"name": n, **weak} for n in found.get("simulate", {}).get("completeness", ())]
        declared = {**toy, "site": [*toy["site"], *more]}
        (tmp_path / "run.toml").write_text(tomli_w.dumps({**found, "federation": declared}))
        spec = read_spec(str(tmp_path))
        make_method(spec.method.name, spec.method.settings)


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_commands_that_are_shown_can_be_given(page):
    for code in blocks(page.read_text(), "bash"):
        for line in code.splitlines():
            program, name, *rest = (*shlex.split(line, comments=True), "", "")[:-2] or ("", "")
            if program == "make":
                assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.M)
            if program == "consilia" and not name.isupper():
                if name not in COMMANDS:  # a group: its command comes next
                    name, rest = f"{name} {rest[0]}", rest[1:]
                given = COMMANDS[name].make_context(name, rest).params
                if str(given.get("study")).partition("@")[0] in studies():
                    changes = parse_changes(given["changes"] or [])
                    named = {"method.name": given.get("method") or "fedavg"}
                    spec = read_spec(given["study"], {**named, **changes})
                    make_method(spec.method.name, spec.method.settings)


# --- reference ---


def test_every_table_of_a_file_has_its_section():
    def below(model):
        return {model}.union(*(below(sub) for sub in model.__subclasses__()))

    # Papers' tables are data of ours, not a file that users write.
    ours = {Declared, published.Published, published.PublishedTable, published.PublishedRow}
    assert below(Declared) - ours == set(KEYS)


@pytest.mark.parametrize("model", KEYS, ids=lambda model: model.__name__)
def test_every_key_is_there_with_its_default(model):
    page, heading = KEYS[model]
    first, *_ = re.split(r"\n\n(?!\|)", section(reference(page), heading).partition("| key |")[2])
    rows = {row[0].strip("`"): row for row in table(f"| key |{first}")}
    assert set(rows) == set(model.model_fields)
    for name, field in model.model_fields.items():
        _, kind, default, meaning = rows[name]
        assert meaning, name
        for choice in choices(field.annotation):
            assert choice in kind, f"{name} may be {choice}"
        value = field.get_default(call_default_factory=True)
        if value is PydanticUndefined:
            assert default == "required", name
        elif value is None:
            assert default == "none", name
        elif isinstance(value, BaseModel):
            assert default == f"`[{name}]`", name
        else:
            assert default == written(value), name


def test_every_network_is_there():
    text = section(reference("run-file"), "`[learner]`")
    assert all(f"`{network}`" in text for network in NETWORKS)


def test_every_selection_rule_is_there():
    rows = table((DOCS / "explanation" / "honest-numbers.md").read_text())
    assert {row[0].strip("`") for row in rows} == set(RULES)


def test_every_command_is_there():
    shown = re.findall(r"^## consilia ([\w ]+)$", reference("command-line"), re.M)
    assert shown == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_there(name):
    rows = table(section(reference("command-line"), f"consilia {name}"))
    shown = {row[0].strip("`"): row[1] for row in rows}
    there = {}
    for parameter in COMMANDS[name].params:
        positional = parameter.param_type_name == "argument"
        key = parameter.name.upper() if positional else parameter.opts[0]
        there[key] = parameter.default
    there.pop("--help", None)
    assert set(shown) == set(there)
    for key, default in there.items():
        if isinstance(default, str | int | Path) and not isinstance(default, bool):
            assert shown[key] == f"`{default}`", key


def test_every_method_is_there():
    rows = table(reference("methods").partition("## Settings")[0])
    assert [row[0].strip("`") for row in rows] == list(METHODS)
    for name, _, data, _ in rows:
        assert data == METHODS[name.strip("`")].method.data
    index = (DOCS / "methods" / "index.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for name in METHODS:
        assert f"`{name}`" in index
        assert f"`{name}`" in readme


def test_every_setting_is_there_with_its_default():
    rows = table(section(reference("methods"), "Settings"))
    shown = {(row[0].strip("`"), row[1].strip("`")): row for row in rows}
    there = {}
    for name, entry in METHODS.items():
        method, hints = make_method(name), typing.get_type_hints(entry.method)
        for field in dataclasses.fields(entry.method):
            there[name, field.name] = getattr(method, field.name), choices(hints[field.name])
    assert set(shown) == set(there)
    for key, (default, allowed) in there.items():
        assert shown[key][3] == written(default), key
        assert all(choice in shown[key][2] for choice in allowed), key


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_page_has_all_sections_and_all_that_leaves_a_site(name):
    row = next(row for row in table(reference("methods")) if row[0] == f"`{name}`")
    path = re.search(r"\(\.\./methods/([a-z-]+\.md)", row[3])[1]
    text = (DOCS / "methods" / path).read_text()
    parts = [section(text, heading) for heading in SKELETON]
    assert f"--method {name}" in parts[5]
    wire = wire_of(METHODS[name].method)
    for kind in (*Wire.members(wire.intro), *Wire.members(wire.up)):
        assert f"`{kind.__name__}`" in parts[3]
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in parts[3], f"{kind.__name__}.{field.name} leaves a site"
    for row in table(parts[6]):
        assert re.fullmatch(r"not measured yet|[0-9.].*", row[-1])


SKELETON = (
    "What it assumes of sites",
    "Equations",
    "Differences from the paper",
    "What leaves a site",
    "Logged numbers",
    "Command",
    "Our numbers beside theirs",
)


def test_every_dataset_is_there_as_its_card_has_it():
    text = reference("datasets")
    findings = DATASETS["chestxray14"].card.labels
    assert ", ".join(findings) in " ".join(text.split())
    rows = {row[0].strip("`"): row[1:] for row in table(text)}
    assert list(rows) == list(DATASETS)
    assert f"{len(DATASETS)} [datasets]" in (ROOT / "README.md").read_text()
    for name, (task, labels, sites, terms) in rows.items():
        card = DATASETS[name].card
        assert task == card.task, name
        shown = findings if labels == "the 14 findings" else tuple(labels.split(", "))
        assert shown == card.labels, name
        own, _, parts = sites.partition("; or ")
        assert tuple(own.split(", ")) == card.sites, name
        assert parts == (f"`i-of-{card.parts}`" if card.parts else ""), name
        assert terms in card.licence, name


def test_every_format_is_there_in_the_order_of_detection():
    rows = table(section(reference("formats"), "Files of annotation tools"))
    assert [row[0] for row in rows] == [way.name for way in FORMATS]
    weaken = section(reference("command-line"), "consilia weaken")
    assert all(f"`{name}`" in weaken for name in FORMS)


def test_every_file_type_is_there():
    text = reference("formats") + reference("declaration")
    assert all(f"`{kind}`" in text for kind in (*IMAGE_TYPES, *MASK_TYPES, *VOLUME_TYPES))


def test_every_preset_is_there():
    text = section((DOCS / "how-to" / "weaken-labels.md").read_text(), "Presets")
    sites = {}
    for names, count in table(text):
        for first, last in re.findall(r"`([\w-]+)`(?: to `([\w-]+)`)?", names):
            until = int(last[-1]) if last else 0
            sites |= (
                {f"{first[:-1]}{m}": count for m in range(until + 1)} if last else {first: count}
            )
    assert sites == {n: "any" if len(r) == 1 else str(len(r)) for n, r in PRESETS.items()}


def test_every_setting_of_a_built_in_study_is_there():
    rows = table(section(reference("studies"), "Settings"))
    shown = {row[0].strip("`"): re.findall(r"`(\w+)`", row[1].partition(":")[0]) for row in rows}
    there = {}
    for study in studies():
        found = tomllib.loads((STUDIES / study / "run.toml").read_text()).get("settings", {})
        for setting in found:
            read_spec(f"{study}@{setting}")
        there[study] = list(found)
    assert shown == there


def test_every_metric_is_there():
    shown = {row[0].strip("`"): row[1:4] for row in table(reference("metrics"))}
    assert shown == {m.name: [m.task, m.better, m.unit] for m in METRICS.values()}


def test_every_exit_code_is_there():
    def below(kind):
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    rows = table(reference("errors").partition("## In a round")[0])
    shown = {row[1].strip("`"): int(row[0].strip("`")) for row in rows if row[1]}
    deliberate = below(errors.ConsiliaError) - {errors.ConsiliaError}
    assert shown == {k.__name__: k.exit_code for k in deliberate if k.__module__ == errors.__name__}
    assert {row[0] for row in rows if not row[1]} == {"`0`", "`130`"}


def test_sentences_that_are_quoted_are_real():
    def refused(act):
        with pytest.raises(errors.ConsiliaError) as found:
            act()
        return f"consilia: {found.value}"

    site = {"name": "lima", "data": "lima", "annotates": ["kidney"]}
    table_ = {
        "name": "abdomen",
        "task": "segmentation",
        "labels": ["liver", "spleen"],
        "site": [site],
    }
    table_["image"] = {"size": [64, 64]}
    kidney = refused(lambda: validate(Federation, table_, "federation.toml"))
    assert kidney in (DOCS / "how-to" / "declare-a-federation.md").read_text()
    prox = refused(lambda: make_method("fedprx"))
    assert re.sub("[0-9]+", "...", prox) in reference("errors")
    batch = refused(lambda: read_spec("phantom-mixed", {"training.bacth": 4}))
    assert batch.partition("batch, epochs")[0] in reference("errors")


# --- the run folder ---


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs") / "run"
    sites = [{"name": "anna", "supervision": "mask"}]
    spec = toy_spec(
        sites=sites, rounds=1, engine={"ledger": "hashes"}, evaluate={"validation": 0.5}
    )
    run_toy(spec, path, toy_sites(spec, train=2, test=2))
    return path


def test_every_file_of_a_run_is_there(run):
    rows = table(reference("run-folder").partition("## `rounds.jsonl`")[0])
    shown = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]
    for name in ("server.safetensors", "progress.json"):
        assert name in reference("run-folder")
    patterns = [
        re.sub("N{6}", "[0-9]{6}", re.escape(name)).replace("SITE", "anna") for name in shown
    ]
    for path in run.rglob("*"):
        if path.is_file():
            name = path.relative_to(run).as_posix()
            assert any(re.match(pattern, name) for pattern in patterns), name


@pytest.mark.parametrize("name", ["rounds.jsonl", "ledger.jsonl", "metrics.json"])
def test_every_key_of_a_runs_files_is_there(run, name):
    rows = table(section(reference("run-folder"), f"`{name}`"))
    shown = {key for row in rows for key in re.findall(r"`([^`]+)`", row[0])}
    text = (run / name).read_text()
    lines = text.splitlines() if name.endswith("l") else [text]
    assert shown == {key for line in lines for key in json.loads(line)}


# --- words and decisions ---


def test_the_glossary_is_in_order():
    words = [row[0].lower() for row in table((DOCS / "glossary.md").read_text())]
    assert words == sorted(set(words))


def test_every_decision_has_its_four_parts_and_its_line():
    index = (DOCS / "decisions" / "index.md").read_text()
    for page in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        text = page.read_text()
        assert f"({page.name})" in index
        assert text.startswith(f"# {page.name[:4]} ")
        for part in ("Context", "Options", "Choice", "Consequence"):
            assert f"**{part}.**" in text, f"{page.name}: {part}"
