"""FedBN against a second, plain implementation, and its limit cases."""

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.engines.predict import load_models
from consilia.errors import UsageError
from consilia.methods import make_method, why_not
from consilia.runs.store import RunFolder
from consilia.testing import run_toy, toy_spec
from tests.methods.plain_personal import Plain, at_server, close, kept, spec_of, uneven
from tests.methods.support import assert_same_state, final_state, ledger_fields, server_weights


def plain_run(spec, sites):
    """Average all but the normalisation layers; keep these at their sites."""
    plain = Plain(spec, sites)
    norm = plain.norm_names()
    world = {k: v for k, v in plain.start.items() if k not in norm}
    own = {name: {k: plain.start[k] for k in norm} for name in plain.cases}
    for number in range(1, spec.rounds + 1):
        sent = {}
        for name in plain.cases:
            plain.net.load_state_dict({**world, **own[name]})
            plain.train(name, number)
            sent[name] = plain.state()
            own[name] = {k: sent[name][k] for k in norm}
        world = plain.average(sent, world)
    return world, own


@pytest.mark.parametrize("task", ["segmentation", "multi-label"])  # group norm, batch norm
def test_fedbn_is_its_algorithm(task, tmp_path):
    spec = spec_of("fedbn", task)
    run_toy(spec, tmp_path / "run", uneven(spec))
    world, own = plain_run(spec, uneven(spec))
    found = at_server(tmp_path / "run")
    close({name: found[name] for name in world}, world)
    for site in own:
        close(kept(tmp_path / "run", site, "own"), own[site])


def test_one_site_is_local_training_to_the_bit(tmp_path):
    sites = [{"name": "anna", "supervision": "mask"}]
    fedbn = run_toy(toy_spec(sites=sites, method={"name": "fedbn"}), tmp_path / "fedbn")
    local = run_toy(toy_spec(sites=sites, method={"name": "local"}), tmp_path / "local")
    assert fedbn["sites"] == local["sites"]


def test_normalisation_layers_never_leave_and_never_come_back(tmp_path):
    spec = spec_of("fedbn", "multi-label")
    run_toy(spec, tmp_path / "run")
    sent = ledger_fields(tmp_path / "run", "up", "train")
    assert sent == {("Up", "weights"), ("Up", "images"), ("Up", "loss")}
    bench = make_bench(spec, make_method("fedbn"), spec.federation)
    norm = bench.groups["norm"]
    assert any(name.endswith("running_mean") for name in norm)
    first, last = bench.start(), at_server(tmp_path / "run")
    assert all(torch.equal(first[name], last[name]) for name in norm)  # nobody sent any
    own = {site: kept(tmp_path / "run", site, "own") for site in spec.federation.sites}
    assert all(set(mine) == set(norm) for mine in own.values())
    mean = next(name for name in norm if name.endswith("running_mean"))
    assert not torch.equal(own["anna"][mean], own["bo"][mean])


def test_a_site_comes_back_with_its_own_layers(tmp_path):
    absent = {"participation": {"absent": {"anna": [2, 3]}}}
    run_toy(spec_of("fedbn", rounds=1), tmp_path / "one")
    run_toy(spec_of("fedbn", rounds=3, **absent), tmp_path / "three")
    assert_same_state(
        kept(tmp_path / "one", "anna", "own"), kept(tmp_path / "three", "anna", "own")
    )
    run_toy(spec_of("fedbn", rounds=4, **absent), tmp_path / "four")
    before, after = (kept(tmp_path / p, "anna", "own") for p in ("three", "four"))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_late_site_gets_the_average_and_the_first_layers(tmp_path):
    spec = spec_of("fedbn", rounds=2, participation={"joins": {"cleo": 2}})
    run_toy(spec, tmp_path / "run")
    down = ledger_fields(tmp_path / "run", "down", "train")
    assert down == {("Welcome", "weights"), ("Down", "weights")}
    assert "memories/cleo/memory.safetensors" in {
        k.partition(":")[0] for k in final_state(tmp_path / "run")
    }


def test_it_runs_with_two_decoders(tmp_path):
    learner = {"name": "dual", "network": "unet-tiny"}
    run_toy(spec_of("fedbn", learner=learner, rounds=2), tmp_path / "run")
    names = kept(tmp_path / "run", "anna", "own")
    assert any(name.startswith("aux.") for name in names)
    assert any(name.startswith("aux.decoder.ups") for name in server_weights(tmp_path / "run"))


def test_who_cannot_have_a_model_of_its_own_is_refused():
    sites = [{"name": "anna", "supervision": "mask"}, {"name": "bo", "supervision": "none"}]
    why = why_not("fedbn", toy_spec(sites=sites).federation)
    assert "every site needs annotations" in why
    assert "'bo' has none" in why


@pytest.mark.parametrize(
    ("name", "millions"),
    [("fedbn", 1.8105), ("fedap", 1.8105), ("metafed", 1.8105), ("fedrep", 1.8132)],
)
def test_as_many_parameters_leave_a_site_as_in_the_papers_table_ix(name, millions):
    learner = {"network": "unet-fedlppa", "objective": "partial-ce"}
    spec = toy_spec(labels=["faz"], learner=learner, method={"name": name})
    bench = make_bench(spec, make_method(name), spec.federation)
    stays = "head" if name == "fedrep" else "norm"
    sent = sum(
        p.numel() for n, p in bench.network().named_parameters() if n not in bench.groups[stays]
    )
    assert sent / 1e6 == pytest.approx(millions, abs=5e-5)


@pytest.mark.parametrize("name", ["fedbn", "fedap", "fedrep", "metafed", "fedlc"])
def test_there_is_no_model_for_images_of_no_site(name, tmp_path):
    spec = toy_spec(method={"name": name}, rounds=1)
    run_toy(spec, tmp_path / "run")
    bench = make_bench(spec, make_method(name), spec.federation)
    with pytest.raises(UsageError, match="name one with --site"):
        load_models(RunFolder.open(tmp_path / "run"), spec, bench, None)
    (model,) = load_models(RunFolder.open(tmp_path / "run"), spec, bench, "bo")
    assert model.keys() == bench.network().state_dict().keys()
