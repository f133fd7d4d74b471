"""The learner with channel selection: built around any segmentation learner, told whose images come."""

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.testing import toy_spec
from consilia.training.learners import make_learner
from consilia.training.seeds import seeded
from consilia.training.selection import SelectionLearner, every_class, selection_of

FIVE = [{"name": name, "supervision": "scribble"} for name in "abcde"]


def bench_of(method, learner=None, **changes):
    spec = toy_spec(method={"name": method}, learner=learner or {}, **changes)
    return make_bench(spec, make_method(method), spec.federation)


@pytest.mark.parametrize(("method", "millions"), [("fedlc", 1.892578), ("fedicra", 2.416354)])
def test_parameters_in_the_faz_setting(method, millions):
    """79,104 more than the paper's U-Nets for the selection; FedLC without the paper's unused side head."""
    learner = {"network": "unet-fedlppa", "objective": "partial-ce"}
    network = bench_of(method, learner, sites=FIVE, labels=["faz"]).network()
    assert sum(p.numel() for p in network.parameters()) / 1e6 == millions


@pytest.mark.parametrize("name", ["plain", "dual"])
def test_the_inner_network_starts_as_it_would_alone(name):
    spec = toy_spec(learner={"name": name})
    inner = make_learner(spec.learner, spec.federation)
    states = []
    for learner in (inner, SelectionLearner.around(inner, 512)):
        with seeded(0, "network", "main"):
            states.append(learner.build().state_dict())
    alone, inside = states
    for key, value in alone.items():
        assert torch.equal(value, inside[key.replace("encoder.", "encoder.plain.", 1)])


def test_a_bench_tells_the_network_its_site():
    bench = bench_of("fedlc")
    x = torch.rand(2, 1, 16, 16)
    answers = {}
    for site in ("anna", "bo", "anna"):
        bench.enter(site)
        bench.network().eval()
        with torch.no_grad():
            answers.setdefault(site, []).append(bench.learner.logits(bench.network(), x))
    assert torch.equal(*answers["anna"])
    assert not torch.equal(answers["anna"][0], answers["bo"][0])
    assert selection_of(bench.network()).here.tolist() == [1, 0, 0]


def test_images_of_no_site_get_the_mean_of_all_whoever_came_before():
    for method in ("fedlc", "fedicra"):
        bench = bench_of(method)
        bench.enter("bo")
        bench.enter("common")
        torch.testing.assert_close(selection_of(bench.network()).here, torch.full((3,), 1 / 3))


def test_whose_images_come_lies_where_the_network_lies_and_is_never_sent():
    network = bench_of("fedlc").network().to("meta")
    assert selection_of(network).here.is_meta
    assert not any(name.endswith("here") for name in network.state_dict())


def test_features_are_of_images_as_the_inner_learner_prepares_them():
    learner = {"normalise": "instance"}
    bench, x = bench_of("fedlc", learner), torch.rand(2, 1, 16, 16)
    network = bench.network().eval()
    with torch.no_grad():
        plain, stretched = (bench.learner.embed(network, image) for image in (x, 0.2 + 0.5 * x))
    torch.testing.assert_close(plain, stretched, rtol=1e-3, atol=1e-4)


def test_groups_hold_every_tensor_once_and_the_head_alone():
    for name in ("plain", "dual"):
        bench = bench_of("fedicra", {"name": name})
        names = [n for group in bench.groups.values() for n in group]
        assert sorted(names) == sorted(bench.network().state_dict())
        assert all("head." in n for n in bench.groups["head"])
        upper = bench.learner.upper(bench.network())
        assert not any(n.startswith(("encoder.", "sides.")) for n in upper)


def test_all_classes_sum_to_one():
    p = torch.tensor([[0.2, 0.3], [0.9, 0.6]])[:, :, None, None]
    whole = every_class(p)[:, :, 0, 0]
    torch.testing.assert_close(whole, torch.tensor([[0.5, 0.2, 0.3], [0.0, 0.6, 0.4]]))
