"""The section on personal parts: there with findings or portraits, absent without."""

import json

import numpy as np
import pytest

from consilia.report import personal
from consilia.report.page import write_report
from consilia.report.record import Record

SITES = ("bergen", "cusco", "delft")


def tell(run, points=6, **parts):
    affinity = {a: {b: 1.0 if a == b else 0.25 for b in SITES} for a in SITES}
    maps = {name: [[0.0, 0.5], [1.0, 0.2]] for name in ("universal", *SITES)}
    (run / "findings.json").write_text(json.dumps({"affinity": affinity, "maps": maps}))
    rng = np.random.default_rng(0)
    portraits = {
        site: {
            "points": rng.normal(i, 1, (points, 8)).tolist(),
            "follow": {"main": [0] * 9 + [10], "auxiliary": [5] + [0] * 8 + [5]},
        }
        for i, site in enumerate(SITES)
    }
    (run / "portraits.json").write_text(json.dumps({**portraits, **parts}))
    return Record.read(run)


def test_the_page_has_no_such_section_without_findings(make_run):
    run = make_run()
    assert 'id="personal"' not in write_report(run).read_text()
    assert set(personal.section(Record.read(run)).values()) == {None}


def test_every_figure_says_what_it_shows(make_run):
    record = tell(make_run(evaluate={"portraits": True}))
    figures = personal.section(record)
    assert "Affinity of 3 sites between 0.25 and 0.25" in figures["affinity_figure"]
    assert "1.00" in figures["affinity_figure"]
    assert "universal, bergen, cusco, delft; from 0.00 (black)" in figures["map_figure"]
    assert "PCA of the features of 18 training images of 3 sites" in figures["pca_figure"]
    assert "t-SNE of the features of 18" in figures["tsne_figure"]
    assert "bergen main 0.95, bergen auxiliary 0.50" in figures["follow_figure"]
    page = write_report(record.path).read_text()
    assert 'id="personal"' in page
    assert "because the study asked" in page
    assert "http" not in page.split('id="personal"')[1].split("</section>")[0].replace(
        "http://www.w3.org", ""
    )


def test_few_points_and_damaged_parts_are_left_out(make_run):
    record = tell(make_run(), points=2)
    assert personal.feature_figure(record, "PCA") is None
    lonely = tell(make_run(name="other"), bergen={"points": [], "follow": {}})
    assert "12 training images of 2 sites" in personal.feature_figure(lonely, "PCA")
    assert "bergen" not in personal.follow_figure(lonely).partition("mean W")[2].partition('"')[0]


def test_numbers_that_are_not_defined_are_left_out(make_run):
    run = make_run()
    nulls = {"points": [[None] * 8] * 6, "follow": {}}
    record = tell(run, bergen=nulls)
    assert "12 training images of 2 sites" in personal.feature_figure(record, "PCA")
    assert "12 training images of 2 sites" in personal.feature_figure(record, "t-SNE")
    affinity = {a: dict.fromkeys(SITES) for a in SITES}
    told = {"affinity": affinity, "maps": {"universal": [[None, 0.5]], "bergen": [[None, None]]}}
    (run / "findings.json").write_text(json.dumps(told))
    record = Record.read(run)
    assert 'Affinity of 3 sites"' in personal.affinity_figure(record)
    assert "from 0.50 (black) to 0.50 (white)" in personal.map_figure(record)
    told["maps"].pop("universal")
    (run / "findings.json").write_text(json.dumps(told))
    assert personal.map_figure(Record.read(run)) is None


def test_principal_axes_are_those_of_the_covariance():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(50, 4)) * np.array([5.0, 1.0, 3.0, 0.1])
    flat = personal.principal(points)
    values = np.sort(np.linalg.eigvalsh(np.cov(points.T)))[::-1]
    assert flat.var(0, ddof=1) == pytest.approx(values[:2])
    assert personal.principal(points[:, :1]).shape == (50, 2)


def test_neighbors_stay_together_and_are_always_the_same():
    rng = np.random.default_rng(2)
    points = np.concatenate([rng.normal(0, 1, (15, 8)), rng.normal(30, 1, (15, 8))])
    one, two = personal.neighbors(points), personal.neighbors(points)
    assert np.array_equal(one, two)
    near = np.linalg.norm(one[:, None] - one[None], axis=-1) + 1e9 * np.eye(30)
    nearest = near.argmin(1)
    assert all((nearest[i] < 15) == (i < 15) for i in range(30))
