"""FedRep against a second, plain implementation; the head never leaves."""

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.testing import run_toy
from tests.methods.plain_personal import Plain, at_server, close, kept, spec_of, uneven
from tests.methods.support import assert_same_state, ledger_fields


def plain_run(spec, sites, part=0.4):
    """Train the head, then the body; average the body."""
    plain = Plain(spec, sites)
    head = {"head.weight", "head.bias"}
    body = {k for k in plain.start if k not in head}
    world = {k: plain.start[k] for k in body}
    own = {name: {k: plain.start[k] for k in head} for name in plain.cases}
    for number in range(1, spec.rounds + 1):
        sent = {}
        for name in plain.cases:
            plain.net.load_state_dict({**world, **own[name]})
            first = max(1, round(part * plain.steps(name)))
            plain.train(name, number, names=head, steps=first, purpose="head")
            rest = max(1, plain.steps(name) - first)
            plain.train(name, number, names=body, steps=rest, purpose="body")
            sent[name] = plain.state()
            own[name] = {k: sent[name][k] for k in head}
        world = plain.average(sent, world)
    return world, own


@pytest.mark.parametrize(
    ("task", "training"), [("segmentation", {"steps": 5}), ("multi-label", {"epochs": 2})]
)
def test_fedrep_is_its_algorithm(task, training, tmp_path):
    spec = spec_of("fedrep", task, training=training)
    run_toy(spec, tmp_path / "run", uneven(spec))
    world, own = plain_run(spec, uneven(spec))
    found = at_server(tmp_path / "run")
    for name in world:
        if found[name].is_floating_point():
            torch.testing.assert_close(found[name], world[name], rtol=2e-4, atol=2e-6)
    for site in own:
        close(kept(tmp_path / "run", site, "own"), own[site])


def test_momentum_is_sgd_with_momentum(tmp_path):
    spec = spec_of("fedrep", settings={"momentum": 0.9}, training={"optimizer": "adam"})
    run_toy(spec, tmp_path / "run", uneven(spec))
    same = spec_of("fedrep", training={"momentum": 0.9})
    world, _ = plain_run(same, uneven(same))
    found = at_server(tmp_path / "run")
    close({name: found[name] for name in world}, world)


def test_a_body_that_is_never_trained_stays_and_a_head_that_is_never_trained_too(tmp_path):
    run_toy(spec_of("fedrep", settings={"head_part": 1.0}), tmp_path / "head")
    spec = spec_of("fedrep", settings={"head_part": 0.0})
    run_toy(spec, tmp_path / "body")
    start = make_bench(spec, make_method("fedrep"), spec.federation).start()
    for name, value in at_server(tmp_path / "head").items():
        torch.testing.assert_close(value, start[name], rtol=1e-6, atol=1e-7)
    for name, value in kept(tmp_path / "body", "bo", "own").items():
        assert torch.equal(value, start[name])


def test_the_head_never_leaves(tmp_path):
    spec = spec_of("fedrep")
    run_toy(spec, tmp_path / "run")
    fields = {("Up", "weights"), ("Up", "images"), ("Up", "loss")}
    assert ledger_fields(tmp_path / "run", "up", "train") == fields
    start = make_bench(spec, make_method("fedrep"), spec.federation).start()
    assert torch.equal(at_server(tmp_path / "run")["head.weight"], start["head.weight"])
    heads = [kept(tmp_path / "run", site, "own")["head.weight"] for site in ("anna", "bo")]
    assert not torch.equal(*heads)


def test_both_heads_of_two_decoders_stay(tmp_path):
    run_toy(spec_of("fedrep", learner={"name": "dual"}, rounds=2), tmp_path / "run")
    names = set(kept(tmp_path / "run", "anna", "own"))
    assert names == {"head.weight", "head.bias", "aux.head.weight", "aux.head.bias"}


def test_a_site_keeps_its_head_while_it_is_away(tmp_path):
    run_toy(spec_of("fedrep", rounds=1), tmp_path / "one")
    away = spec_of("fedrep", rounds=3, participation={"absent": {"anna": [2, 3]}})
    run_toy(away, tmp_path / "three")
    assert_same_state(
        kept(tmp_path / "one", "anna", "own"), kept(tmp_path / "three", "anna", "own")
    )
