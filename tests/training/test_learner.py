"""Learners: what fits which task, what they predict, which row is which label."""

import pytest
import torch
from torch import nn

from consilia.errors import UsageError
from consilia.networks.unet import UNETS, UNet
from consilia.testing import toy_spec, with_changes
from consilia.training.dual import DualLearner
from consilia.training.learner import CLASSIFIERS, PlainLearner
from consilia.training.selection import SelectionLearner
from consilia.training.settings import LearnerSettings
from consilia.training.site import laid_out


def learner(task="segmentation", labels=("round", "square"), **settings):
    spec = toy_spec(task, labels=list(labels))
    return PlainLearner.of(LearnerSettings(**settings), spec.federation)


@pytest.mark.parametrize(
    ("task", "settings", "sentence"),
    [
        (
            "segmentation",
            {"network": "densenet121"},
            "does not fit a segmentation task; choose one of",
        ),
        ("multi-label", {"network": "unet-small"}, "choose one of cnn-small, densenet121"),
        (
            "segmentation",
            {"network": "unet-smal"},
            "no network named 'unet-smal'; did you mean 'unet-small'?",
        ),
        ("segmentation", {"objective": "bce"}, "choose one of dice, dice-foreground, partial-ce"),
        ("multi-label", {"objective": "ce"}, "with overlapping labels; choose one of bce"),
        (
            "segmentation",
            {"objective": "dice-foreground"},
            "is for one label, the federation has 2; use 'dice'",
        ),
        (
            "multi-label",
            {"network": "densenet121"},
            "network 'densenet121' takes images from 64 pixels a side, but `image.size` is 16 x 16; choose",
        ),
        (
            "multi-label",
            {"mean": [0.5]},
            "learner.mean is for fixed normalisation, but learner.normalise is 'unit'; set it to 'fixed'",
        ),
        (
            "segmentation",
            {"normalise": "fixed", "deviation": [0.2, 0.3]},
            "`image.channels` is 1, but learner.deviation has 2; give learner.deviation 1 number",
        ),
    ],
)
def test_what_does_not_fit_is_refused(task, settings, sentence):
    with pytest.raises(UsageError) as refused:
        learner(task, **settings)
    assert sentence in str(refused.value)


def test_rows_of_the_head():
    assert learner(objective="dice").head_rows() == (0, 1)
    assert learner(objective="partial-ce").head_rows() == (None, 0, 1)
    assert learner("single-label").head_rows() == (0, 1)


@pytest.mark.parametrize("objective", ["dice", "partial-ce"])
def test_probabilities_have_one_plane_per_label(objective):
    found = learner(network="unet-tiny", objective=objective)
    network = found.build().eval()
    p = found.probabilities(network, torch.rand(2, 1, 16, 16))
    assert p.shape == (2, 2, 16, 16)
    assert set(found.decide(p).unique().tolist()) <= {0, 1, 2}


def test_a_label_wins_where_it_beats_one_half():
    p = torch.tensor([[0.6, 0.2, 0.5], [0.7, 0.3, 0.4]]).reshape(1, 2, 1, 3)
    assert learner().decide(p).tolist() == [[[2, 0, 0]]]


@pytest.mark.parametrize("name", ["plain", "dual", "selection"])
def test_where_outputs_compete_the_likeliest_wins_also_below_one_half(name):
    spec = toy_spec(labels=["round", "square"])
    settings = LearnerSettings(objective="partial-ce")
    plain = PlainLearner.of(settings, spec.federation)
    made = {
        "plain": lambda: plain,
        "dual": lambda: DualLearner.of(settings, spec.federation),
        "selection": lambda: SelectionLearner.around(plain),
    }
    # background .10, .50, .40 and .34; each column is a pixel
    p = torch.tensor([[0.45, 0.30, 0.25, 0.33], [0.45, 0.20, 0.35, 0.33]]).reshape(1, 2, 1, 4)
    p[0, 1, 0, 0] += 1e-3
    assert made[name]().decide(p).tolist() == [[[2, 0, 0, 0]]]
    assert learner(objective="dice").decide(p).tolist() == [[[0, 0, 0, 0]]]


def test_groups_cover_every_tensor_once():
    found = learner(network="unet-fedlppa", objective="partial-ce")
    network = found.build()
    groups = found.groups(network)
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(network.state_dict())
    assert groups["head"] == ("head.weight", "head.bias")


def test_instance_normalisation_removes_offset_and_scale():
    found = learner(network="unet-tiny", normalise="instance")
    network = found.build().eval()
    x = torch.rand(1, 1, 16, 16)
    with torch.no_grad():
        one, two = found.probabilities(network, x), found.probabilities(network, 0.2 + x * 3)
    assert torch.allclose(one, two, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "settings", "mean", "deviation"),
    [
        (3, {}, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        (1, {}, [0.449], [0.226]),
        (1, {"mean": [0.506], "deviation": [0.252]}, [0.506], [0.252]),
    ],
    ids=["color", "gray", "given"],
)
def test_fixed_normalisation_is_the_same_for_every_image(channels, settings, mean, deviation):
    spec = with_changes(toy_spec("multi-label"), f"federation.image.channels={channels}")
    found = PlainLearner.of(LearnerSettings(normalise="fixed", **settings), spec.federation)
    x = torch.rand(2, channels, 16, 16)
    expected = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[:, None, None]
    network = found.build().eval()
    torch.testing.assert_close(found.prepared(x), expected)
    torch.testing.assert_close(found.logits(network, x), network(expected))


def test_fixed_normalisation_of_other_channels_wants_numbers():
    spec = with_changes(toy_spec(), "federation.image.channels=4")
    sentence = "`image.channels` is 4, but ImageNet has 3; give learner.mean 4 numbers"
    with pytest.raises(UsageError, match=sentence):
        PlainLearner.of(LearnerSettings(normalise="fixed"), spec.federation)


@pytest.mark.parametrize("network", CLASSIFIERS)
def test_a_classifier_takes_the_smallest_images_that_it_says_it_takes(network):
    side = CLASSIFIERS[network]
    spec = with_changes(toy_spec("multi-label"), f"federation.image.size=[{side}, {side}]")
    found = PlainLearner.of(LearnerSettings(network=network), spec.federation)
    assert found.logits(found.build().train(), torch.rand(1, 1, side, side)).shape == (1, 2)
    less = with_changes(toy_spec("multi-label"), f"federation.image.size=[{side - 1}, {side}]")
    with pytest.raises(UsageError, match=f"takes images from {side} pixels a side"):
        PlainLearner.of(LearnerSettings(network=network), less.federation)


@pytest.mark.parametrize(("network", "last"), [("unet-fedlppa", True), ("unet-small", False)])
def test_channels_come_last_but_for_group_norm(network, last):
    laid = laid_out(UNet(UNETS[network], 3, 2))
    inner = [m.weight for m in laid.modules() if isinstance(m, nn.Conv2d) and m.weight.shape[2] > 1]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) == last for weight in inner)
