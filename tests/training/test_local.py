"""The local loop: seeds, schedules, kept and reset optimisers, corrections, label overlays."""

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.testing import toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.local import rate_at, train_locally
from consilia.training.optimizers import make_optimizer
from consilia.training.seeds import derive, seeded
from consilia.training.settings import Training
from consilia.training.site import Site


def site_of(round_=1, rounds=3, **training):
    spec = toy_spec(training=training)
    bench = make_bench(spec, make_method("fedavg"), spec.federation)
    data = toy_sites(spec)["anna"]
    train = ResidentCases.of(data.train, data.view, bench.device)
    return Site("anna", spec.federation, bench, train, spec.training, spec.seed, round_, rounds)


def test_global_random_numbers_neither_matter_nor_move():
    torch.manual_seed(1)
    one = site_of()
    train_locally(one)
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    two = site_of()
    train_locally(two)
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(one.weights().values(), two.weights().values(), strict=True):
        assert torch.equal(a, b)


def test_site_round_and_purpose_each_change_the_seed():
    seeds = {derive(0, "anna", 1), derive(1, "anna", 1), derive(0, "bo", 1), derive(0, "anna", 2)}
    assert len(seeds) == 4
    assert derive("a", "bc") != derive("ab", "c")
    with seeded(5):
        one = torch.rand(2)
    with seeded(5):
        assert torch.equal(torch.rand(2), one)


def test_kept_moments_go_on_and_reset_ones_do_not():
    kept, reset = site_of(), site_of(keep_optimizer=False)
    train_locally(kept)
    train_locally(reset)
    assert reset.optimizers == {}
    moments = {k: {n: t.clone() for n, t in v.items()} for k, v in kept.optimizers["main"].items()}
    assert all("exp_avg" in state for state in moments.values())
    train_locally(kept)
    steps = [float(state["step"]) for state in kept.optimizers["main"].values()]
    assert set(steps) == {6.0}  # three batches a round
    assert all(float(state["step"]) == 3 for state in moments.values())


@pytest.mark.parametrize(
    ("done", "rate"), [(100, 0.00981982), (2500, 0.00535887), (4999, 4.687e-06)]
)
def test_poly_schedule(done, rate):  # METHODS 3.9 fact 6
    site = site_of(done // 10 + 1, 500, schedule="poly", steps=10, learning_rate=0.01)
    assert rate_at(site.training, site, done % 10, 10) == pytest.approx(rate, rel=1e-4)


def test_poly_goes_by_rounds_where_sites_make_different_numbers_of_steps():
    site = site_of(2, 4, schedule="poly", power=1.0, learning_rate=0.01)
    few, many = ([rate_at(site.training, site, s, n) for s in range(n)] for n in (3, 6))
    assert few == pytest.approx([0.01 * (1 - (1 + s / 3) / 4) for s in range(3)])
    assert many[::2] == pytest.approx(few)  # equally far in the run, equal rates
    last = site_of(4, 4, schedule="poly", power=1.0, learning_rate=0.01)
    assert 0 < rate_at(last.training, last, 2, 3) < few[-1]


def test_poly_trains_by_epochs_at_the_falling_rate():
    late, constant = site_of(3, 3, schedule="poly"), site_of(3, 3)
    start = late.weights()
    moved = []
    for site in (late, constant):
        train_locally(site)
        moved.append(
            sum(float((w - start[name]).abs().sum()) for name, w in site.weights().items())
        )
    assert 0 < moved[0] < 0.5 * moved[1]


def test_only_some_parameters_can_be_trained():
    site = site_of(weight_decay=0.0)
    before = site.weights()
    train_locally(site, parameters=site.bench.groups["head"])
    after = site.weights()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(site.bench.groups["head"])


def test_gradients_can_be_corrected_and_steps_observed():
    site = site_of(weight_decay=0.0)
    before, calls = site.weights(), []
    train_locally(
        site, correct=lambda _, g: torch.zeros_like(g), after_step=lambda: calls.append(1)
    )
    assert len(calls) == 3
    after = site.weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_site_without_targets_does_nothing():
    site = site_of()
    before = site.weights()
    assert train_locally(site, only=torch.tensor([], dtype=torch.long)).steps == 0
    assert all(torch.equal(before[name], value) for name, value in site.weights().items())


def test_corrected_labels_are_trained_on_and_remembered():
    site = site_of()
    corrected = torch.ones_like(site.train.target)
    site.correct_labels(corrected)
    assert torch.equal(
        site.train.cut(torch.tensor([0])).target, torch.ones(1, 16, 16, dtype=torch.long)
    )
    assert torch.equal(site.overlays["labels"], corrected)


def test_a_second_network_starts_elsewhere():
    bench = site_of().bench
    one, two = bench.start(), bench.start("second")
    assert any(not torch.equal(one[name], two[name]) for name in one)
    again = bench.start("second")
    assert all(torch.equal(two[name], again[name]) for name in two)


def test_an_optimiser_goes_on_with_moments_in_the_order_of_its_parameters():
    weight = torch.nn.Parameter(torch.rand(4, 3, 3, 3).to(memory_format=torch.channels_last))
    moments = torch.rand(4, 3, 3, 3)  # as a file gives them back
    state = {"w": {"exp_avg": moments, "exp_avg_sq": moments.clone(), "step": torch.tensor(5.0)}}
    optimizer = make_optimizer({"w": weight}, Training(batch=1), state)
    kept = optimizer.state[weight]
    assert kept["exp_avg"].stride() == weight.stride() != moments.stride()
    assert torch.equal(kept["exp_avg"], moments)
    assert kept["step"] == 5
    assert kept["exp_avg_sq"].data_ptr() != state["w"]["exp_avg_sq"].data_ptr()
