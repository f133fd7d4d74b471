"""MixUp-PME and IML, trained in one place, against a second, plain implementation."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from consilia.methods import METHODS, make_method
from consilia.ops.losses import ClassWeights, masked_mass_bce
from consilia.testing import run_toy, toy_spec
from consilia.training.batch import Batch
from consilia.training.seeds import generator
from tests.methods.plain_labels import close, federate, parts_of, spec_of, supervised
from tests.methods.support import assert_same_state, server_weights


def plain_mixup(spec, least, predicted, merged, weighted="none"):
    def begin(name, number, part, world, own):
        weight = [1.0] * part.y.shape[1]
        for c in range(part.y.shape[1]) if weighted != "none" else ():
            told = [float(part.y[i, c]) for i in range(len(part.x)) if part.known[i, c]]
            if 0 < sum(told) < len(told):
                weight[c] = (len(told) - sum(told)) / sum(told)
        randoms = generator(spec.seed, name, number, "partners")

        def loss(net, index, part):
            x, y, known = part.x[index], part.y[index], part.known[index]
            other = torch.randperm(len(x), generator=randoms)
            share = least + (1 - least) * torch.rand((), generator=randoms)
            guess = torch.full_like(y, 0.5)
            if predicted:
                net.eval()
                guess = net(x).detach().sigmoid()
                net.train()
            scores = net(torch.stack([share * x[i] + (1 - share) * x[j] for i, j in pairs(other)]))
            terms = []
            for i, j in pairs(other):
                for c in range(y.shape[1]):
                    if not (known[i, c] or (merged and known[j, c])):
                        continue
                    term = 0.0
                    for k, part_of in ((i, share), (j, 1 - share)):  # a blend of two losses
                        t = y[k, c] if known[k, c] else guess[k, c]
                        w = weight[c] if known[k, c] else 1.0
                        yes, no = F.softplus(-scores[i, c]), F.softplus(scores[i, c])
                        v = w if weighted == "entry" else 1.0
                        term = term + part_of * (w * t * yes + v * (1 - t) * no)
                    terms.append(term)
            return torch.stack(terms).mean()

        return loss, list(range(len(part.x)))

    return federate(spec, parts_of(spec, pooled=True), begin)[0]


def pairs(other):
    return list(enumerate(other.tolist()))


@pytest.mark.parametrize("missing", ["half", "predicted"])
@pytest.mark.parametrize("merged", [False, True])
def test_it_is_its_algorithm(missing, merged, tmp_path):
    settings = {"least": 0.6, "missing": missing, "merged": merged}
    spec = spec_of("mixup-pme", settings=settings)
    run_toy(spec, tmp_path / "run")
    expected = plain_mixup(spec, 0.6, missing == "predicted", merged)
    close(server_weights(tmp_path / "run"), expected)


@pytest.mark.parametrize("missing", ["half", "predicted"])
@pytest.mark.parametrize("weighs", ["positive", "entry"])
def test_labels_are_weighed_and_what_stands_for_a_missing_one_is_not(weighs, missing, tmp_path):
    learner = {"class_weight": weighs, "network": "cnn-small"}
    settings = {"least": 0.6, "missing": missing, "merged": True}
    spec = spec_of("mixup-pme", settings=settings, learner=learner, rounds=1)  # bits drift apart
    run_toy(spec, tmp_path / "run")
    predicted = missing == "predicted"
    close(server_weights(tmp_path / "run"), plain_mixup(spec, 0.6, predicted, True, weighs))
    light = plain_mixup(spec, 0.6, predicted, merged=True)
    assert not torch.allclose(server_weights(tmp_path / "run")["head.bias"], light["head.bias"])


def test_without_blending_it_is_iml_to_the_bit(tmp_path):
    run_toy(spec_of("iml"), tmp_path / "iml")
    run_toy(spec_of("mixup-pme", settings={"least": 1.0}), tmp_path / "mixup")
    assert_same_state(server_weights(tmp_path / "iml"), server_weights(tmp_path / "mixup"))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_iml_reads_known_labels_only(task, tmp_path):
    spec = spec_of("iml", task)
    run_toy(spec, tmp_path / "run")
    exclusive = task == "single-label"

    def begin(name, number, part, world, own):
        def loss(net, index, part):
            y, known = part.y[index], part.known[index]
            return supervised(net(part.x[index]), y, known, exclusive)

        return loss, part.labeled if exclusive else list(range(len(part.x)))

    close(server_weights(tmp_path / "run"), federate(spec, parts_of(spec, pooled=True), begin)[0])


def test_numbers_of_a_blend():
    method = make_method("mixup-pme")
    known = torch.tensor([[True, False], [True, True]])
    batch = Batch(
        torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        known,
        None,
        None,
        torch.arange(2),
        2,
    )
    plain = method.masses(batch, known, SimpleNamespace(class_weights=ClassWeights()))
    torch.testing.assert_close(plain[0], torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    torch.testing.assert_close(plain[1], torch.tensor([[0.0, 0.5], [1.0, 0.0]]))
    weight = torch.tensor([3.0, 4.0])
    heavy = method.masses(batch, known, SimpleNamespace(class_weights=ClassWeights(weight)))
    torch.testing.assert_close(heavy[0], torch.tensor([[3.0, 0.5], [0.0, 4.0]]))
    torch.testing.assert_close(heavy[1], plain[1])
    whole = ClassWeights(entry=weight)
    heavy = method.masses(batch, known, SimpleNamespace(class_weights=whole))
    torch.testing.assert_close(heavy[0], torch.tensor([[3.0, 0.5], [0.0, 4.0]]))
    torch.testing.assert_close(heavy[1], torch.tensor([[0.0, 0.5], [3.0, 0.0]]))


def test_one_half_says_least_whatever_positives_weigh():
    """Its loss has no slope where the network is undecided; weighed by 4 it would ask for 0.8."""
    half = torch.full((1, 1), 0.5)
    for score, sign in ((0.0, 0), (1.0, 1), (-1.0, -1)):
        scores = torch.tensor([[score]], requires_grad=True)
        masked_mass_bce(scores, half, 1 - half, torch.ones(1, 1, dtype=torch.bool)).backward()
        assert scores.grad.sign().item() == sign


def test_they_are_pooled_and_mixup_refuses_what_it_does_not_define():
    for name in ("iml", "central-fixmatch", "mixup-pme"):
        assert METHODS[name].method.data == "pooled"
    assert "exclusive" in make_method("mixup-pme").unmet(toy_spec("single-label").federation)
    assert "segmentation" in make_method("mixup-pme").unmet(toy_spec().federation)
