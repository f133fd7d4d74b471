"""FedLC against a second, plain implementation; the head never leaves."""

import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method, why_not
from consilia.testing import run_toy, toy_spec
from consilia.training.learners import make_learner
from consilia.training.selection import SelectionLearner
from tests.methods.plain_personal import SPARSE, Plain, at_server, close, kept, spec_of, uneven
from tests.methods.support import assert_same_state, ledger_fields


class Selecting(Plain):
    """A network that selects channels, run layer by layer."""

    def __init__(self, spec, sites):
        inner = make_learner(spec.learner, spec.federation)
        super().__init__(spec, sites, SelectionLearner.around(inner))
        self.names = sorted(sites)

    def heat(self, x, site):
        """Return the weights of the bottleneck's channels as one site has them."""
        embed, weigh = (getattr(self.net.encoder.selection, part) for part in ("embed", "weigh"))
        e = torch.zeros(len(x), len(self.names))
        e[:, self.names.index(site)] = 1
        e = embed[2](embed[1](embed[0](e)))
        mean, most = x.flatten(2).mean(2), x.flatten(2).max(2).values
        return torch.sigmoid(weigh(torch.cat((mean, e), 1)) + weigh(torch.cat((most, e), 1)))

    def separated(self, site, alpha):
        def loss(batch):
            *skips, x = self.net.encoder.plain(batch.image)
            h = self.heat(x, site)
            y = self.net.decoder([*skips, x * h[:, :, None, None] + x])
            task = self.learner.loss_of(self.net.head(y), batch)
            apart = 0
            for other in self.names:
                if other != site:
                    with torch.no_grad():
                        theirs = self.heat(x, other)
                    apart = apart + ((h - theirs) ** 2).mean() / (len(self.names) - 1)
            return task - alpha * apart

        return loss


def plain_run(spec, sites, alpha=0.1, part=0.6, shared=False):
    """Head, then body with the separation; the body is averaged, the head stays or is averaged too."""
    plain = Selecting(spec, sites)
    head = {"head.weight", "head.bias"}
    world = {k: v for k, v in plain.start.items() if k not in head}
    own = {name: {k: plain.start[k] for k in head} for name in plain.cases}
    for number in range(1, spec.rounds + 1):
        sent = {}
        for name in plain.cases:
            plain.net.load_state_dict({**world, **own[name]})
            loss, first = plain.separated(name, alpha), round(part * plain.steps(name))
            plain.train(name, number, loss, names=head, steps=first, purpose="head")
            rest = plain.steps(name) - first
            plain.train(name, number, loss, names=set(world), steps=rest, purpose="body")
            sent[name] = plain.state()
            own[name] = {k: sent[name][k] for k in head}
        world = plain.average(sent, world)
        if shared:
            own = dict.fromkeys(own, plain.average(sent, head))
    return world, own


def test_fedlc_is_its_algorithm(tmp_path):
    changes = {"training": {"steps": 5}, "learner": {"objective": "partial-ce"}}
    spec = spec_of("fedlc", settings={"alpha": 0.7}, sites=SPARSE, **changes)
    run_toy(spec, tmp_path / "run", uneven(spec))
    world, own = plain_run(spec, uneven(spec), alpha=0.7)
    found = at_server(tmp_path / "run")
    close({name: found[name] for name in world}, world)
    for site in own:
        close(kept(tmp_path / "run", site, "own"), own[site])


def test_a_shared_head_is_averaged_with_the_rest_and_nothing_stays(tmp_path):
    changes = {"training": {"steps": 5}, "learner": {"objective": "partial-ce"}}
    spec = spec_of("fedlc", settings={"head": "shared"}, sites=SPARSE, **changes)
    run_toy(spec, tmp_path / "run", uneven(spec))
    world, own = plain_run(spec, uneven(spec), shared=True)
    close(at_server(tmp_path / "run"), {**world, **own["anna"]})
    assert kept(tmp_path / "run", "bo", "own") == {}
    fields = {("Whole", "weights"), ("Whole", "images"), ("Whole", "loss")}
    assert ledger_fields(tmp_path / "run", "up", "train") == fields
    assert ledger_fields(tmp_path / "run", "down", "train") == {("Welcome", "weights")}


def test_each_sites_embedding_is_trained_by_that_site_alone(tmp_path):
    spec = spec_of("fedlc", rounds=1, participation={"absent": {"cleo": [1]}})
    run_toy(spec, tmp_path / "run")
    start = make_bench(spec, make_method("fedlc"), spec.federation).start()
    name = "encoder.selection.embed.0.weight"
    moved = (at_server(tmp_path / "run")[name] - start[name]).abs().sum(0)
    assert moved[0] > 0
    assert moved[1] > 0
    decay = spec.training.weight_decay * spec.training.learning_rate
    assert moved[2] < 20 * decay * start[name][:, 2].abs().sum()  # weight decay alone


def test_the_head_never_leaves_and_the_selection_does(tmp_path):
    spec = spec_of("fedlc")
    run_toy(spec, tmp_path / "run")
    fields = {("Up", "weights"), ("Up", "images"), ("Up", "loss")}
    assert ledger_fields(tmp_path / "run", "up", "train") == fields
    assert set(kept(tmp_path / "run", "bo", "own")) == {"head.weight", "head.bias"}
    start = make_bench(spec, make_method("fedlc"), spec.federation).start()
    found = at_server(tmp_path / "run")
    assert torch.equal(found["head.weight"], start["head.weight"])
    name = "encoder.selection.weigh.0.weight"
    assert not torch.equal(found[name], start[name])


def test_a_site_keeps_its_head_while_it_is_away(tmp_path):
    run_toy(spec_of("fedlc", rounds=1), tmp_path / "one")
    away = spec_of("fedlc", rounds=3, participation={"absent": {"anna": [2, 3]}})
    run_toy(away, tmp_path / "three")
    assert_same_state(
        kept(tmp_path / "one", "anna", "own"), kept(tmp_path / "three", "anna", "own")
    )


def test_it_runs_with_two_decoders_and_refuses_classification(tmp_path):
    run_toy(spec_of("fedlc", learner={"name": "dual"}, rounds=2), tmp_path / "run")
    assert len(kept(tmp_path / "run", "anna", "own")) == 4
    assert "U-Net" in why_not("fedlc", toy_spec("multi-label").federation)
