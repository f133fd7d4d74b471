"""Four hospitals that differ in all three ways, from their folders to a finished run."""

import json
import sys

import pytest
import tomli_w

from consilia.cli.main import main
from consilia.declare import Federation
from consilia.methods import METHODS, why_not
from consilia.readers.write import write_folder
from consilia.testing import SIZE, toy_cases
from consilia.weaken import weaken

SITES = [
    {"name": "lima", "supervision": "box", "annotates": ["round", "square"]},
    {"name": "oslo", "supervision": "mask", "annotates": ["round"]},
    {"name": "accra", "supervision": "mask", "complete": False},
    {"name": "pune", "supervision": "scribble"},
]
FORMATS = {"lima": "coco", "oslo": "png", "accra": "labelme", "pune": "png"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Write the four folders in the formats hospitals hold, a federation.toml and a run.toml."""
    root = tmp_path_factory.mktemp("study")
    table = {
        "name": "four-hospitals",
        "task": "segmentation",
        "labels": ["round", "square", "other"],
        "image": {"size": [SIZE, SIZE], "channels": 1},
        "site": [{"data": site["name"], **site} for site in SITES],
    }
    federation = Federation.model_validate(table)
    for site in SITES:
        name = site["name"]
        train = toy_cases(federation, name, "train", 8)
        completeness = 0.5 if site.get("complete") is False else None
        view, record = weaken(
            train, federation.labels, federation[name], seed=0, completeness=completeness
        )
        test = toy_cases(federation, name, "test", 4)
        declared = federation[name]
        write_folder(
            root / name,
            train,
            view,
            declared,
            federation.labels,
            FORMATS[name],
            test=test,
            provenance=record,
        )
    (root / "federation.toml").write_text(tomli_w.dumps(table))
    run = {
        "study": "four-hospitals",
        "rounds": 2,
        "learner": {"network": "unet-tiny", "objective": "partial-ce"},
        "training": {"batch": 4},
        "engine": {"threads": 1, "device": "cpu"},
    }
    (root / "run.toml").write_text(tomli_w.dumps(run))
    return root


def consilia(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["consilia", *map(str, words)])
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    out, err = capsys.readouterr()
    return code, out, err


def test_the_folders_pass_check(study, monkeypatch, capsys, tmp_path):
    code, out, err = consilia(
        monkeypatch, capsys, "check", study / "federation.toml", "--sheet", tmp_path / "sheets"
    )
    assert code == 0, out + err
    assert "4 sites checked, no errors" in out
    assert {path.stem for path in (tmp_path / "sheets").iterdir()} == {s["name"] for s in SITES}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_whose_needs_are_met_plans_and_trains(
    name, study, monkeypatch, capsys, tmp_path
):
    from consilia.declare.read import read_federation

    reason = why_not(name, read_federation(study / "federation.toml"))
    assert name != "oracle" or "needs every label of every image in full" in str(reason)
    if reason is not None:
        code, _, err = consilia(monkeypatch, capsys, "plan", study, "--method", name)
        assert code == 3
        assert reason in err
        return
    code, out, err = consilia(monkeypatch, capsys, "plan", study, "--method", name, "--json")
    assert code == 0, err
    assert len(json.loads(out)["sites"]) == 4
    run = ("run", study, "--method", name, "--out", tmp_path / name, "--json")
    code, out, err = consilia(monkeypatch, capsys, *run)
    assert code == 0, err
    metrics = json.loads(out)
    assert set(metrics["sites"]) == {site["name"] for site in SITES}
    lines = (tmp_path / name / "rounds.jsonl").read_text().splitlines()
    assert all(json.loads(line)["events"] == [] for line in lines)
