"""Portraits: shared directions, capped and projected points, histograms, and only when asked."""

import dataclasses
import json

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.engines.messages import Failed, Portrait
from consilia.engines.portrait import BINS, DIRECTIONS, MOST, histograms, portray, project
from consilia.methods import make_method
from consilia.testing import run_toy, toy_sites, toy_spec
from tests.methods.support import ledger_fields


def test_every_site_projects_on_the_same_orthonormal_directions():
    width = 20
    directions = project(torch.eye(width), seed=3)
    assert directions.shape == (width, DIRECTIONS)
    torch.testing.assert_close(directions.T @ directions, torch.eye(DIRECTIONS))
    assert torch.equal(project(torch.eye(width), seed=3), directions)
    assert not torch.equal(project(torch.eye(width), seed=4), directions)
    x = torch.randn(5, width)
    torch.testing.assert_close(project(x, 3), x @ directions)
    assert project(torch.eye(3), 0).shape == (3, 3)  # never more numbers than features


def test_histograms_count_every_share_once():
    follow = {
        "decoder.w": torch.tensor([0.0, 0.05, 0.95, 1.0]),
        "head.w": torch.tensor([[0.55]]),
        "aux.head.w": torch.ones(7),
    }
    got = histograms(follow)
    assert got == {"main": (2, 0, 0, 0, 0, 1, 0, 0, 0, 2), "auxiliary": (*[0] * (BINS - 1), 7)}
    assert histograms({}) == {}


@pytest.mark.parametrize("task", ["segmentation", "multi-label"])
def test_a_portrait_holds_few_images_and_few_numbers(task):
    spec = toy_spec(task)
    bench = make_bench(spec, make_method("fedavg"), spec.federation)
    bench.enter("anna")
    data = toy_sites(spec, train=MOST + 30)["anna"]
    shown = portray(bench, bench.start(), data.train, {})
    assert shown.points.shape == (MOST, DIRECTIONS)
    assert torch.isfinite(shown.points).all()
    nobody = portray(bench, bench.start(), data.train.take(torch.arange(0).numpy()), {})
    assert nobody == Portrait(nobody.points, {})
    assert len(nobody.points) == 0


SITES = [{"name": n, "supervision": "scribble"} for n in ("anna", "bo")]


@pytest.mark.parametrize("asked", [True, False])
def test_portraits_leave_only_when_the_study_asks(asked, tmp_path):
    method = {"name": "fedlppa", "settings": {"la_passes": 1}}
    evaluate = {"portraits": asked, "every": 9, "pictures": 0}
    spec = toy_spec(sites=SITES, method=method, evaluate=evaluate, rounds=2, training={"steps": 1})
    run_toy(spec, tmp_path / "run", toy_sites(spec, train=4, test=2))
    wanted = {("Portrait", "points"), ("Portrait", "follow")} if asked else set()
    assert ledger_fields(tmp_path / "run", "up", "portray") == wanted
    assert (tmp_path / "run/portraits.json").is_file() == asked
    findings = json.loads((tmp_path / "run/findings.json").read_text())
    assert set(findings["affinity"]) == {"anna", "bo"}
    assert set(findings["maps"]) == {"universal", "anna", "bo"}
    assert len(findings["maps"]["bo"]) == 8
    if asked:
        told = json.loads((tmp_path / "run/portraits.json").read_text())
        assert {len(p["points"]) for p in told.values()} == {4}
        counts = told["anna"]["follow"]
        assert set(counts) == {"main", "auxiliary"}
        assert sum(counts["auxiliary"]) < sum(counts["main"])  # without the MLP


def test_a_site_refuses_a_portrait_that_its_study_did_not_ask_for(tmp_path):
    from consilia.engines.memory import MemoryStore
    from consilia.engines.site import SiteWorker
    from consilia.payload import pack, unpack

    spec = toy_spec(sites=SITES)
    method = make_method("fedavg")
    bench = make_bench(spec, method, spec.federation)
    worker = SiteWorker(
        "anna",
        method=method,
        federation=spec.federation,
        spec=spec,
        data=toy_sites(spec, train=4, test=2)["anna"],
        bench=bench,
        memories=MemoryStore(tmp_path / "memories", 1 << 20),
    )
    reply = worker.handle(pack(Failed("x"), "portray", "anna", 1))
    assert "does not ask for portraits" in unpack(Failed, reply).reason
    assert dataclasses.fields(Portrait)[0].name == "points"
