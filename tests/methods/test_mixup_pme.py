"""MixUp-PME and IML, trained in one place, against a second, plain implementation."""

import pytest
import torch
import torch.nn.functional as F

from consilia.methods import METHODS, make_method
from consilia.testing import run_toy, toy_spec
from consilia.training.seeds import generator
from tests.methods.plain_labels import close, federate, parts_of, spec_of, supervised
from tests.methods.support import assert_same_state, server_weights


def plain_mixup(spec, least, predicted, merged):
    def begin(name, number, part, world, own):
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
                    a, b = (y[k, c] if known[k, c] else guess[k, c] for k in (i, j))
                    t = share * a + (1 - share) * b
                    terms.append(t * F.softplus(-scores[i, c]) + (1 - t) * F.softplus(scores[i, c]))
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
    from consilia.training.batch import Batch

    batch = Batch(
        torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.tensor([[True, False], [True, True]]),
        None,
        None,
        torch.arange(2),
        2,
    )
    found = method.blend(batch, torch.tensor([1, 0]), 0.8, site=None)
    torch.testing.assert_close(found.image[:, 0, 0, 0], torch.tensor([0.2, 0.8]))
    # first row: 0.8·1 + 0.2·0 and 0.8·½ + 0.2·1; second: 0.8·0 + 0.2·1 and 0.8·1 + 0.2·½
    torch.testing.assert_close(found.target, torch.tensor([[0.8, 0.6], [0.2, 0.9]]))
    assert found.known_labels.tolist() == [[True, False], [True, True]]


def test_they_are_pooled_and_mixup_refuses_what_it_does_not_define():
    for name in ("iml", "central-fixmatch", "mixup-pme"):
        assert METHODS[name].method.data == "pooled"
    assert "exclusive" in make_method("mixup-pme").unmet(toy_spec("single-label").federation)
    assert "segmentation" in make_method("mixup-pme").unmet(toy_spec().federation)
