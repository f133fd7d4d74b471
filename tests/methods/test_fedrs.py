"""FedRS against a second, plain implementation, and its limit cases."""

import pytest
import torch

from consilia.methods import make_method
from consilia.ops.restrict import restriction
from consilia.testing import run_toy, toy_spec
from tests.methods.plain_labels import close, federate, parts_of, spec_of, supervised
from tests.methods.support import assert_same_state, server_weights


def plain_fedrs(spec, alpha, graded=False):
    """FedAvg whose scores of missing labels are scaled before the loss."""
    exclusive = spec.federation.exclusive

    def begin(name, number, part, world, own):
        scale = []
        shown = [float(part.y[:, c].sum()) for c in range(part.y.shape[1])]
        for c, marked in enumerate(part.marks.tolist()):
            present = shown[c] > 0 if exclusive else marked
            scale.append(1.0 if present else alpha)
            if graded:
                scale[c] = (1 - alpha) * shown[c] / max(shown) + alpha

        def loss(net, index, part):
            scores = torch.stack([net(part.x[index])[:, c] * s for c, s in enumerate(scale)], 1)
            everything = torch.ones_like(part.known[index])  # unknown counts as absent
            return supervised(scores, part.y[index], everything, exclusive)

        return loss, part.labeled if exclusive else list(range(len(part.x)))

    # One forward per label above would move batch statistics thrice: take one instead.
    def once(name, number, part, world, own):
        loss, used = begin(name, number, part, world, own)

        def single(net, index, part):
            scores = net(part.x[index])
            return loss(lambda x: scores, index, part)

        return single, used

    return federate(spec, parts_of(spec), once)[0]


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("present", ["seen", "share"])
def test_it_is_its_algorithm(task, present, tmp_path):
    spec = spec_of("fedrs", task, {"alpha": 0.3, "present": present})
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fedrs(spec, 0.3, present == "share"))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_without_restriction_it_is_fedavg_to_the_bit(task, tmp_path):
    run_toy(spec_of("fedavg", task), tmp_path / "fedavg")
    run_toy(spec_of("fedrs", task, {"alpha": 1.0}), tmp_path / "fedrs")
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / "fedrs"))


def test_where_nothing_is_missing_it_is_fedavg_to_the_bit(tmp_path):
    run_toy(toy_spec("single-label", method={"name": "fedavg"}), tmp_path / "fedavg")
    run_toy(toy_spec("single-label", method={"name": "fedrs"}), tmp_path / "fedrs")
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / "fedrs"))


def test_numbers_of_the_restricted_softmax():
    scale = restriction(torch.tensor([1.0, 1.0, 0.0]), 0.5)
    assert scale.tolist() == [1.0, 1.0, 0.5]
    p = (torch.tensor([2.0, 1.0, 1.0]) * scale).softmax(0)
    torch.testing.assert_close(p, torch.tensor([0.628532, 0.231224, 0.140244]), rtol=0, atol=1e-6)


def test_shares_grade_the_restriction():
    scale = restriction(torch.tensor([30.0, 15.0, 0.0]), 0.4)
    torch.testing.assert_close(scale, torch.tensor([1.0, 0.7, 0.4]))


def test_a_site_that_shows_nothing_restricts_all_alike():
    assert restriction(torch.zeros(3), 0.5).tolist() == [0.5, 0.5, 0.5]


def test_it_refuses_segmentation():
    assert "segmentation" in make_method("fedrs").unmet(toy_spec().federation)
