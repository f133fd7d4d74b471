from __future__ import annotations

import tomllib

import tomli_w

from consilia.report.record import Record
from consilia.report.tables import cases_table, hardest, label_table, score_table, site_table


def test_one_row_per_test_case(make_run):
    rows = cases_table(make_run(("bergen", "cusco")))
    assert len(rows) == 6
    assert rows[1] == {"site": "bergen", "case": "b", "group": "p", "dice": 0.1, "iou": 0.1}
    assert rows[2]["dice"] is None


def test_the_main_metric_comes_first_and_the_mean_last(make_run):
    columns, rows = score_table(Record.read(make_run()))
    assert [c.key for c in columns] == ["dice", "iou", "hd95"]
    assert [r.site for r in rows] == ["bergen", "cusco", "delft", "mean"]
    assert rows[-1].values == ("0.512", "0.512", "3.0")


def test_labels_have_rows_of_their_own(make_run):
    columns, rows = label_table(Record.read(make_run()))
    assert [c.key for c in columns] == ["dice"]
    assert [(r.site, r.label, r.values) for r in rows[:2]] == [
        ("bergen", "irf", ("0.500",)),
        ("bergen", "srf", ("–",)),
    ]


def test_a_metric_of_another_version_is_shown_without_explanation(make_run):
    run = make_run()
    text = (run / "metrics.json").read_text().replace('"iou"', '"new_score"')
    (run / "metrics.json").write_text(text)
    columns, _ = score_table(Record.read(run))
    assert [(c.title, c.meaning) for c in columns][-1] == ("new score", "")


def test_declarations_say_what_is_marked_and_what_is_not(make_run):
    run = make_run(("bergen", "cusco"))
    spec = tomllib.loads((run / "spec.toml").read_text())
    weak = {"supervision": "scribble", "annotates": ["srf"], "style": "noisy"}
    spec["federation"]["site"][0] |= weak
    (run / "spec.toml").write_text(tomli_w.dumps(spec))
    bergen, cusco = site_table(Record.read(run))
    assert (bergen.form, bergen.marks) == ("scribble", "strokes, noisy")
    assert (bergen.annotates, bergen.leaves_out) == ("srf", "irf")
    assert (cusco.annotates, cusco.leaves_out) == ("all 2 labels", "–")
    assert (cusco.images, cusco.took_part) == ("9", 4)


def test_the_hardest_cases_come_in_order(make_run):
    _, rows, scored = hardest(Record.read(make_run()), most=4)
    assert [r.label for r in rows] == ["b", "b", "b", "a"]
    assert len(scored) == 6
