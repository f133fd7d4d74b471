"""Comparisons from run folders written by hand, so that every number can be done again."""

import itertools
import json
import statistics

import numpy as np
import pytest

from consilia.errors import UsageError
from consilia.runs.compare import compare_runs
from consilia.runs.store import RunFolder
from consilia.testing import toy_spec

#: Dice of three patients (one with two images) at one site and two at the other, by method and seed.
CASES = {
    ("new", 0): {"anna": [0.9, 0.7, 0.8, 0.5], "bo": [0.6, 0.9]},
    ("new", 1): {"anna": [0.7, 0.7, 0.6, 0.7], "bo": [0.8, 0.7]},
    ("old", 0): {"anna": [0.6, 0.6, 0.8, 0.2], "bo": [0.5, 0.9]},
    ("old", 1): {"anna": [0.6, 0.4, 0.4, 0.4], "bo": [0.3, 0.7]},
}
GROUPS = {"anna": ["p1", "p1", "p2", "p3"], "bo": ["p1", "p2"]}


def write_run(path, method, seed, cases, **changes):
    folder = RunFolder.create(path, toy_spec(seed=seed))
    sites = {site: {"dice": statistics.mean(values)} for site, values in cases.items()}
    metrics = {
        "study": "toy",
        "method": method,
        "seed": seed,
        "rounds": 3,
        "selection": "last_round",
        "sites": sites,
        "mean": {"dice": statistics.mean(site["dice"] for site in sites.values())},
        "seconds": 2.0 + seed,
        "bytes_up": 100,
        "bytes_down": 100,
    }
    folder.write_json("metrics.json", {**metrics, **changes})
    tables = {
        site: {
            "case": [f"{site}-{i}" for i in range(len(values))],
            "group": GROUPS[site],
            "values": {"dice": values},
        }
        for site, values in cases.items()
    }
    folder.write_json("cases.json", tables)
    return path


@pytest.fixture
def folders(tmp_path):
    found = {}
    for (method, seed), cases in CASES.items():
        path = write_run(tmp_path / f"{method}-{seed}", method, seed, cases)
        found.setdefault(method, []).append(path)
    return found


def test_means_are_over_seeds_of_the_mean_over_sites(folders):
    found = compare_runs(folders, "dice")
    assert (found.study, found.rounds, found.selection) == ("toy", 3, "last_round")
    new = found.rows[0]
    site_means = [
        {site: statistics.mean(values) for site, values in CASES["new", seed].items()}
        for seed in (0, 1)
    ]
    each = [statistics.mean(means.values()) for means in site_means]
    assert new.mean == pytest.approx(statistics.mean(each))
    assert new.std == pytest.approx(statistics.stdev(each))
    assert new.sites["anna"] == pytest.approx(statistics.mean(m["anna"] for m in site_means))
    assert (new.seeds, new.seconds, new.bytes_up) == ((0, 1), 2.5, 100)
    assert new.test is None


def patient_means(method):
    """Average seeds, then each patient's images; a patient is a person of one site."""
    found = {}
    for site, groups in GROUPS.items():
        for at, group in enumerate(groups):
            values = [CASES[method, seed][site][at] for seed in (0, 1)]
            found.setdefault((site, group), []).append(statistics.mean(values))
    return {patient: statistics.mean(values) for patient, values in found.items()}


def test_the_test_flips_the_sign_of_whole_patients(folders):
    row = compare_runs(folders, "dice", "old").rows[0]
    new, old = patient_means("new"), patient_means("old")
    people = {site: len({group for at, group in new if at == site}) for site, _ in new}
    # Sites count alike, as in the mean over sites, and so do the patients of one site.
    differences = [(new[who] - old[who]) / people[who[0]] / len(people) for who in new]
    reached = abs(sum(differences)) - 1e-9
    signs = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(sign, differences, strict=True))) for sign in signs]
    assert row.test.patients == 5
    assert row.test.difference == pytest.approx(sum(differences))
    assert row.test.p == pytest.approx(sum(s >= reached for s in sums) / len(sums))
    assert row.p_holm == row.test.p  # one comparison needs no correction


def test_the_interval_is_around_the_mean_that_is_reported(folders):
    row = compare_runs(folders, "dice").rows[0]
    assert row.interval.value == pytest.approx(row.mean)
    assert row.interval.low < row.mean < row.interval.high


def test_several_comparisons_are_corrected(folders, tmp_path):
    worse = {site: [v - 0.1 for v in values] for site, values in CASES["old", 0].items()}
    folders["worse"] = [write_run(tmp_path / "worse-0", "worse", 0, worse)]
    rows = {row.method: row for row in compare_runs(folders, "dice", "old").rows}
    p = {name: rows[name].test.p for name in ("new", "worse")}
    low, high = sorted(p, key=p.get)
    assert rows[low].p_holm == pytest.approx(min(1, 2 * p[low]))
    assert rows[high].p_holm == pytest.approx(max(rows[low].p_holm, p[high]))


def test_auroc_is_tested_over_patients_from_probabilities(tmp_path):
    def write(method, scores):
        folder = RunFolder.create(tmp_path / method, toy_spec("multi-label", labels=["a"]))
        truth = [1, 1, 0, 0]
        numbers = {"site": {"auroc": 0.5}}
        keep = {"study": "toy", "rounds": 1, "selection": "last_round", "seconds": 1, "bytes_up": 1}
        folder.write_json(
            "metrics.json",
            {**keep, "method": method, "seed": 0, "sites": numbers, "mean": {"auroc": 0.5}},
        )
        values = {"probability/a": scores, "truth/a": truth}
        table = {"case": list("wxyz"), "group": list("wxyz"), "values": values}
        folder.write_json("cases.json", {"site": table})
        return [folder.path]

    runs = {"good": write("good", [0.9, 0.8, 0.2, 0.1]), "bad": write("bad", [0.1, 0.8, 0.2, 0.9])}
    good, bad = compare_runs(runs, "auroc", "bad").rows
    assert good.interval.value == 1.0
    assert bad.interval.value == pytest.approx(0.25)  # one of four pairs is in order
    assert good.test.difference == pytest.approx(0.75)
    assert good.test.patients == 4


def test_a_label_that_nobody_knows_of_an_image_does_not_count(tmp_path):
    folder = RunFolder.create(tmp_path / "run", toy_spec("multi-label", labels=["a", "b"]))
    metrics = {"study": "toy", "method": "x", "seed": 0, "rounds": 1, "selection": "last_round"}
    scores = {"sites": {"site": {"auroc": 1.0}}, "mean": {"auroc": 1.0}}
    folder.write_json("metrics.json", {**metrics, **scores, "seconds": 1, "bytes_up": 1})
    values = {
        "probability/a": [0.5, 0.4, 0.9, 0.8],
        "probability/b": [0.9, 0.8, 0.3, 0.2],
        "truth/a": [1, 0, None, None],
        "truth/b": [None, None, 1, 0],
    }
    table = {"case": list("wxyz"), "group": list("wxyz"), "values": values}
    folder.write_json("cases.json", {"site": table})
    row = compare_runs({"x": [folder.path]}, "auroc", "x").rows[0]
    assert row.interval.value == 1.0


def test_what_is_not_defined_is_null_in_json(folders, tmp_path):
    nothing = {"anna": {"dice": None}, "bo": {"dice": None}}
    path = write_run(tmp_path / "x", "x", 0, CASES["new", 0], sites=nothing, mean={"dice": None})
    (path / "cases.json").unlink()
    row = compare_runs({"x": [path]}, "dice").to_dict()["rows"][0]
    assert (row["mean"], row["std"], row["interval"], row["sites"]["anna"]) == (None,) * 4
    json.dumps(row, allow_nan=False)


def test_a_metric_without_cases_has_no_interval(folders):
    for path in itertools.chain(*folders.values()):
        metrics = json.loads((path / "metrics.json").read_text())
        metrics["mean"]["hd95"] = 3.0
        metrics["sites"]["anna"]["hd95"] = 3.0
        (path / "metrics.json").write_text(json.dumps(metrics))
    row = compare_runs(folders, "hd95", "old").rows[0]
    assert (row.mean, row.interval, row.test) == (3.0, None, None)
    assert np.isnan(row.sites["bo"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 9}, "run 'old-5' has rounds '9', others have '3'; only runs of one protocol"),
        ({"selection": "last_ten"}, "has selection 'last_ten', others have 'last_round'"),
        ({"study": "other"}, "has study 'other', others have 'toy'"),
        ({"sites": {"anna": {"dice": 1}}}, "was judged at 'anna', others at 'anna' and 'bo'"),
    ],
)
def test_runs_of_another_protocol_are_refused(folders, tmp_path, changes, sentence):
    folders["old"] = [write_run(tmp_path / "x", "old", 5, CASES["old", 0], **changes)]
    with pytest.raises(UsageError, match=sentence):
        compare_runs(folders, "dice")


def test_runs_on_other_test_cases_are_refused(folders):
    path = folders["old"][1] / "cases.json"
    path.write_text(path.read_text().replace("bo-1", "bo-7"))
    with pytest.raises(UsageError, match="run 'old-1' was judged on other test cases of site 'bo'"):
        compare_runs(folders, "dice")


def test_names_that_are_not_there_are_refused(folders):
    with pytest.raises(UsageError, match=r"baseline 'olt' is not among .* did you mean 'old'"):
        compare_runs(folders, "dice", "olt")
    with pytest.raises(UsageError, match=r"study 'toy' has no metric 'iou' .it has: dice"):
        compare_runs(folders, "iou")
