"""Every command does what it says, on a toy study; results go to stdout, everything else to stderr."""

import csv
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

from consilia import __version__
from consilia.cli.compare import seeds_told
from consilia.cli.main import app
from consilia.cli.show import table
from consilia.engines import inprocess
from consilia.methods import METHODS
from consilia.readers import check
from tests.cli.support import consilia, flat, tree, write_csv, write_study, write_toml

COMMANDS = flat(get_command(app))
METRICS = {
    "study",
    "method",
    "seed",
    "rounds",
    "selection",
    "sites",
    "mean",
    "seconds",
    "bytes_up",
    "bytes_down",
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """A segmentation and a classification study; what tests write stays in copies."""
    folder = tmp_path_factory.mktemp("studies")
    write_study(folder / "shapes", run={"study": "shapes"})
    write_study(folder / "tags", "classification", run={"study": "tags"})
    return folder


@pytest.fixture
def here(studies, tmp_path, monkeypatch):
    shutil.copytree(studies, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("CONSILIA_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "here"


@pytest.fixture
def call(here, capfd, monkeypatch):
    """Run a command that must succeed, and return what it printed."""

    def run(*words):
        ended = consilia(capfd, monkeypatch, *words)
        assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err
        return ended

    return run


@pytest.fixture
def trained(monkeypatch):
    """Count the runs that train: everything that `run_in_process` is asked for."""
    asked = []
    honest = inprocess.run_in_process

    def counted(spec, path, **options):
        asked.append(f"{spec.method.name}-{spec.seed}")
        return honest(spec, path, **options)

    monkeypatch.setattr(inprocess, "run_in_process", counted)
    return asked


# ----------------------------------------------------------------------------------- help and names


def test_help_of_every_command_is_instant():
    """One process asks for all of them; neither torch nor numpy is imported on the way."""
    script = (
        "import contextlib, io, sys\n"
        "from consilia.cli import main\n"
        f"for words in {[[], *(name.split() for name in COMMANDS)]!r}:\n"
        "    sys.argv, shown = ['consilia', *words, '--help'], io.StringIO()\n"
        "    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):\n"
        "        main.main()\n"
        "    assert 'Usage: consilia' in shown.getvalue(), words\n"
        "print([name for name in ('torch', 'numpy', 'monai') if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.returncode) == ("[]\n", 0), found.stderr


def test_python_can_run_it_as_a_module():
    words = [sys.executable, "-m", "consilia", "--version"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == (f"consilia {__version__}\n", 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does_and_offers_json(call, command):
    shown = call(*command.split(), "--help").out
    assert f"Usage: consilia {command}" in shown
    assert "--json" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_every_argument_and_option_and_fits_a_terminal(call, command):
    shown = call(*command.split(), "--help").out
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    words = " ".join(re.sub(r"[│╭╮╰╯─*]", " ", shown).split())
    for parameter in COMMANDS[command].params:
        assert parameter.help, parameter.name
        if parameter.param_type_name == "argument":
            assert parameter.help in words


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_is_a_command_that_is_understood(call, command):
    shown = [line.strip() for line in call(*command.split(), "--help").out.splitlines()]
    title, *examples = COMMANDS[command].epilog.split("\n\n")
    assert title == ("Example:" if len(examples) == 1 else "Examples:")
    for example in examples:
        assert example in shown, "it is folded"
        name = f"consilia {command} "
        assert f"{example} ".startswith(name)
        words = shlex.split(example)[len(name.split()) :]
        COMMANDS[command].make_context(command, words)


def test_version(call):
    assert call("--version").out.startswith("consilia ")


def test_no_command_shows_the_help(here, capfd, monkeypatch):
    ended = consilia(capfd, monkeypatch)
    assert ended.code == 2
    assert "Usage: consilia" in ended.out + ended.err


# ------------------------------------------------------------------------------------------ running


def test_run_prints_what_metrics_json_holds_and_nothing_else(call, here):
    ended = call("run", "shapes", "--json")
    held = json.loads((here / "runs/shapes/fedavg-0/metrics.json").read_text())
    assert json.loads(ended.out) == held
    assert set(held) == METRICS
    assert set(held["sites"]) == {"anna", "bo"}
    assert ended.err == ""


def test_run_prints_a_table_to_stdout_and_progress_to_stderr(call):
    ended = call("run", "shapes/run.toml", "--out", "mine", "--method", "local", "--seed", "3")
    assert ended.out.startswith("shapes  local  seed 3  1 round\nsite    dice ")
    assert ended.out.endswith("run      mine\n")
    assert "\nmean " in ended.out
    progress, hint = ended.err.splitlines()
    assert progress.startswith("shapes local  round 1/1  loss ")
    assert hint == "consilia: `consilia report mine` draws it"


def test_a_run_file_needs_neither_federation_nor_study(call, here, monkeypatch):
    run_file = here / "shapes/run.toml"
    assert "federation" not in run_file.read_text()
    run_file.write_text(run_file.read_text().replace('study = "shapes"\n', ""))
    monkeypatch.chdir(here / "shapes")
    assert json.loads(call("run", "run.toml", "--json").out)["study"] == "shapes"
    assert (here / "shapes/runs/shapes/fedavg-0/metrics.json").is_file()


def test_data_may_be_elsewhere(call, here, monkeypatch):
    (here / "far").mkdir()
    for name in ("anna", "bo"):
        shutil.move(here / "shapes" / name, here / "far" / name)
    call("run", "shapes", "--data", "far", "--out", "one", "--json")
    monkeypatch.setenv("CONSILIA_DATA", "far")
    call("run", "shapes", "--out", "two", "--json")


def test_resume_goes_on_and_gives_the_same_numbers(call, here):
    whole = json.loads(call("run", "shapes", "--rounds", "2", "--out", "a", "--json").out)
    call("run", "shapes", "--rounds", "2", "--out", "b", "--json")
    (here / "b/metrics.json").unlink()
    shutil.rmtree(here / "b/checkpoints")
    again = json.loads(call("resume", "b", "--data", "shapes", "--json").out)
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}
    assert "run      b" in call("resume", "b", "--data", "shapes").out


def test_damaged_cases_are_written_again_by_the_way_out_that_is_named(call, here):
    call("run", "shapes", "--out", "a", "--json")
    before = json.loads((here / "a/cases.json").read_text())
    for name in ("cases.json", "metrics.json"):
        (here / "a" / name).unlink()
    call("resume", "a", "--data", "shapes", "--json")
    assert json.loads((here / "a/cases.json").read_text()) == before


def test_a_run_that_does_not_know_where_it_began_still_goes_on(call, here):
    call("run", "shapes", "--out", "a", "--json")
    for name in ("environment.json", "metrics.json"):
        (here / "a" / name).unlink()
    call("resume", "a", "--data", "shapes", "--json")


def test_set_changes_one_value(call, here):
    call("run", "shapes", "--set", "training.batch=2", "--set", "method.rows=labelled", "--json")
    spec = (here / "runs/shapes/fedavg-0/spec.toml").read_text()
    assert "batch = 2" in spec
    assert 'rows = "labelled"' in spec


# ---------------------------------------------------------------------------------------- comparing


def size_of(path):
    with Image.open(path) as picture:
        return picture.size


def compare(call, *more):
    words = ("compare", "shapes", "--methods", "local,fedavg", "--seeds", "0,1")
    return call(*words, "--baseline", "fedavg", *more)


def test_compare_runs_what_is_missing_and_nothing_twice(call, here, trained):
    first = compare(call, "--json")
    assert trained == ["local-0", "local-1", "fedavg-0", "fedavg-1"]
    found = json.loads(first.out)
    assert [row["method"] for row in found["rows"]] == ["local", "fedavg"]
    assert found["rows"][0]["seeds"] == [0, 1]
    assert found["rows"][0]["test"]["patients"] == 6
    assert found["rows"][1]["test"] is None

    trained.clear()
    second = compare(call, "--json")
    assert (second.out, trained) == (first.out, [])

    shutil.copytree(here / "runs", here / "copied")
    shutil.rmtree(here / "runs")
    third = compare(call, "--out", "copied", "--set", "engine.memory_mib=64", "--json")
    assert (third.out, trained) == (first.out, [])

    shutil.rmtree(here / "copied/shapes/local-1")
    compare(call, "--out", "copied", "--json")
    assert trained == ["local-1"]


def test_a_comparison_without_cases_says_what_is_missing(call):
    more = ("--set", "evaluate.per_case=false", "--seeds", "0")
    shown = " ".join(compare(call, *more).out.split())
    assert "– to –" in shown
    assert (
        "no intervals and tests: they take numbers per case (`evaluate.per_case = true`)" in shown
    )


def test_a_comparison_by_another_rule_says_whose_cases_were_kept(call):
    whole = ("compare", "shapes", "--methods", "fedavg", "--seeds", "0", "--rounds", "2")
    shown = " ".join(call(*whole, "--selection", "last_ten").out.split())
    why = (
        "they take numbers per case, which these runs kept only for last_round, not of all rounds of "
        "last_ten (`--set evaluate.selection=last_ten` and another --out keeps them)"
    )
    assert f"no intervals and tests: {why}" in shown
    assert json.loads(call(*whole, "--selection", "last_ten", "--json").out)["untested"] == why
    more = ("--set", "evaluate.selection=last_ten", "--out", "other", "--json")
    kept = json.loads(call(*whole, *more).out)
    assert kept["untested"] is None
    assert kept["rows"][0]["interval"] is not None


def test_a_comparison_by_a_metric_that_no_case_has_says_so(call):
    words = ("compare", "tags", "--methods", "fedavg", "--seeds", "0", "--metric", "macro_f1")
    shown = " ".join(call(*words).out.split())
    assert "no intervals and tests: they take numbers per case, and 'macro_f1' has none" in shown


def test_compare_collects_without_running(call, here, trained):
    call("run", "shapes", "--json")
    trained.clear()
    ended = compare(call, "--collect")
    assert trained == []
    assert ended.err.splitlines()[0] == (
        "consilia: no finished run of 'local' with seed 0 and these settings in 'runs/shapes/local-0'; "
        "left out"
    )


def test_a_variant_has_a_folder_of_its_own(call, here):
    call("compare", "shapes", "--methods", "fedprox:mu=0.5", "--seeds", "0", "--json")
    assert "mu = 0.5" in (here / "runs/shapes/fedprox+mu=0.5-0/spec.toml").read_text()


def test_a_comparison_too_wide_for_the_terminal_leaves_out_sites(call, monkeypatch):
    words = ("compare", "shapes", "--methods", "fedavg,fedavg-masked", "--seeds", "0,1")
    narrow = call(*words, "--baseline", "fedavg").out.splitlines()
    assert " ".join(narrow[1].split()) == "method dice ± std 95 % interval − fedavg p (Holm)"
    assert narrow[3].startswith("fedavg ")
    assert narrow[4].startswith("fedavg-masked ")
    assert max(map(len, narrow)) <= 80
    assert "anna, bo left out: a terminal of 84 columns shows them" in " ".join(
        " ".join(narrow).split()
    )
    monkeypatch.setenv("COLUMNS", "84")
    wide = call(*words, "--baseline", "fedavg").out.splitlines()
    assert wide[1].split()[:3] == ["method", "anna", "bo"]
    assert not any("left out" in line for line in wide)


# ------------------------------------------------------------------------------- before and after it


def test_plan_says_what_travels(call):
    shown = call("plan", "shapes").out
    assert "rounds   1 of 1 local epoch, batch 4" in shown
    found = json.loads(call("plan", "shapes", "--method", "fedprox", "--json").out)
    assert found["network"] == "unet-tiny"
    assert {"direction", "message", "field", "numbers", "bytes"} == set(found["fields"][0])
    assert [site["site"] for site in found["sites"]] == ["anna", "bo"]


def test_methods_lists_ids_and_what_fits(call, here):
    listed = json.loads(call("methods", "--json").out)
    assert [method["id"] for method in listed] == list(METHODS)
    fitting = json.loads(call("methods", "--for", "shapes/federation.toml", "--json").out)
    assert {"fits", "why_not"} <= set(fitting[0])
    assert "fedavg" in call("methods").out
    table = (here / "tags/federation.toml").read_text()
    (here / "none.toml").write_text(table.replace('"image"', '"none"'))
    assert "needs at least one site" in call("methods", "--for", "none.toml").out


def test_seeds_are_told_once_and_exceptions_by_name():
    assert seeds_told({"fedavg": (0, 1)}) == "seeds 0, 1"
    told = seeds_told({"fedicra": (0,), "fedavg": (0, 1, 2), "fedmix": (0, 1, 2), "local": (1, 2)})
    assert told == "seeds 0, 1, 2; of fedicra 0; of local 1, 2"


def test_methods_fit_a_study_by_its_name(call, capfd, monkeypatch):
    fitting = json.loads(call("methods", "--for", "phantom-mixed@uul", "--json").out)
    fits = {line["id"]: line["fits"] for line in fitting}
    assert fits["fedmix"]
    assert not fits["fedia"], "it needs masks at every site"
    wrong = consilia(capfd, monkeypatch, "methods", "--for", "phantom-mixd")
    assert wrong.code == 2
    assert "did you mean 'phantom-mixed'" in wrong.err


def test_a_preview_that_cannot_be_written_is_told(here, capfd, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("consilia.datasets.preview.contact_sheet", refuse)
    ended = consilia(capfd, monkeypatch, "datasets", "--preview", "phantom-mixed")
    assert ended.code == 2
    assert ended.err == (
        "consilia: --out phantom-mixed.png cannot be written (permission denied); choose another "
        "--out\n"
    )


def test_datasets_lists_and_previews(call, here):
    listed = json.loads(call("datasets", "--json").out)
    assert {"phantom-mixed", "phantom-skin"} <= {card["name"] for card in listed}
    assert "phantom-mixed" in call("datasets").out
    shown = call("datasets", "--preview", "phantom-mixed", "--out", "sheet.png").out
    assert shown == "preview  sheet.png\n"
    assert size_of(here / "sheet.png")[0] > 500


@pytest.mark.parametrize(
    ("command", "keys"), [("datasets", ["name"]), ("methods", ["id"]), ("studies", ["id", "needs"])]
)
def test_ids_are_not_folded(command, keys, call):
    listed = json.loads(call(command, "--json").out)
    lines = call(command).out.splitlines()
    assert max(map(len, lines[:-3])) <= 80
    for one in listed:
        assert any(all(f" {one[key]} " in f" {line} " for key in keys) for line in lines), one


def test_a_name_as_wide_as_the_terminal_is_folded_not_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    name = "chest" * 9
    table(None, ["site", "images"], [[name, "3"]])
    assert "".join(line.split()[0] for line in capsys.readouterr().out.splitlines()[2:-1]) == name


def test_cite_a_method_and_a_run(call):
    assert "McMahan" in call("cite", "fedavg").out
    call("run", "shapes", "--json")
    assert call("cite", "runs/shapes/fedavg-0").out == call("cite", "fedavg").out
    (ours,) = json.loads(call("cite", "local", "--json").out)
    assert ours.startswith("@software{consilia")


def test_predict_writes_masks_at_the_images_own_size(call, here):
    call("run", "shapes", "--json")
    (here / "new").mkdir()
    for name, shape in (("tall", (40, 20)), ("wide", (12, 33))):
        pixels = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(here / "new" / f"{name}.png")
    before = tree(here / "runs")
    shown = call("predict", "runs/shapes/fedavg-0", "new", "--out", "masks").out
    assert shown == "2 images -> masks\n"
    assert size_of(here / "masks/tall.png") == (20, 40)
    assert size_of(here / "masks/wide.png") == (33, 12)
    assert tree(here / "runs") == before
    found = json.loads(call("predict", "runs/shapes/fedavg-0", "new", "--json").out)
    assert found == {"out": "runs/shapes/fedavg-0/predicted/new", "images": 2}
    found = json.loads(call("predict", "runs/shapes/fedavg-0", "new/tall.png", "--json").out)
    assert found == {"out": "runs/shapes/fedavg-0/predicted/tall", "images": 1}
    alone, among = (here / f"{found['out']}/tall.png", here / "masks/tall.png")
    assert alone.read_bytes() == among.read_bytes()


def test_predict_keeps_the_sub_folders_of_images(call, here):
    call("run", "shapes", "--json")
    images = sorted((here / "shapes/anna/images").iterdir())[:3]
    for place, image in zip(("", "monday", "tuesday/late"), images, strict=True):
        (here / "new" / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(image, here / "new" / place / "scan.png")
    shown = call("predict", "runs/shapes/fedavg-0", "new", "--out", "masks").out
    assert shown == "3 images -> masks\n"
    found = {str(path.relative_to(here / "masks")) for path in (here / "masks").rglob("*.png")}
    assert found == {"scan.png", "monday/scan.png", "tuesday/late/scan.png"}


def test_predict_leaves_nothing_behind_and_never_reads_its_own_masks(
    call, here, capfd, monkeypatch
):
    call("run", "shapes", "--json")
    shutil.copytree(here / "shapes/anna/images", here / "new")
    inside = consilia(
        capfd, monkeypatch, "predict", "runs/shapes/fedavg-0", "new", "--out", "new/m"
    )
    assert (inside.code, inside.err) == (
        2,
        "consilia: --out new/m lies in 'new', whose images are read; choose another --out\n",
    )
    (here / "new/zzz.png").write_bytes(b"no picture")
    before = tree(here / "runs")
    ended = consilia(capfd, monkeypatch, "predict", "runs/shapes/fedavg-0", "new")
    assert ended.code == 3
    assert tree(here / "runs") == before
    assert not (here / "runs/shapes/fedavg-0/predicted").exists()


def test_predict_fills_an_empty_folder(call, here, monkeypatch):
    call("run", "shapes", "--json")
    for name in ("empty", "inside"):
        (here / name).mkdir()
    call("predict", "runs/shapes/fedavg-0", "shapes/anna/images", "--out", "empty")
    monkeypatch.chdir(here / "inside")
    call("predict", "../runs/shapes/fedavg-0", "../shapes/anna/images", "--out", ".")
    assert tree(here / "empty") == tree(here / "inside")
    assert len(tree(here / "empty")) == len(tree(here / "shapes/anna/images"))


def test_predict_writes_probabilities(call, here):
    call("run", "tags", "--json")
    call("predict", "runs/tags/fedavg-0", "tags/anna/images", "--out", "p", "--site", "anna")
    with (here / "p/probabilities.csv").open() as handle:
        head, *rows = csv.reader(handle)
    assert head == ["image", "round", "square"]
    assert [row[0] for row in rows[:2]] == ["test-00", "test-01"]
    assert all(abs(sum(map(float, row[1:])) - 1) < 1e-5 for row in rows)


def test_report_writes_one_page(call, here):
    call("run", "shapes", "--json")
    assert (
        call("report", "runs/shapes/fedavg-0").out == "report   runs/shapes/fedavg-0/report.html\n"
    )
    assert "<html" in (here / "runs/shapes/fedavg-0/report.html").read_text()


@pytest.mark.slow
def test_demo_ends_with_a_report(call, here):
    ended = call("demo", "--rounds", "1", "--out", "demo")
    assert "each hospital alone" in ended.out
    assert ended.out.endswith("report   demo/fedavg-0/report.html\n")
    assert max(map(len, ended.out.splitlines())) <= 80


# ----------------------------------------------------------------------------------------- checking


def test_check_a_good_federation(call):
    shown = call("check", "shapes/federation.toml").out
    assert "anna: 9 images of 9 patients (train 6, validation 0, test 3)" in shown
    assert "declared 'mask'; images per form: mask 9" in shown
    assert "% of pixels in masks (train, test)" in shown
    assert shown.endswith("2 sites checked, no errors\n")
    found = json.loads(call("check", "shapes", "--site", "bo", "--json").out)
    assert [(one["site"], one["problems"]) for one in found] == [("bo", [])]


def test_check_says_what_shares_are_of(call, here):
    """At a site of boxes the only pixels that are marked are those of test images."""
    for path in (here / "shapes/anna/masks").glob("train-*"):
        path.unlink()
    boxes = [(f"train-0{i}", "round", 1, 1, 5, 5) for i in range(6)]
    head = ("image", "label", "left", "top", "right", "bottom")
    write_csv(here / "shapes/anna/boxes.csv", head, boxes)
    shown = call("check", "shapes/anna").out
    assert "declared" not in shown
    assert "judging by its files: segmentation, supervision 'box', labels round, class-2" in shown
    assert "taken for 'box'; images per form: box 6, mask 3" in shown
    assert "% of pixels in masks (test)" in shown
    assert shown.endswith("1 site checked, no errors\n")


def test_check_says_all_that_is_wrong(here, capfd, monkeypatch):
    (here / "shapes/anna/masks/train-00.png").unlink()
    (here / "shapes/bo/images/train-01.png").write_bytes(b"not a picture")
    ended = consilia(capfd, monkeypatch, "check", "shapes")
    assert ended.code == 3
    assert "error: image 'train-00.png' of site 'anna' has no mask" in ended.out
    assert "error: image 'train-01.png' of site 'bo' cannot be read" in ended.out
    assert "no errors" not in ended.out
    ended = consilia(capfd, monkeypatch, "check", "shapes", "--json")
    assert ended.code == 3
    assert [one["problems"][0]["severity"] for one in json.loads(ended.out)] == ["error", "error"]


def test_check_goes_on_after_a_dataset_that_cannot_be_loaded(here, capfd, monkeypatch):
    path = here / "shapes/federation.toml"
    table = tomllib.loads(path.read_text())
    table["site"].append({"name": "abe", "data": "dataset:faz128/rose"})
    write_toml(path, table)
    ended = consilia(capfd, monkeypatch, "check", "shapes", "--sheet", "sheets")
    assert ended.code == 3
    assert "error: dataset 'faz128' has the labels 'faz', and none of them" in ended.out
    assert "anna: 9 images of 9 patients" in ended.out
    assert "sheet    none of site 'abe', which has errors" in ended.err
    assert {sheet.stem for sheet in (here / "sheets").iterdir()} == {"anna", "bo"}


def test_check_writes_no_sheet_over_a_file(here, capfd, monkeypatch):
    (here / "sheets").mkdir()
    (here / "sheets/bo.png").write_bytes(b"a patient")
    ended = consilia(capfd, monkeypatch, "check", "shapes", "--sheet", "sheets")
    assert (ended.code, ended.err) == (
        2,
        "consilia: file 'sheets/bo.png' is there already; name another folder with --sheet, or "
        "remove it\n",
    )
    assert (here / "sheets/bo.png").read_bytes() == b"a patient"
    assert not (here / "sheets/anna.png").exists()


def test_check_a_sites_own_file_and_a_bare_folder(call, here):
    own = {"site": {"name": "anna", "data": "anna", "annotates": ["round"]}}
    write_toml(here / "shapes/site.toml", own)
    shown = call("check", "shapes/site.toml", "--federation", "shapes/federation.toml").out
    assert "does not annotate 'square'" in shown
    own["site"]["name"] = "newcomer"
    write_toml(here / "shapes/site.toml", own)
    shown = call("check", "shapes/site.toml", "--federation", "shapes/federation.toml").out
    assert shown.startswith("newcomer: 9 images")
    bare = ("check", "shapes/anna", "--federation", "shapes/federation.toml", "--site", "anna")
    assert call(*bare).out.endswith("1 site checked, no errors\n")


def test_check_a_study_as_its_setting_declares_it(call, capfd, monkeypatch, here):
    shown = call("check", "phantom-mixed@uul", "--site", "bergen").out
    assert "declared 'none'; images per form: none 48, mask 48" in shown
    assert shown.endswith("1 site checked, no errors\n")
    found = json.loads(call("check", "shapes/run.toml", "--json").out)
    assert [one["site"] for one in found] == ["anna", "bo"]
    missing = consilia(capfd, monkeypatch, "check", "breast", "--data", "nowhere")
    assert missing.code == 3
    assert "busi: no image could be read\n  error: dataset 'breast' has no" in missing.out
    twice = ("check", "phantom-mixed", "--federation", "shapes/federation.toml")
    ended = consilia(capfd, monkeypatch, *twice)
    assert (ended.code, ended.err) == (
        2,
        "consilia: 'phantom-mixed' has a federation of its own, so that --federation says nothing; "
        "leave it out\n",
    )


def test_check_takes_a_folder_before_a_study_of_its_name(call, here):
    (here / "shapes").rename(here / "phantom-mixed")
    assert call("check", "phantom-mixed").out.startswith("anna: 9 images")
    (here / "phantom-mixed").rename(here / "phantom-mixed@uul")
    assert call("check", "phantom-mixed@uul").out.startswith("anna: 9 images")


# ------------------------------------------------------------------------------------- ending early


@pytest.mark.parametrize(
    "words", ["cite {}", "check {}", "methods --for {}", "weaken {}", "run shapes --data {}"]
)
def test_a_name_that_no_file_can_have_gets_one_sentence(here, capfd, monkeypatch, words):
    long = "x" * 300
    ended = consilia(capfd, monkeypatch, *words.format(long).split())
    assert ended.code in (2, 3)
    assert ended.err.count("\n") == 1
    assert "an error of ours" not in ended.err


def closed(path):
    """Raise what the operating system says of a path that this user may not enter."""
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_a_file_that_may_not_be_read_gets_one_sentence(here, capfd, monkeypatch):
    monkeypatch.setattr("consilia.readers.check.read_federation", closed)
    ended = consilia(capfd, monkeypatch, "check", "shapes")
    assert (ended.code, ended.err) == (
        3,
        "consilia: 'shapes/federation.toml' cannot be used: permission denied; ask whoever owns it "
        "for the right to read and write it\n",
    )


def test_a_site_that_may_not_be_entered_does_not_keep_others_from_being_checked(
    here, capfd, monkeypatch
):
    honest = check.inspect_folder
    monkeypatch.setattr(
        check,
        "inspect_folder",
        lambda path, *rest: closed(path / "images") if path.name == "anna" else honest(path, *rest),
    )
    ended = consilia(capfd, monkeypatch, "check", "shapes")
    assert ended.code == 3
    assert "anna: no image could be read\n" in ended.out
    assert "'shapes/anna/images' of site 'anna' cannot be read: permission denied; " in ended.out
    assert "bo: 9 images" in ended.out


def fail_with(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(inprocess, "run_in_process", fail)


def test_ctrl_c_ends_with_one_sentence_and_the_run_can_go_on(here, call, capfd, monkeypatch):
    honest = inprocess.run_in_process

    def stopped(spec, path, *, data, listeners):
        def press(line):
            raise KeyboardInterrupt

        return honest(spec, path, data=data, listeners=(*listeners, press))

    monkeypatch.setattr(inprocess, "run_in_process", stopped)
    words = ("run", "shapes", "--rounds", "2", "--set", "engine.checkpoint_every=1", "--json")
    ended = consilia(capfd, monkeypatch, *words)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err == (
        "consilia: stopped by you; the same command, or `consilia resume`, goes on from the last "
        "checkpoint\n"
    )
    monkeypatch.setattr(inprocess, "run_in_process", honest)
    assert json.loads(call(*words).out)["rounds"] == 2


def test_an_unexpected_error_ends_with_one_sentence_and_a_log(here, capfd, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("CONSILIA_DEBUG", raising=False)
    fail_with(monkeypatch, ZeroDivisionError("one\nof ours"))
    ended = consilia(capfd, monkeypatch, "run", "shapes")
    (log,) = tmp_path.glob("consilia-*.log")
    assert (ended.code, ended.out) == (1, "")
    assert (
        ended.err == f"consilia: an error of ours, sorry: ZeroDivisionError: one (details: {log})\n"
    )
    assert "Traceback" in log.read_text()


def test_a_developer_gets_the_traceback(here, capfd, monkeypatch):
    monkeypatch.setenv("CONSILIA_DEBUG", "1")
    fail_with(monkeypatch, ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        consilia(capfd, monkeypatch, "run", "shapes")


def test_a_run_that_fails_says_why(here, capfd, monkeypatch):
    words = ("run", "shapes", "--set", "participation.min_sites=2")
    ended = consilia(capfd, monkeypatch, *words, "--set", "participation.absent={bo=[1]}")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "consilia: round 1: 1 of the invited sites gave a usable update and min_sites is 2; "
        "correct that, and give the command again with another --out\n"
    )


def test_a_closed_pipe_is_quiet(here):
    command = f"{sys.executable} -c 'from consilia.cli.main import main; main()' methods --json"
    script = f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"
    shell = ["bash", "-c", script]
    ended = subprocess.run(shell, capture_output=True, text=True, check=False, env=os.environ)
    assert (ended.stdout, ended.stderr) == ("[", "")


def test_names_are_never_taken_for_markup(call, here):
    path = Path("shapes/federation.toml")
    path.write_text(path.read_text().replace('"round"', '"[red]round"').replace("toy", "[bold]"))
    shown = call("plan", "shapes").out
    assert "[bold]: segmentation, labels [red]round, square" in shown
