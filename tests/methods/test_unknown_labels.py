"""What the comparisons for different label sets promise about labels a site does not mark."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilia.methods import why_not
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases
from tests.methods.plain_labels import garbled, new_network, spec_of
from tests.methods.support import assert_same_state, final_state, server_weights, without_times
from tests.methods.test_every_method import garbled as garbled_pixels

STAR = {"unknown": "masked", "rows": "labelled"}
LOOSE = {"threshold": 0.36, "high": 0.51, "low": 0.49}
MASKING = {
    "fedprox": STAR,
    "moon": {**STAR, "width": 8},
    "fedpu": STAR,
    "fixmatch": LOOSE,
    "fssl": {"warmup": 0.0, **LOOSE},
    "iml": {},
    "central-fixmatch": LOOSE,
    "mixup-pme": {"rows": "labelled"},
}
#: Others that mask unknown labels; two rounds show both stages of those that have two.
ALSO_MASKING = {
    "fedssp": {"width": 8},
    "fedmatch": {"confidence": 0.5},
    "fedmatch-plus": {"confidence": 0.5, "pretraining": 0.5, "width": 8},
    "fedrs": {"unknown": "masked"},
    "finetune": {"unknown": "masked", "tuning": 1},
    "fedadaptagg": {"unknown": "masked"},
    "local": {},
    "fedala": {"unknown": "masked"},
}
#: The methods made for this, under thresholds that an untrained network reaches, and FedAvg*.
OWN = {
    "fedlsm": {
        "tau": 0.36,
        "tau_positive": 0.51,
        "tau_negative": 0.49,
        "mix_positive": 0.4,
        "mix_negative": 0.3,
        "uncertain": 3,
        "confident": 4,
        "mixed": 2,
    },
    "fedpsl": {},
    "fedavg-masked": {},
}
#: Methods that take sparse marks, with settings under which two rounds show all they do.
SPARSE = {
    "fedst": {"low": 0.5, "high": 0.5},
    "fedrgd": {"low": 0.5, "high": 0.5},
    "fedbn": {},
    "fedrep": {},
    "fedap": {"warmup": 1},
    "metafed": {"common": 1},
    "fedala": {"longest": 1},
    "fedlc": {},
    "fedicra": {"longest": 1},
    "fedlppa": {"la_passes": 1},
}
MARKS = [
    {"name": "anna", "supervision": "mask"},
    {"name": "bo", "supervision": "scribble"},
    {"name": "cleo", "supervision": "point"},
    {"name": "dora", "supervision": "box"},
]
TASKS = ["multi-label", "single-label"]


def spec_for(name, task, **changes):
    known = {**MASKING, **ALSO_MASKING, **OWN, "fedavg": {}}
    spec = spec_of(name, task, known[name], **changes)
    reason = why_not(name, spec.federation)
    if reason:
        pytest.skip(reason)
    return spec


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", [*MASKING, *ALSO_MASKING])
def test_garbage_in_unknown_labels_changes_nothing(name, task, tmp_path):
    spec = spec_for(name, task, rounds=2)
    clean = toy_sites(spec)
    assert_no_difference(spec, clean, {s: garbled(d) for s, d in clean.items()}, tmp_path)


@pytest.fixture
def unhidden(monkeypatch):
    """Let a site hold image labels as they were given, also those that are not known."""
    hiding = ResidentCases.of

    def held(cases, view, device, exclusive=True):
        found = hiding(cases, view, device, exclusive)
        assert not view.segments
        return replace(found, target=torch.from_numpy(np.array(view.target)).to(device))

    monkeypatch.setattr(ResidentCases, "of", held)


@pytest.mark.parametrize("name", [*MASKING, *ALSO_MASKING, *OWN])
def test_no_loss_reads_an_unknown_label_that_is_not_hidden(name, unhidden, tmp_path):
    """Where labels exclude each other, hiding is what says that an image has no label: not so here."""
    assert_no_difference(*garbled_run(name, "multi-label"), tmp_path)


def test_fedlsm_reads_no_exclusive_label_that_is_not_hidden(unhidden, tmp_path):
    assert_no_difference(*garbled_run("fedlsm", "single-label"), tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_unknown_labels_that_are_not_hidden_show_where_they_are_read(task, unhidden, tmp_path):
    spec, clean, dirty = garbled_run("fedavg", task)
    run_toy(spec, tmp_path / "one", clean)
    run_toy(spec, tmp_path / "two", dirty)
    one, two = server_weights(tmp_path / "one"), server_weights(tmp_path / "two")
    assert any(not torch.equal(one[name], two[name]) for name in one)


def garbled_run(name, task):
    """Return a run of a method, its sites, and these with garbage where labels are not known."""
    spec = spec_for(name, task, rounds=2)
    clean = toy_sites(spec)
    return spec, clean, {site: garbled(data) for site, data in clean.items()}


@pytest.mark.parametrize("name", SPARSE)
def test_garbage_in_unmarked_pixels_changes_nothing(name, tmp_path):
    sites = MARKS if name in {"fedst", "fedrgd"} else MARKS[1:]
    method = {"name": name, "settings": SPARSE[name]}
    spec = toy_spec(sites=sites, rounds=2, training={"steps": 2}, method=method)
    assert why_not(name, spec.federation) is None
    clean = toy_sites(spec)
    assert_no_difference(spec, clean, {s: garbled_pixels(d) for s, d in clean.items()}, tmp_path)


def assert_no_difference(spec, clean, dirty, path):
    """Run with both, of which the labels differ, and compare every number and weight."""
    assert any((clean[s].view.target != dirty[s].view.target).any() for s in clean)
    one = run_toy(spec, path / "one", clean)
    two = run_toy(spec, path / "two", dirty)
    assert without_times(one) == without_times(two)
    assert_same_state(final_state(path / "one"), final_state(path / "two"))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", [n for n in MASKING if n not in {"iml"}])
def test_a_label_known_nowhere_keeps_its_row(name, task, tmp_path):
    sites = [
        {"name": "anna", "supervision": "image", "annotates": ["round"]},
        {"name": "bo", "supervision": "image", "annotates": ["round", "square"]},
    ]
    spec = spec_for(name, task, rounds=2, sites=sites)
    if name in {"central-fixmatch", "mixup-pme"} and task == "single-label":
        pytest.skip("with exclusive labels an image that is labeled knows all labels")
    run_toy(spec, tmp_path / "run")
    width = {"projection": 8} if name == "moon" else {}
    first = new_network(spec, **width).state_dict()
    last = server_weights(tmp_path / "run")
    for key in ("head.weight", "head.bias"):
        assert torch.equal(last[key][2], first[key][2])
        assert not torch.equal(last[key][0], first[key][0])


#: Methods whose unknown labels are masked, with every site counting for every row of the head.
ALL_ROWS = {
    "fedavg": {"unknown": "masked"},
    "fedprox": {"unknown": "masked", "mu": 0.5},
    "fedadaptagg": {"unknown": "masked"},
    "fedrs": {"unknown": "masked"},
    "moon": {"unknown": "masked", "width": 8},
    "fixmatch": {"rows": "all", "weight": 0.0},
    "fssl": {"rows": "all", "warmup": 0.5, "high": 1.0, "low": 0.0},
    "fedssp": {"pretraining": 0.0, "width": 8},
    "fedmatch": {},
    "fedpsl": {"rows": "all"},
    "finetune": {"unknown": "masked", "tuning": 1},
    "mixup-pme": {"rows": "all"},
    "iml": {"rows": "all"},
    "fedala": {"unknown": "masked"},
    "fedbn": {"unknown": "masked"},
    "fedrep": {"unknown": "masked"},
    "fedap": {"unknown": "masked"},
    "metafed": {"unknown": "masked"},
    "local": {},
}


def heads_of(path):
    """Return every last layer of a run's end: the server's, and those that sites keep or learn alone."""
    return {
        name: tensor
        for name, tensor in final_state(path).items()
        if name.endswith(("head.weight", "head.bias"))
        and not any(part in name for part in ("optimizers", "psi", "helpers", "follow"))
    }


@pytest.mark.parametrize("name", ALL_ROWS)
def test_neither_decay_nor_moments_move_a_row_that_no_label_teaches(name, tmp_path):
    """METHODS 5.4: a masked loss leaves the row alone, and so must the optimiser."""
    sites = [
        {"name": "anna", "supervision": "image", "annotates": ["round"]},
        {"name": "bo", "supervision": "image", "annotates": ["round", "square"]},
    ]
    spec = spec_of(name, settings=ALL_ROWS[name], sites=sites)
    heavy = {"optimizer": "adam", "weight_decay": 0.2}
    spec = spec.model_copy(update={"training": spec.training.model_copy(update=heavy)})
    run_toy(spec, tmp_path / "run")
    width = {"projection": 8} if name == "moon" else {}
    first = new_network(spec, **width).state_dict()
    heads = heads_of(tmp_path / "run")
    moved = []
    for where, head in heads.items():
        before = first["head.weight" if where.endswith("weight") else "head.bias"]
        torch.testing.assert_close(head[2], before[2], rtol=0, atol=1e-7, msg=where)
        moved.append(not torch.equal(head[0], before[0]))
    assert any(moved)  # some hold the start


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", MASKING)
def test_a_site_without_any_positive_trains(name, task, tmp_path):
    spec = spec_for(name, task, rounds=2)
    sites = toy_sites(spec)
    view = sites["bo"].view
    known = np.broadcast_to(
        [label == "square" for label in spec.federation.labels], view.target.shape
    )
    empty = replace(view, target=np.zeros_like(view.target), known_labels=known.copy())
    run_toy(spec, tmp_path / "run", {**sites, "bo": replace(sites["bo"], view=empty)})
    for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines():
        told = json.loads(line)
        assert told["events"] == []
        assert all(math.isfinite(v) for site in told["sites"].values() for v in site.values())
    state = server_weights(tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in state.values())
