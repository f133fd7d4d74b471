"""Benchmarks compare like with like: a bare loop comes to the same weights as the method it stands for."""

import json

import pytest
import torch
import torch.nn.functional as F
from benchmarks import costs, energies, plots
from benchmarks.harness import spread, told

from consilia.methods import METHODS
from consilia.ops.crf import gated_crf
from consilia.ops.tree import tree_energy

SLOW = {"fedlppa", "fedala", "fedmix", "fedbn"}  # larger networks, several trainings
EXACT = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))
    for name, case in costs.CASES.items()
    if case.exact
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", EXACT)
def test_a_bare_loop_does_what_the_method_does(method):
    ways = costs.pair(method, costs.CASES[method], steps=1)
    ours = {name: value.clone() for name, value in ways["ours"]().items()}
    loop = ways["bare"]()
    assert costs.apart(ours, loop) < 1e-6
    trained = [n for n, v in ours.items() if v.is_floating_point()]
    assert len(trained) == len([n for n, v in loop.items() if v.is_floating_point()])


def test_the_distance_of_networks_sees_a_difference():
    one = {"w": torch.ones(4), "steps": torch.tensor(3)}
    other = {"w": torch.tensor([1.0, 1.0, 1.0, 1.1]), "steps": torch.tensor(4)}
    assert costs.apart(one, one) == 0
    assert costs.apart(one, other) == pytest.approx(0.05, rel=1e-4)


def test_every_method_has_a_study_to_be_timed_on():
    timed = {name for family in costs.FAMILIES.values() for name in family.split()}
    assert timed == set(METHODS)
    assert all(family.split()[0] == "fedavg" for family in costs.FAMILIES.values())
    assert set(costs.CASES) <= set(METHODS)
    assert set(costs.PAPER) <= set(METHODS)


def test_a_spread_is_told_with_its_ends():
    found = spread([1.2, 1.0, 1.1])
    assert found == {"median": 1.1, "low": 1.0, "high": 1.2, "pairs": 3}
    assert told(found) == "1.100 (1.00 to 1.20, 3 pairs)"


def test_what_was_measured_is_drawn_and_shown_on_the_page(tmp_path, monkeypatch):
    machine = {"processor": "x86_64", "cores": 2, "torch": "2.13", "load": 1.0}
    row = {"wall_ms": 22.0, "processor_ms": 22.0, "processor_ms_low": 20.0, "goal_ms": 60.0}
    noop = {"machine": machine, "rows": {"shapes": {**row, "processor_ms_high": 30.0}}}
    rows = {"fedavg": {"ratio": spread([1.0, 1.1]), "goal": 1.15}}
    for name, result in (("noop", noop), ("costs", {"machine": machine, "rows": rows})):
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    out = tmp_path / "docs"
    out.mkdir()
    monkeypatch.setattr("sys.argv", ["plots", "--results", str(tmp_path), "--out", str(out)])
    plots.main()
    page = (out / "plots.md").read_text()
    drawn = sorted(path.stem for path in out.glob("*.svg"))
    assert {"noop", "arithmetic"} <= set(drawn)
    assert all(f"({name}.svg)" in page for name in drawn)


def test_a_result_that_was_not_measured_has_no_chart():
    assert all(draw({}) is None for draw, *_ in plots.CHARTS.values())
    rows = {"fedavg": {"ratio": spread([1.0, 1.1]), "goal": 1.15}}
    results = {"costs": json.loads(json.dumps({"rows": rows}))}
    assert plots.arithmetic(results) is not None
    assert plots.scale(results) is None


def test_the_parts_of_an_energy_are_those_of_a_prediction_that_is_as_sure():
    draw = torch.Generator().manual_seed(0)
    image = torch.rand(2, 1, 8, 8, generator=draw)
    zone = (torch.rand(2, 8, 8, generator=draw) < 0.3).float()
    target = (torch.rand(2, 8, 8, generator=draw) < 0.3).long()
    known = torch.rand(2, 8, 8, generator=draw) < 0.4
    unsure = torch.tensor([0.3, 0.02, 0.0005])
    found = energies.parts(zone, image, target, known, unsure)
    for e, row in zip(unsure.tolist(), found, strict=True):
        p = torch.stack((1 - zone, zone), 1) * (1 - 2 * e) + e
        crossed = F.nll_loss(p.log(), torch.where(known, target, -100))
        plain = torch.stack((crossed, gated_crf(p, image), tree_energy(p, image, [], ~known)))
        torch.testing.assert_close(row, plain, rtol=1e-4, atol=1e-5)


def test_energies_are_compared_where_each_prediction_costs_least_and_where_emptiness_is_ahead():
    empty, true = torch.tensor([0.3, 0.2, 0.5, 0.9]), torch.tensor([0.35, 0.4, 0.3, 0.1])
    found = energies.beyond(empty, true, torch.tensor([0.1, 0.02, 0.005, 0.001]))
    assert found == pytest.approx({"best": 0.1, "barrier": -0.2, "barrier_at": 0.02})
