"""Papers' tables: whole, about things that exist, and printed beside ours."""

import json
import math
import statistics
import tomllib

import pytest

from consilia.errors import UsageError
from consilia.evaluate.metrics import METRICS
from consilia.methods import METHODS, make_method, refuse_unfit
from consilia.runs.compare import compare_runs
from consilia.runs.published import (
    MEAN,
    PublishedTable,
    published_in,
    read_published,
    split_method,
)
from consilia.runs.spec import STUDIES, read_spec, studies
from tests.cli.support import consilia, write_study, write_toml

WITH_TABLES = [study for study in studies() if read_published(study)]
#: What the papers print otherwise than their cells average; METHODS 1.7, 2.7, 5.7 and 6.3.
MISPRINTS = {
    ("breast", "iil", "FedMix"),
    ("retouch", "lll", "LL"),
    *(("nih-b", "", name) for name in ("w/ TADL", "w/ TDMA")),
    *((study, "", "FedPSL w/ TADL") for study in ("nih-a", "nih")),
    *((s, w, "LL") for s in ("skin", "skinseg") for w in ("uulu", "llll")),
}


def test_every_study_of_a_paper_has_its_table():
    assert set(WITH_TABLES) == {
        *("breast", "skin", "skinseg", "retouch", "ms", "lung"),
        *("nih", "nih-a", "nih-b", "nih-lsm", "ham", "isic"),
        *("faz", "faz-full", "odoc", "polyp", "prostate"),
    }


@pytest.mark.parametrize("study", WITH_TABLES)
def test_tables_are_about_things_that_exist(study):
    federation = read_spec(study).federation
    settings = tomllib.loads((STUDIES / study / "run.toml").read_text()).get("settings", {})
    for table in read_published(study):
        assert {*table.settings} <= {"", *settings}
        assert table.metric.partition("/")[0] in METRICS
        assert table.scale in {1, 100}
        assert {*table.columns} <= {*federation.sites, *federation.labels, MEAN}
        for row in table.rows:
            assert split_method(row.method)[0] in METHODS
            assert row.setting in {"", *settings}
            shown = [value for value in row.numbers if math.isfinite(value)]
            assert all(0 <= value <= 200 for value in shown)
            if table.metric.startswith(("dice", "auroc")):
                assert all(0 <= value / table.scale <= 1 for value in shown)
        names = [(row.setting, row.called, row.variant) for row in table.rows]
        assert len(set(names)) == len(names)
        beside = [(row.setting, row.method) for row in table.rows if not row.changed]
        assert len(set(beside)) == len(beside)


@pytest.mark.parametrize("study", WITH_TABLES)
def test_every_method_of_a_table_can_be_run_under_its_setting(study):
    rows = {(row.setting, row.method) for table in read_published(study) for row in table.rows}
    for setting, method in rows:
        name = f"{study}@{setting}" if setting else study
        own, settings = split_method(method)
        changes = {f"method.{key}": value for key, value in settings.items()}
        spec = read_spec(name, {"method.name": own, **changes})
        refuse_unfit(own, make_method(own, spec.method.settings), spec.federation, spec.training)


@pytest.mark.parametrize("study", WITH_TABLES)
def test_what_stands_in_words_alone_is_the_whole_method_or_another_length_of_training(study):
    rows = [row for table in read_published(study) for row in table.rows if row.changed]
    whole = {"both", "both components", "all components", "TDF+PD+LA", "DDP+ASP+UKP"}
    longer = ("100 rounds", "E = ")
    assert all(row.variant in whole or any(w in row.variant for w in longer) for row in rows)


@pytest.mark.parametrize("study", WITH_TABLES)
def test_printed_means_are_those_of_their_cells_but_for_known_misprints(study):
    for table in read_published(study):
        cells = len(table.columns) - 1
        labels = cells < 14 and table.source.startswith("FedLSM")  # a mean over more than is shown
        if cells < 2 or labels or table.columns[-1] != MEAN:
            continue
        for row in table.rows:
            *shown, mean = row.numbers
            if any(map(math.isnan, row.numbers)):
                continue
            near = abs(statistics.mean(shown) - mean) <= 0.00101 * table.scale
            near |= table.scale == 1 and abs(statistics.mean(shown) - mean) <= 0.011 * mean
            known = (study, row.setting, row.called) in MISPRINTS
            assert near or known, (row.called, row.setting, statistics.mean(shown), mean)


@pytest.mark.parametrize(
    ("study", "metric", "setting", "method", "mean"),
    [
        ("breast", "dice", "uul", "fedmix", 80.6),
        ("skinseg", "dice", "uulu", "fedst", 84.6),
        ("retouch", "dice", "bbl", "fedmix", 61.0),
        ("ms", "dice", "m3", "fedia", 56.53),
        ("lung", "dice", "m2", "nr-dice", 33.75),
        ("nih-a", "auroc", "", "fedpsl", 0.763),
        ("nih-b", "auroc", "", "fedpsl", 0.809),
        ("nih-lsm", "auroc", "", "fedlsm", 0.791),
        ("isic", "accuracy", "full", "fedavg", 0.889),
        ("faz", "hd95", "", "fedlppa", 5.30),
        ("polyp", "dice", "full", "central", 76.32),
        ("polyp", "dice", "dual", "fedavg", 77.62),
        ("prostate", "dice", "", "fedlppa", 84.48),
        ("odoc", "dice", "", "fedlc", 88.63),
    ],
)
def test_a_number_of_each_paper(study, metric, setting, method, mean):
    name = f"{study}@{setting}" if setting else study
    assert beside(name, metric, method) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("study", "metric", "method", "mean"),
    [
        ("breast@uul", "dice", "fedmix:lam=0", 61.6),
        ("breast@uul+fold2", "dice", "fedmix:epsilon=0.0", 78.6),
        ("skinseg@uulu", "dice", "fedmix:beta=2:lam=1", 84.9),
        ("ms@m3", "dice", "fedia:correct=false", 43.40),
        ("ms@m0", "dice", "fedia:threshold=0.5", 74.68),
        ("lung@m2", "dice", "fedia:warmup=10", 46.88),
        ("faz", "dice", "fedlppa:la=false:pd=false", 90.61),
        ("faz-full", "hd95", "fedlppa:asp=false", 5.61),
        ("nih-a", "auroc", "fedpsl:rows=all", 0.757),
        ("isic", "macro_f1", "fedlsm:enhance=false", 0.655),
        ("faz", "dice", "fedavg", 84.05),  # not that with two decoders
        ("breast@uul", "dice", "fedmix:epsilon=0.5", None),  # its rounds are other ones, too
        ("breast@uul", "dice", "fedmix:networks=1", None),
    ],
)
def test_an_ablation_is_found_by_its_settings_in_any_order(study, metric, method, mean):
    assert beside(study, metric, method) == (None if mean is None else pytest.approx(mean))


def beside(study, metric, method):
    """Return what the paper prints where `compare` sets it beside ours."""
    tables = [table for table in read_published(study) if table.metric == metric]
    means = [table.mean_of(study, method) for table in tables if table.is_about(study)]
    found = next((mean for mean in means if mean is not None), None)
    return found if found is None else found * tables[0].scale


def table_of(*rows, **changes):
    plain = {"source": "A paper", "what": "Dice in %", "metric": "dice", "scale": 100}
    return {**plain, "columns": ["anna", "bo", "mean"], "rows": list(rows), **changes}


LOCAL = {"method": "local", "called": "LL", "values": [60.0, 70, 65.0]}
FEDAVG = {"method": "fedavg", "called": "FedAVG", "values": [80.0, "-", "-"]}
BOXES = {"setting": "boxes", "method": "local", "called": "LL", "values": [50, 60, 55]}
ABLATION = {**LOCAL, "variant": "without X", "values": [1, 2, 3]}


def test_rows_of_a_setting_and_means_in_our_unit():
    table = PublishedTable(**table_of(ABLATION, LOCAL, FEDAVG, BOXES))
    assert [row.called for row in table.within("toy@boxes+fold1").rows] == ["LL"]
    assert len(table.within("toy").rows) == len(table.within("toy@masks").rows) == 4
    assert table.mean_of("toy", "local") == pytest.approx(0.65)  # not that of the ablation
    assert table.mean_of("toy@boxes", "local") == pytest.approx(0.55)
    assert table.mean_of("toy", "fedavg") is None
    assert table.mean_of("toy", "central") is None
    assert table.is_about("toy")
    assert not PublishedTable(**table_of(LOCAL, settings=["boxes"])).is_about("toy")
    assert PublishedTable(**table_of(LOCAL, settings=["", "boxes"])).is_about("toy")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (table_of({**LOCAL, "values": [1, 2]}), "row 'LL' has 2 values; expected 3"),
        (table_of({**LOCAL, "values": [1, 2, "x"]}), "row 'LL' has the value 'x'; expected a num"),
        (table_of({**LOCAL, "valus": []}), "unknown key 'valus'; did you mean 'values'"),
        (table_of(scale=0), "'scale' is 0; expected more than 0"),
        (table_of({**LOCAL, "method": "fedprox:mu"}), "row 'LL' has the method 'fedprox:mu'; exp"),
        (table_of({**LOCAL, "method": "fedprox:mu=1:mu=2"}), "mu=1 and .* both say what 'mu' is"),
    ],
)
def test_a_broken_table_is_one_sentence(tmp_path, table, sentence):
    write_toml(tmp_path / "mine/published.toml", {"table": [table]})
    with pytest.raises(UsageError, match=f"mine/published.toml: .*{sentence}"):
        published_in(tmp_path / "mine/published.toml")


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Write a tiny study with a paper's table beside it."""
    monkeypatch.delenv("CONSILIA_DATA", raising=False)
    write_study(tmp_path, run={"rounds": 2, "evaluate": {"validation": 0.4}})
    tables = [table_of(LOCAL, FEDAVG, note="Another study."), table_of(ABLATION, what="parts")]
    write_toml(tmp_path / "published.toml", {"table": tables})
    return tmp_path


def test_compare_prints_the_papers_table_and_another_selection(study, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = ("compare", study, "--methods", "local,fedavg", "--seeds", "0", "--out", study / "runs")
    shown = consilia(capfd, monkeypatch, *words)
    assert shown.code == 0, shown.err
    head, row = shown.out.splitlines()[1:4:2]
    assert head.split()[-1] == "paper"
    assert (row.split()[0], row.split()[-1]) == ("local", "0.650")
    assert "A paper: Dice in %" in shown.out
    assert "LL (local)" in shown.out
    assert "Another study" in shown.out
    assert "parts" not in shown.out
    assert "ablations: parts" in shown.err
    found = json.loads(consilia(capfd, monkeypatch, *words, "--json").out)
    assert [row["published"] for row in found["rows"]] == [0.65, None]
    assert [table["what"] for table in found["published"]] == ["Dice in %", "parts"]
    assert found["selection"] == "last_round"
    best = json.loads(
        consilia(capfd, monkeypatch, *words, "--json", "--selection", "best_validation").out
    )
    assert best["selection"] == "best_validation"
    lines = (study / "runs/toy/fedavg-0/rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    scores = [statistics.mean(s["dice"] for s in r["validation"].values()) for r in rounds]
    picked = rounds[scores.index(max(scores))]["test"]
    assert best["rows"][1]["sites"] == pytest.approx({s: v["dice"] for s, v in picked.items()})


def test_a_rule_that_cannot_be_applied_is_refused_before_anything_trains(study, capfd, monkeypatch):
    refused = consilia(capfd, monkeypatch, "compare", study, "--selection", "best_validaton")
    assert refused.code == 2
    assert "did you mean 'best_validation'" in refused.err
    words = ("--selection", "best_validation", "--set", "evaluate.validation=0.0")
    refused = consilia(capfd, monkeypatch, "compare", study, *words)
    assert refused.code == 2
    assert "study 'toy' holds none out" in refused.err
    assert not (study / "runs").exists()


def test_another_selection_uses_the_cases_of_its_own_rounds(study, capfd, monkeypatch):
    words = ("compare", study, "--methods", "fedavg", "--seeds", "0", "--out", study / "runs")
    more = ("--set", "evaluate.selection=best_validation", "--json")
    first = json.loads(consilia(capfd, monkeypatch, *words, *more).out)
    folder = study / "runs/toy/fedavg-0"
    last = compare_runs({"fedavg": [folder]}, "dice", selection="last_round")
    cases = json.loads((folder / "cases/round-000002.json").read_text())
    values = [value for site in cases.values() for value in site["values"]["dice"]]
    assert last.rows[0].interval.value == pytest.approx(statistics.mean(values))
    assert first["selection"] == "best_validation"
    (folder / "cases/round-000002.json").unlink()
    last = compare_runs({"fedavg": [folder]}, "dice", selection="last_round")
    assert last.rows[0].interval is None
