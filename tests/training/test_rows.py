"""Rows of the head that a site's labels cannot teach leave a training as they entered it."""

from dataclasses import replace

import pytest
import torch

from consilia.testing import toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.learner import PlainLearner
from consilia.training.local import train_locally
from consilia.training.rows import taught_rows, untaught_rows_stay
from consilia.training.site import Site, Workbench

CPU = torch.device("cpu")
SITES = [
    {"name": "anna", "supervision": "image", "annotates": ["round"]},
    {"name": "bo", "supervision": "image"},
]


def site_of(task="multi-label", name="anna", sites=SITES, objective="auto", **training):
    training = {"weight_decay": 0.5, "augment": "none", **training}
    learner = {"objective": objective} if objective != "auto" else {}
    spec = toy_spec(task, sites=sites, training=training, learner=learner)
    data = toy_sites(spec)[name]
    bench = Workbench(PlainLearner.of(spec.learner, spec.federation), spec.federation, CPU, 0)
    cases = ResidentCases.of(data.train, data.view, CPU, spec.federation.exclusive)
    return Site(name, spec.federation, bench, cases, spec.training, 0, 1, 1)


def trained(site, unknown="masked", guessed=None):
    before = site.weights()
    with untaught_rows_stay(site, unknown, guessed):
        train_locally(site)
    return before, site.weights()


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_only_the_row_without_a_label_stays(optimizer):
    before, after = trained(site_of(optimizer=optimizer))
    for name in ("head.weight", "head.bias"):
        assert torch.equal(after[name][1], before[name][1])
        assert not torch.equal(after[name][0], before[name][0])
    assert not torch.equal(after["body.0.weight"], before["body.0.weight"])


def test_everything_else_is_trained_as_without():
    held, free = site_of(), site_of()
    _, one = trained(held)
    _, two = trained(free, "negative")  # the block undoes nothing; the loss is masked all the same
    assert not torch.equal(one["head.weight"][1], two["head.weight"][1])
    for name in one:
        rows = slice(0, 1) if name.startswith("head.") else slice(None)
        same = one[name] if one[name].dim() == 0 else one[name][rows]
        assert torch.equal(same, two[name] if two[name].dim() == 0 else two[name][rows])


def test_a_row_that_guesses_teach_moves():
    before, after = trained(site_of(), guessed=torch.tensor([False, True]))
    assert not torch.equal(after["head.weight"][1], before["head.weight"][1])


def test_where_every_row_is_taught_nothing_is_undone():
    assert taught_rows(site_of(name="bo")) is None  # all labels known
    assert taught_rows(site_of("single-label")) is None  # scores compete
    masks = [{"name": "anna", "supervision": "mask", "annotates": ["round"]}]
    assert taught_rows(site_of("segmentation", sites=masks)) is None
    assert taught_rows(site_of()).tolist() == [True, False]


def test_exclusive_labels_judged_one_by_one_follow_the_objective():
    """A labeled image rules out the other labels: under a binary loss it teaches their rows."""
    site = site_of("single-label", objective="bce")
    assert taught_rows(site).tolist() == [True, True]
    silent = replace(site.train, target=torch.zeros_like(site.train.target))
    site.train = silent  # no image shows a label of the site's: none is trained on
    assert taught_rows(site).tolist() == [False, False]
