"""FedPU against a second, plain implementation, and its limit cases."""

import math

import pytest
import torch

from consilia.methods import make_method
from consilia.ops.unlabelled import hidden_risk
from consilia.testing import run_toy, toy_spec
from tests.methods.plain_labels import close, federate, labeled_ce, parts_of, spec_of
from tests.methods.support import assert_same_state, server_weights


def plain_risk(p, y, unlabeled, marks, prior, floor, divided):
    """The risk of mistakes, class by class and image by image."""
    classes, total = range(len(marks)), 0.0
    cost = [[-torch.log(1 - p[n, c] + floor) for c in classes] for n in range(len(p))]
    own, others = (sum(marks), len(marks) - sum(marks)) if divided else (1, 1)
    of_u = [n for n in range(len(p)) if unlabeled[n]]
    for i in classes:
        if marks[i] and of_u:
            total = total + sum(cost[n][i] for n in of_u) / len(of_u) / own
    for j in classes:
        of_j = [n for n in range(len(p)) if y[n, j]]
        if not marks[j] or not of_j:
            continue
        strays = sum(cost[n][i] for n in of_j for i in classes if not marks[i]) / max(1, others)
        right = sum(cost[n][j] for n in of_j)
        total = total + prior[j] * (strays - right) / len(of_j)
    return total


def plain_fedpu(spec, weight, floor, everything, divided):
    def begin(name, number, part, world, own):
        prior = [float(part.y[:, c].sum()) / len(part.x) for c in range(part.y.shape[1])]

        def loss(net, index, part):
            y, scores = part.y[index], net(part.x[index])
            unlabeled = [everything or y[n].sum() == 0 for n in range(len(y))]
            risk = plain_risk(scores.softmax(1), y, unlabeled, part.marks, prior, floor, divided)
            return labeled_ce(scores, y) + weight * risk

        return loss, list(range(len(part.x)))

    return federate(spec, parts_of(spec), begin)[0]


@pytest.mark.parametrize("divided", [False, True], ids=["sums", "divided"])
@pytest.mark.parametrize("sample", ["unlabelled", "all"])
def test_it_is_its_algorithm(sample, divided, tmp_path):
    settings = {"weight": 0.7, "floor": 0.02, "sample": sample, "divided": divided}
    spec = spec_of("fedpu", "single-label", settings)
    run_toy(spec, tmp_path / "run")
    close(server_weights(tmp_path / "run"), plain_fedpu(spec, 0.7, 0.02, sample == "all", divided))


def test_without_its_risk_it_is_fedavg_to_the_bit(tmp_path):
    run_toy(spec_of("fedavg", "single-label"), tmp_path / "fedavg")
    run_toy(spec_of("fedpu", "single-label", {"weight": 0.0}), tmp_path / "fedpu")
    assert_same_state(server_weights(tmp_path / "fedavg"), server_weights(tmp_path / "fedpu"))


def test_numbers_of_the_risk():
    p = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]])
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    marked = torch.tensor([True, True, False])
    risk = hidden_risk(
        p, y, torch.tensor([False, True]), marked, torch.tensor([0.5, 0.0, 0.0]), 0.0
    )
    # unlabeled image taken for a marked class, twice; labeled image: hidden class less its own
    expected = -2 * math.log(0.8) + 0.5 * (-math.log(0.75) + math.log(0.5))
    assert float(risk) == pytest.approx(expected, abs=1e-6)
    assert expected == pytest.approx(0.243555, abs=1e-6)


def test_numbers_of_the_divided_risk():
    p = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.2, 0.2, 0.5, 0.1]])
    y = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    marked, prior = torch.tensor([True, True, False, False]), torch.tensor([0.5, 0.0, 0.0, 0.0])
    risk = hidden_risk(p, y, torch.tensor([False, True]), marked, prior, 0.0, divided=True)
    # a half of two marked classes, and of two hidden ones; what the label says is not divided
    strays = (-math.log(0.8) - math.log(0.9)) / 2
    expected = -2 * math.log(0.8) / 2 + 0.5 * (strays + math.log(0.5))
    assert float(risk) == pytest.approx(expected, abs=1e-6)


def test_a_site_that_marks_every_class_has_no_hidden_ones_to_divide_by():
    p, y, all_ = torch.full((2, 2), 0.5), torch.eye(2), torch.ones(2, dtype=torch.bool)
    found = hidden_risk(p, y, ~all_, all_, torch.full((2,), 0.5), 0.0, divided=True)
    assert float(found) == pytest.approx(math.log(0.5))


def test_over_all_images_only_unlabeled_ones_pay_for_marked_classes():
    """U minus the labeled parts is what the unlabeled images cost: the estimator is exact."""
    torch.manual_seed(0)
    p = torch.rand(6, 3).softmax(1)
    y = torch.zeros(6, 3)
    y[0, 0] = y[1, 0] = y[2, 1] = 1
    marked = torch.tensor([True, True, False])
    found = hidden_risk(p, y, torch.ones(6, dtype=torch.bool), marked, y.sum(0) / 6, 0.01)
    cost = -torch.log(1 - p + 0.01)
    unlabeled = cost[3:, :2].sum() / 6
    labeled = cost[:3].sum() / 6 - (cost[:3] * y[:3]).sum() / 6  # all mistakes on labeled images
    assert float(found) == pytest.approx(float(unlabeled + labeled), abs=1e-5)


def test_a_batch_without_labels_or_without_unlabeled_images_is_finite():
    p, marked = torch.full((2, 3), 1 / 3), torch.tensor([True, False, False])
    prior = torch.tensor([0.5, 0.0, 0.0])
    nothing, yes = torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)
    assert float(hidden_risk(p, nothing, yes, marked, prior, 0.01)) > 0
    labels = torch.eye(3)[[0, 0]]
    assert math.isfinite(float(hidden_risk(p, labels, ~yes, marked, prior, 0.01)))


def test_it_refuses_what_it_does_not_define():
    assert "segmentation" in make_method("fedpu").unmet(toy_spec().federation)
    assert "exclusive" in make_method("fedpu").unmet(toy_spec("multi-label").federation)
