"""The contract, for every method in the table: a new method gets these for free."""

import dataclasses
import inspect
import json
import math

import numpy as np
import pytest
import torch

from consilia.engines.inprocess import run_in_process
from consilia.methods import METHODS, Wire, labels_seen, make_method, why_not, wire_of
from consilia.testing import run_toy, toy_sites, toy_spec, with_changes
from tests.methods.support import assert_same_state, final_state, ledger_fields, without_times

TASKS = ("segmentation", "multi-label", "single-label")
BOUND = {"local", "central", "oracle"}


def spec_for(name, task=None, **changes):
    """Return a toy run of a method: of the first task it serves, with one label where it serves one."""
    for each in TASKS if task is None else (task,):
        for labels in ({}, {"labels": ["round"]} if each == "segmentation" else {}):
            spec = toy_spec(each, method={"name": name}, **labels, **changes_for(each, changes))
            if why_not(name, spec.federation) is None:
                return spec
    return pytest.skip(f"{name} does not serve this federation")


#: A method's tests stay on one worker, which makes its first run once.
EVERY = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in METHODS]


@pytest.fixture(scope="session")
def first_run(tmp_path_factory):
    """Return a method's plain toy run, its folder and its metrics, which several tests look at."""
    kept = {}

    def make(name):
        if name not in kept:
            path = tmp_path_factory.mktemp(f"first-{name}") / "run"
            kept[name] = path, run_toy(spec_for(name), path)
        return kept[name]

    return make


def changes_for(task, changes):
    """Return changes with the form of supervision that a task has in place of masks."""
    if task == "segmentation" or "sites" not in changes:
        return changes
    forms = {"mask": "image", "none": "none", "image": "image"}
    sites = [{**site, "supervision": forms[site["supervision"]]} for site in changes["sites"]]
    return {**changes, "sites": sites}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", EVERY)
def test_it_trains_and_its_numbers_are_finite(name, task, tmp_path):
    metrics = run_toy(spec_for(name, task), tmp_path / "run")
    assert set(metrics["sites"]) == {"anna", "bo", "cleo"}
    key = "dice" if task == "segmentation" else "auroc"
    assert 0 <= metrics["mean"][key] <= 1
    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        told = json.loads(line)
        assert told["events"] == []
        assert all(math.isfinite(v) for site in told["sites"].values() for v in site.values())


@pytest.mark.parametrize("name", EVERY)
def test_the_same_run_twice_is_the_same_also_in_lanes_with_weights_that_stay_on_a_device(
    name, first_run, tmp_path, monkeypatch
):
    path, one = first_run(name)
    monkeypatch.setattr("consilia.training.transfer.STAY", {"cpu"})
    two = run_toy(with_changes(spec_for(name), "engine.lanes=2"), tmp_path / "two")
    assert without_times(one) == without_times(two)
    assert_same_state(final_state(path), final_state(tmp_path / "two"))


@pytest.mark.parametrize("name", EVERY)
def test_a_run_without_room_in_memory_is_the_same(name, first_run, tmp_path, monkeypatch):
    path, one = first_run(name)
    monkeypatch.setattr("consilia.engines.rounds.MEBIBYTE", 0)
    monkeypatch.setattr("consilia.engines.inprocess.MEBIBYTE", 0)
    two = run_toy(spec_for(name), tmp_path / "two")
    assert without_times(one) == without_times(two)
    assert_same_state(final_state(path), final_state(tmp_path / "two"))


@pytest.mark.parametrize("name", EVERY)
def test_another_seed_is_another_run(name, first_run, tmp_path):
    path, _ = first_run(name)
    run_toy(spec_for(name, seed=1), tmp_path / "two")
    one, two = final_state(path), final_state(tmp_path / "two")
    assert any(not torch.equal(one[tensor], two[tensor]) for tensor in one)


@pytest.mark.parametrize("name", EVERY)
def test_the_order_of_sites_in_the_file_does_not_matter(name, first_run, tmp_path):
    spec = spec_for(name)
    turned = spec.model_copy(
        update={
            "federation": spec.federation.model_copy(update={"site": spec.federation.site[::-1]})
        }
    )
    _, one = first_run(name)
    two = run_toy(turned, tmp_path / "two")
    assert without_times(one) == without_times(two)


@pytest.mark.parametrize("name", EVERY)
def test_a_stopped_run_goes_on_to_the_bit(name, first_run, tmp_path):
    spec = spec_for(name)
    uncut, metrics = first_run(name)

    class StopError(Exception):
        pass

    def stop(line):
        if line["round"] == 2:
            raise StopError

    sites = toy_sites_of(spec)
    with pytest.raises(StopError):
        run_in_process(spec, tmp_path / "cut", data=tmp_path, sites=sites, listeners=(stop,))
    resumed = run_toy(spec, tmp_path / "cut")
    assert without_times(resumed) == without_times(metrics)
    assert_same_state(final_state(tmp_path / "cut"), final_state(uncut))
    for name_ in ("ledger.jsonl", "rounds.jsonl"):
        cut, whole = ((p / name_).read_text().splitlines() for p in (tmp_path / "cut", uncut))
        assert len(cut) == len(whole)


def toy_sites_of(spec):
    federation = labels_seen(make_method(spec.method.name), spec.federation)
    return toy_sites(spec.model_copy(update={"federation": federation}))


@pytest.mark.parametrize("name", EVERY)
def test_an_absent_site_and_a_late_one_are_survived(name, tmp_path):
    spec = spec_for(name, rounds=4, participation={"absent": {"anna": [2]}, "joins": {"cleo": 3}})
    run_toy(spec, tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    if METHODS[name].method.data == "own":
        present = [line["took_part"] for line in lines]
        assert present == [["anna", "bo"], ["bo"], ["anna", "bo", "cleo"], ["anna", "bo", "cleo"]]
        assert lines[2]["events"] == [{"site": "cleo", "event": "joined"}]


@pytest.mark.parametrize("name", EVERY)
def test_only_what_its_types_declare_leaves_a_site(name, first_run):
    path, _ = first_run(name)
    wire = wire_of(METHODS[name].method)
    for kind, direction, verb in (
        (wire.intro, "up", "introduce"),
        (wire.up, "up", "train"),
        (wire.down, "down", "train"),
    ):
        declared = {
            (member.__name__, field.name)
            for member in Wire.members(kind)
            for field in dataclasses.fields(member)
        }
        seen = ledger_fields(path, direction, verb)
        assert seen or not declared
        assert seen <= declared


@pytest.mark.parametrize("name", EVERY)
def test_sites_without_labels_are_judged_all_the_same(name, tmp_path):
    sites = [
        {"name": "anna", "supervision": "mask"},
        {"name": "bo", "supervision": "none"},
        {"name": "cleo", "supervision": "mask", "annotates": ["round"]},
    ]
    metrics = run_toy(spec_for(name, sites=sites), tmp_path / "run")
    assert set(metrics["sites"]) == {"anna", "bo", "cleo"}
    key = "dice" if "dice" in metrics["sites"]["bo"] else "auroc"
    assert metrics["sites"]["bo"][key] is not None


@pytest.mark.parametrize("name", EVERY)
def test_a_site_of_three_images_trains(name, tmp_path):
    spec = spec_for(name)
    sites = toy_sites_of(spec)
    small = toy_sites(spec, train=3)
    run_toy(spec, tmp_path / "run", {**sites, "bo": small["bo"]})
    line = json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1])
    assert line["events"] == []


@pytest.mark.parametrize("name", EVERY)
def test_every_hyper_parameter_says_where_it_is_from(name):
    for field in dataclasses.fields(METHODS[name].method):
        assert field.metadata["meaning"]
        assert field.metadata["source"]


@pytest.mark.parametrize("name", EVERY)
def test_its_module_is_small_and_its_card_is_filled(name):
    method, card = METHODS[name].method, METHODS[name].card
    lines = inspect.getsource(inspect.getmodule(method)).splitlines()
    assert len(lines) <= 250
    assert card.summary
    assert name in BOUND | {"finetune"} or "@" in card.bibtex


@pytest.mark.parametrize("task", ["segmentation", "multi-label"])
@pytest.mark.parametrize("name", ["fedavg-masked", "central"])
def test_unknown_labels_are_never_read(name, task, tmp_path):
    form = "mask" if task == "segmentation" else "image"
    sites = [
        {"name": "anna", "supervision": form, "annotates": ["round"]},
        {"name": "bo", "supervision": form, "annotates": ["square"]},
        {"name": "cleo", "supervision": form},
    ]
    spec = spec_for(name, task, sites=sites)
    clean = toy_sites(spec)
    one = run_toy(spec, tmp_path / "one", clean)
    two = run_toy(spec, tmp_path / "two", {k: garbled(v) for k, v in clean.items()})
    assert without_times(one) == without_times(two)
    assert_same_state(final_state(tmp_path / "one"), final_state(tmp_path / "two"))


def garbled(data):
    """Replace all that is not known by garbage: unknown columns or pixels, and the hidden truth."""
    view, rng = data.view, np.random.default_rng(0)
    target = view.target.copy()
    known = view.known_pixels if view.segments else view.known_labels
    if known is not None:
        most = view.known_labels.shape[1] if view.segments else 1
        noise = rng.integers(0, most, target.shape, np.uint8, endpoint=True)
        target = np.where(known, target, noise)
    train = dataclasses.replace(data.train, truth=rng.permutation(data.train.truth))
    return dataclasses.replace(data, train=train, view=dataclasses.replace(view, target=target))


def test_settings_are_checked():
    from consilia.errors import UsageError

    with pytest.raises(UsageError, match=r"no method named 'fedprx'; did you mean 'fedprox'\?"):
        make_method("fedprx")
    with pytest.raises(
        UsageError, match=r"method 'fedprox' has no setting 'row'; did you mean 'rows'\?"
    ):
        make_method("fedprox", {"row": 1})
    with pytest.raises(UsageError, match=r"method.mu of 'fedprox' is 'x'; expected a number"):
        make_method("fedprox", {"mu": "x"})
    with pytest.raises(
        UsageError, match=r"method.rows of 'fedavg' is 'some'; expected one of 'all', 'labelled'"
    ):
        make_method("fedavg", {"rows": "some"})
    assert make_method("fedprox", {"mu": 1}).mu == 1.0
    assert with_changes(toy_spec(), "rounds=7").rounds == 7
    with pytest.raises(
        UsageError, match=r"method.mu of 'fedprox' is nan; expected a finite number, at least 0"
    ):
        make_method("fedprox", {"mu": float("nan")})
    with pytest.raises(UsageError, match=r"method.warmup of 'fedst' is 2.0; expected .* at most 1"):
        make_method("fedst", {"warmup": 2.0})
