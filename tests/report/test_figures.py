from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from consilia.report import figures
from consilia.report.record import Record

DRAW = {
    "loss": figures.loss_figure,
    "score": lambda record: figures.score_figure(record, "Dice"),
    "shares": figures.share_figure,
    "traffic": figures.traffic_figure,
    "cases": figures.case_figure,
}


@pytest.mark.parametrize("name", DRAW)
def test_a_figure_takes_its_colors_from_the_page(make_run, name):
    drawn = DRAW[name](Record.read(make_run()))
    assert drawn.startswith('<svg class="plot"')
    assert not re.search(r"#[0-9a-f]{6}", drawn)
    assert "var(--ink)" in drawn
    assert "http" not in drawn


@pytest.mark.parametrize("name", DRAW)
def test_nothing_to_draw_is_no_figure(make_run, name):
    run = make_run()
    (run / "rounds.jsonl").unlink()
    (run / "cases.json").unlink()
    assert DRAW[name](Record.read(run)) is None


def test_sites_keep_their_color_and_ids_do_not_meet(make_run):
    record = Record.read(make_run())
    drawn = [draw(record) for draw in DRAW.values()]
    assert all("var(--s1)" in figure for figure in (*drawn[:3], drawn[4]))
    ids = [set(re.findall(r'id="([^"]+)"', figure)) for figure in drawn]
    assert sum(map(len, ids)) == len(set.union(*ids))


def test_one_round_and_no_shares(make_run):
    run = make_run(rounds=1)
    line = json.loads((run / "rounds.jsonl").read_text().splitlines()[0]) | {"shares": {}}
    (run / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    record = Record.read(run)
    assert figures.share_figure(record) is None
    assert figures.loss_figure(record) is not None


def test_labels_are_moved_apart_and_stay_inside():
    moved = figures._apart([0.5, 0.5, 0.98, 0.99], 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(moved))
    assert moved[-1] <= 1.02 + 1e-9
    assert figures._apart([], 0.1) == []
