"""Two-decoder learners: Eqs. 14-17 by hand, groups, places, and what a run file may not ask."""

import dataclasses
import math

import pytest
import torch

from consilia.errors import UsageError
from consilia.networks.fedlppa import Parts
from consilia.testing import toy_spec
from consilia.training.batch import Batch
from consilia.training.dual import DualLearner, FedLPPALearner
from consilia.training.learners import make_learner
from consilia.training.settings import LearnerSettings

FORMS = [
    {"name": "anna", "supervision": "point"},
    {"name": "bo", "supervision": "scribble"},
    {"name": "cleo", "supervision": "box"},
]


def spec_of(**learner):
    return toy_spec(sites=FORMS, learner={"name": "dual", "network": "unet-tiny", **learner})


def dual(**learner):
    spec = spec_of(**learner)
    return make_learner(spec.learner, spec.federation)


def prompted(parts=None):
    return FedLPPALearner.around(dual(), parts or Parts(), 0.5, 0.7)


def batch_of(target, known):
    count, height, width = target.shape
    image = torch.rand(count, 1, height, width)
    return Batch(image, target, None, known, None, torch.arange(count), 1)


def two_outputs(main, aux):
    """Return a learner whose decoders give these probabilities, whatever the image."""

    @dataclasses.dataclass(frozen=True)
    class Fixed(DualLearner.__mro__[1]):
        def both(self, network, image):
            return main.log(), aux.log()

        def build(self):
            raise NotImplementedError

        def groups(self, network):
            raise NotImplementedError

    learner = dual()
    return Fixed(learner.network, learner.objective, learner.plain)


def pixels(*values):
    """Return `(1, 2, 1, n)`: the probability of class 1 at each pixel, and of background."""
    one = torch.tensor(values)
    return torch.stack((1 - one, one))[None, :, None, :]


def test_partial_cross_entropy_of_both_decoders():
    target = torch.tensor([[[1, 1, 0]]])
    known = torch.tensor([[[True, True, False]]])
    batch = batch_of(target, known)
    main, aux = pixels(0.8, 0.7, 0.4), pixels(0.6, 0.9, 0.3)
    learner = dataclasses.replace(two_outputs(main, aux), pseudo=0.0)
    assert learner.loss_of(main.log(), batch).item() == pytest.approx(0.289909, abs=1e-6)
    assert learner.loss(None, batch).item() == pytest.approx(0.299001, abs=1e-6)


def test_a_batch_without_a_marked_pixel_has_only_pseudo_labels():
    batch = batch_of(torch.zeros(1, 1, 3, dtype=torch.long), torch.zeros(1, 1, 3, dtype=torch.bool))
    learner = two_outputs(pixels(0.8, 0.7, 0.4), pixels(0.6, 0.9, 0.3))
    assert dataclasses.replace(learner, pseudo=0.0).loss(None, batch).item() == 0
    assert learner.loss(None, batch).item() > 0


def test_the_gated_crf_of_the_main_decoder_is_added_with_its_weight():
    batch = batch_of(torch.zeros(1, 1, 9, dtype=torch.long), torch.rand(1, 1, 9) < 0.5)
    main, aux = pixels(*torch.rand(9).tolist()), pixels(*torch.rand(9).tolist())
    learner = dataclasses.replace(two_outputs(main, aux), pseudo=0.0)
    p, x = main[0, 1, 0].tolist(), batch.image[0, 0, 0].tolist()
    total = 0.0
    for i in range(9):
        for j in range(max(0, i - 5), min(9, i + 6)):
            kernel = math.exp(-((i - j) ** 2) / 72 - (x[i] - x[j]) ** 2 / 0.02)
            total += (i != j) * kernel * (1 - p[i] * p[j] - (1 - p[i]) * (1 - p[j])) / 9
    without = learner.loss(None, batch).item()
    got = dataclasses.replace(learner, crf=0.3).loss(None, batch).item()
    assert got - without == pytest.approx(0.3 * total, abs=1e-5)
    assert total > 0.1


def test_proposals_come_from_a_mixture_between_seven_tenths_and_one():
    main, aux = pixels(*torch.linspace(0.01, 0.99, 50).tolist()), pixels(*[0.999] * 50)
    batch = batch_of(
        torch.zeros(1, 1, 50, dtype=torch.long), torch.ones(1, 1, 50, dtype=torch.bool)
    )
    learner = dataclasses.replace(two_outputs(main, aux), pseudo=2.0)
    supervised = dataclasses.replace(learner, pseudo=0.0).loss(None, batch)
    for seed in range(5):
        torch.manual_seed(seed)
        got = (learner.loss(None, batch) - supervised).item()
        torch.manual_seed(seed)
        lam = 0.7 + 0.3 * torch.rand(()).item()
        y = [int(lam * p + (1 - lam) * 0.999 > 0.5) for p in main[0, 1, 0].tolist()]
        assert sum(y) > 25  # the auxiliary decoder pulls pixels over one half
        loss = 0.0
        for p in (main[0, 1, 0].tolist(), [0.999] * 50):
            for q, t in ((p, y), ([1 - v for v in p], [1 - v for v in y])):
                above = 2 * sum(a * b for a, b in zip(q, t, strict=True)) + 1e-5
                loss += 1 - above / (sum(a * a for a in q) + sum(t) + 1e-5)
        assert got == pytest.approx(2.0 * loss / 4, abs=1e-4)


def test_the_main_decoder_alone_predicts():
    learner = dual()
    network = learner.build().eval()
    image = torch.rand(2, 1, 16, 16)
    before = learner.probabilities(network, image)
    assert before.shape == (2, 2, 16, 16)
    with torch.no_grad():
        for parameter in network.aux.parameters():
            parameter.fill_(7.0)
    assert torch.equal(learner.probabilities(network, image), before)


def test_the_two_decoders_start_apart():
    state = dual().build().state_dict()
    assert not torch.equal(state["head.weight"], state["aux.head.weight"])


def test_groups_of_the_dual_learner_hold_every_tensor_once():
    learner = dual()
    network = learner.build()
    groups = learner.groups(network)
    assert sorted(n for names in groups.values() for n in names) == sorted(network.state_dict())
    assert set(groups["head"]) == {"head.weight", "head.bias", "aux.head.weight", "aux.head.bias"}
    assert all(len(network.state_dict()[n]) == len(learner.head_rows()) for n in groups["head"])
    above = set(learner.upper(network))
    assert {n.split(".")[0] for n in above} == {"decoder", "head", "aux"}
    assert {n for n in network.state_dict() if not n.startswith("encoder.")} == above


def test_groups_of_fedlppa_are_those_that_travel_apart():
    learner = prompted()
    network = learner.build()
    groups = learner.groups(network)
    assert sorted(n for names in groups.values() for n in names) == sorted(network.state_dict())
    starts = {g: {n.split(".")[0] for n in names} for g, names in groups.items()}
    assert starts == {
        "shared": {"encoder", "fusion"},
        "main": {"decoder", "head", "mlp"},
        "aux": {"aux"},
    }
    main = {n for n in groups["main"] if not n.startswith("mlp.")}
    assert {n.removeprefix("aux.") for n in groups["aux"]} == main


def test_a_place_is_a_row_and_a_sparsity_and_nowhere_is_their_mean():
    learner, federation = prompted(), spec_of().federation
    network = learner.build()
    prompts = network.fusion.prompts
    levels = {"anna": [1.0, 0, 0], "bo": [0.0, 1, 0], "cleo": [0.0, 0, 1]}
    for row, site in enumerate(("anna", "bo", "cleo")):
        learner.place(network, federation, site)
        assert torch.equal(prompts()[1], prompts.distribution[row])
        assert prompts()[2:, 0, 0].tolist() == levels[site]
    learner.place(network, federation, "common")
    torch.testing.assert_close(prompts()[1], prompts.distribution.mean(0))
    assert prompts()[2:, 0, 0].tolist() == pytest.approx([1 / 3] * 3)
    bare = prompted(Parts(fusion=False))
    bare.place(bare.build(), federation, "anna")  # nothing to place


def test_one_decoder_learns_by_partial_cross_entropy_alone():
    learner = prompted(Parts(auxiliary=False))
    network = learner.build().eval()
    batch = batch_of(torch.randint(0, 2, (2, 16, 16)), torch.rand(2, 16, 16) < 0.3)
    wanted = learner.loss_of(learner.logits(network, batch.image), batch)
    assert torch.equal(learner.loss(network, batch), wanted)


def test_what_does_not_fit_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match=r"learner.objective is 'dice'; leave it out"):
        dual(objective="dice")
    federation = toy_spec("multi-label").federation
    with pytest.raises(UsageError, match=r"'dual' has two decoders and segments"):
        make_learner(LearnerSettings(name="dual"), federation)
    with pytest.raises(UsageError, match=r"no learner named 'duel'; did you mean 'dual'\?"):
        make_learner(LearnerSettings(name="duel"), federation)
