"""FedICRA against a second, plain implementation: its whole loss, its two turns and its mixing."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from consilia.methods import make_method, why_not
from consilia.testing import run_toy, toy_spec
from consilia.training.batch import orders
from consilia.training.learners import make_learner
from consilia.training.seeds import generator, seeded
from consilia.training.selection import SelectionLearner
from tests.methods.plain_personal import SPARSE, Plain, at_server, close, kept, spec_of, uneven
from tests.methods.support import assert_same_state, ledger_fields, server_weights
from tests.methods.test_fedlc import Selecting
from tests.ops.test_crf import looped


def path_average(x, guide):
    """Average every pixel over all others by the length of the path between them, with a gradient."""
    c, h, w = x.shape
    pixel = np.arange(h * w).reshape(h, w)
    first = np.concatenate((pixel[:-1].ravel(), pixel[:, :-1].ravel()))
    second = np.concatenate((pixel[1:].ravel(), pixel[:, 1:].ravel()))
    flat = guide.flatten(1)
    cost = ((flat[:, first] - flat[:, second]) ** 2).sum(0)
    rank = np.empty(len(first))
    rank[np.argsort(cost.detach().numpy(), kind="stable")] = np.arange(1, len(first) + 1)
    graph = coo_matrix((rank, (first, second)), shape=(h * w, h * w))
    tree = minimum_spanning_tree(graph.tocsr()).tocoo()
    at = {(i, j): e for e, (i, j) in enumerate(zip(first, second, strict=True))}
    edges = [at[pair] for pair in zip(tree.row, tree.col, strict=True)]
    order, parent = breadth_first_order(tree.tocsr(), 0, directed=False)
    passed = torch.zeros(h * w, len(edges))  # the edges between the root and each pixel
    place = {edge: column for column, edge in enumerate(edges)}
    for i in order[1:]:
        pair = (min(i, parent[i]), max(i, parent[i]))
        passed[i] = passed[parent[i]]
        passed[i, place[at[pair]]] = 1
    far = passed @ cost[edges]
    shared = (passed * cost[edges]) @ passed.T  # the way that two pixels have in common
    weight = torch.exp(2 * shared - far[:, None] - far)
    return (x.flatten(1) @ weight.T / weight.sum(1)).reshape(c, h, w)


class Structured(Selecting):
    """The network of FedICRA, and its loss written out."""

    def __init__(self, spec, sites):
        inner = make_learner(spec.learner, spec.federation)
        Plain.__init__(self, spec, sites, SelectionLearner.around(inner, 512))
        self.names = sorted(sites)

    def structured(self, site, alpha, tree, crf):
        def loss(batch):
            *skips, x = self.net.encoder.plain(batch.image)
            h = self.heat(x, site)
            y, levels = x * h[:, :, None, None] + x, []
            for up, skip in zip(self.net.decoder.ups, skips[::-1], strict=True):
                y = up(y, skip)
                levels.append(y)
            logits = self.net.head(y)
            total = self.learner.loss_of(logits, batch)
            for other in self.names:
                if other != site:
                    with torch.no_grad():
                        theirs = self.heat(x, other)
                    gap = ((h - theirs) ** 2).mean()
                    total = total - alpha * gap / (len(self.names) - 1)
            p = logits.softmax(1)
            maps = [side(level) for side, level in zip(self.net.sides, levels[-3:], strict=True)]
            energy = 0
            for i in range(len(p)):
                low = batch.image[i].repeat(3, 1, 1) / 0.02**0.5
                smooth = path_average(p[i], low)
                for scores in maps:
                    large = F.interpolate(scores, p.shape[-2:], mode="bilinear")[i]
                    smooth = path_average(smooth, large)
                energy = energy + ((p[i] - smooth).abs().sum(0) * ~batch.known_pixels[i]).sum()
            total = total + tree * energy / (~batch.known_pixels).sum()
            return total + crf * self.crf(p, batch.image)

        return loss

    @staticmethod
    def crf(p, image):
        b, _, h, w = p.shape
        total = 0
        for y in range(h):
            for x in range(w):
                v = torch.arange(max(0, y - 5), min(h, y + 6))
                u = torch.arange(max(0, x - 5), min(w, x + 6))
                far = ((v - y) ** 2)[:, None] + (u - x) ** 2
                there, look = p[:, :, v][..., u], image[:, :, v][..., u]
                unlike = ((look - image[:, :, y, x][..., None, None]) ** 2).sum(1)
                kernel = torch.exp(-far / 72 - unlike / 0.02) * (far > 0)
                agree = (there * p[:, :, y, x][..., None, None]).sum(1)
                total = total + (kernel * (1 - agree)).sum()
        return total / (b * h * w)


def test_the_plain_crf_of_this_file_is_the_double_loop():
    p, image = torch.rand(1, 2, 3, 7).softmax(1), torch.rand(1, 1, 3, 7)
    expected = looped(p.double().numpy(), image.double().numpy(), 6.0, 0.1, 5)
    assert Structured.crf(p, image).item() == pytest.approx(expected, rel=1e-4)


def plain_run(spec, sites, *, alpha=1.0, tree=0.1, crf=0.1, part=0.4, longest=20):
    """Mix decoder and head as FedALA does, train head then rest with the whole loss, average all."""
    plain = Structured(spec, sites)
    head = {"head.weight", "head.bias"}
    rest = set(plain.start) - head
    upper = [n for n, _ in plain.net.named_parameters() if n.startswith(("decoder.", "head."))]
    world, own, follow = plain.start, {}, {}
    for number in range(1, spec.rounds + 1):
        sent = {}
        for name, cases in plain.cases.items():
            plain.net.load_state_dict(world)
            plain.net.encoder.selection.place(torch.eye(3)[plain.names.index(name)])
            if name in own:
                follow[name] = w = {n: torch.ones_like(world[n]) for n in upper}
                randoms = generator(spec.seed, name, number, "shares")
                parameters = dict(plain.net.named_parameters())
                plain.net.train()
                with seeded(spec.seed, name, number, "shares"):
                    for _ in range(longest):
                        for index in orders(len(cases), spec.training.batch, 1, None, randoms):
                            torch.rand(3, len(index), generator=randoms)
                            plain.net.zero_grad()
                            plain.task(cases.cut(index)).backward()
                            for n in upper:
                                gap = world[n] - own[name][n]
                                w[n] = (w[n] - parameters[n].grad * gap).clamp(0, 1)
                            mixed = {
                                n: own[name][n] + (world[n] - own[name][n]) * w[n] for n in upper
                            }
                            plain.net.load_state_dict({**world, **mixed})
            loss = plain.structured(name, alpha, tree, crf)
            first = max(1, round(part * plain.steps(name)))
            plain.train(name, number, loss, names=head, steps=first, purpose="head")
            count = plain.steps(name) - first
            plain.train(name, number, loss, names=rest, steps=count, purpose="body")
            sent[name] = own[name] = plain.state()
        world = plain.average(sent, world)
    return world, follow, own


def spec_for(steps=2, **changes):
    training = {"steps": steps, "batch": 2}
    learner = {"objective": "partial-ce"}
    return spec_of("fedicra", sites=SPARSE, training=training, learner=learner, **changes)


def test_fedicra_is_its_algorithm(tmp_path):
    settings = {"alpha": 0.5, "tree": 0.4, "crf": 0.3, "longest": 2}
    spec = spec_for(rounds=2, settings=settings)
    data = uneven(spec)
    run_toy(spec, tmp_path / "run", data)
    world, follow, own = plain_run(spec, data, **settings)
    found = at_server(tmp_path / "run")
    floats = {n for n in world if found[n].is_floating_point()}
    close({n: found[n] for n in floats}, {n: world[n] for n in floats}, rtol=2e-3, atol=2e-5)
    for site in own:
        close(kept(tmp_path / "run", site, "follow"), follow[site], rtol=1e-3, atol=1e-4)
    moved = [np.abs(1 - value.numpy()).max() for value in follow["anna"].values()]
    assert max(moved) > 0


def test_the_head_trains_for_two_of_five_steps(tmp_path):
    spec = spec_for(steps=5, rounds=1)
    data = uneven(spec)
    run_toy(spec, tmp_path / "run", data)
    world, _, _ = plain_run(spec, data)
    found = at_server(tmp_path / "run")
    floats = {n for n in world if found[n].is_floating_point()}
    close({n: found[n] for n in floats}, {n: world[n] for n in floats}, rtol=2e-3, atol=2e-5)


def test_every_part_of_the_loss_counts(tmp_path):
    found = {}
    for off in ("nothing", "alpha", "tree", "crf"):
        settings = {} if off == "nothing" else {off: 0.0}
        run_toy(spec_for(rounds=1, settings=settings), tmp_path / off)
        found[off] = server_weights(tmp_path / off)["encoder.selection.weigh.0.weight"]
    for off in ("alpha", "tree", "crf"):
        assert not torch.equal(found["nothing"], found[off]), off


def test_with_full_masks_nothing_is_unknown_and_the_tree_is_silent(tmp_path):
    for tree in (0.0, 5.0):
        spec = spec_of("fedicra", settings={"tree": tree}, rounds=1)
        run_toy(spec, tmp_path / str(tree))
    assert_same_state(*(server_weights(tmp_path / str(tree)) for tree in (0.0, 5.0)))


def test_side_heads_learn_from_the_tree_alone(tmp_path):
    spec = spec_for(rounds=1)
    run_toy(spec, tmp_path / "on")
    run_toy(spec_for(rounds=1, settings={"tree": 0.0}), tmp_path / "off")
    on, off = (server_weights(tmp_path / part)["sides.0.4.weight"] for part in ("on", "off"))
    assert (on - off).abs().max() > 0


def test_w_stays_and_a_site_keeps_it_while_it_is_away(tmp_path):
    for path, rounds, away in (("short", 2, []), ("long", 3, [3])):
        spec = spec_for(
            rounds=rounds, settings={"longest": 1}, participation={"absent": {"anna": away}}
        )
        run_toy(spec, tmp_path / path)
    for field in ("follow", "own"):
        one, two = (kept(tmp_path / path, "anna", field) for path in ("short", "long"))
        assert_same_state(one, two)
    fields = {("Up", name) for name in ("weights", "images", "loss")}
    assert ledger_fields(tmp_path / "long", "up", "train") == fields


def test_classification_is_refused():
    assert "classification" in why_not("fedicra", toy_spec("single-label").federation)


def test_u_net_and_side_heads_have_the_2_3372_million_parameters_of_table_ix():
    learner = {"network": "unet-fedlppa", "objective": "partial-ce"}
    spec = toy_spec(sites=SPARSE, labels=["faz"], learner=learner)
    method = make_method("fedicra")
    network = method.learner(make_learner(spec.learner, spec.federation)).build()
    del network.encoder.selection  # which the table leaves out
    assert sum(p.numel() for p in network.parameters()) == 2_337_250


@pytest.mark.parametrize(
    ("method", "defaults"),  # METHODS 3.5 and 3.8; what they leave open: the authors' code
    [
        ("fedicra", {"alpha": 1, "tree": 0.1, "crf": 0.1, "side": 512, "head_part": 0.4}),
        ("fedlc", {"alpha": 0.1, "head_part": 0.6}),
        ("fedap", {"momentum": 0.5, "warmup": 15}),
        ("metafed", {"lam": 0.5, "threshold": 0.6, "common": 40}),
        ("fedala", {"eta": 1, "steady": 0.1, "portion": 0.8}),
        ("fedlppa", {"pseudo": 0.5, "least_main": 0.7, "crf": 0, "eta": 1, "la_batches": 2}),
    ],
)
def test_defaults_of_the_personalised_methods(method, defaults):
    made = make_method(method)
    assert {name: getattr(made, name) for name in defaults} == defaults
