"""Trackers get the numbers of each round; modules of our own stand in for theirs."""

import re
import sys
from contextlib import contextmanager
from types import ModuleType

import pytest

from consilia.errors import UsageError
from consilia.runs.track import Guarded, scalars, trackers
from consilia.testing import toy_spec

LINE = {
    "round": 2,
    "bytes_up": 10,
    "bytes_down": 20,
    "sites": {"anna": {"loss": 0.5, "images": 4}},
    "shares": {"anna": 1.0},
    "test": {"anna": {"dice": 0.7, "hd95": None}},
    "validation": {"anna": {"dice": 0.6}},
    "events": [],
}
NUMBERS = {
    "bytes/up": 10,
    "bytes/down": 20,
    "loss/anna": 0.5,
    "images/anna": 4,
    "share/anna": 1.0,
    "test/dice/anna": 0.7,
    "validation/dice/anna": 0.6,
}


def spec_with(*names):
    return toy_spec(engine={"track": names}, method={"name": "fedprox", "settings": {"mu": 0.1}})


def test_numbers_have_a_path_and_what_is_not_defined_is_left_out():
    assert scalars(LINE) == NUMBERS
    bare = {key: value for key, value in LINE.items() if key not in {"test", "validation"}}
    assert set(scalars(bare)) == {key for key in NUMBERS if "dice" not in key}


def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(caplog):
    asked = []

    def refuses(line):
        asked.append(line["round"])
        raise ConnectionError("no answer")

    tracker = Guarded("mlflow", refuses)
    for number in (3, 4):
        tracker({"round": number})
    assert asked == [3]
    assert [record.getMessage() for record in caplog.records] == [
        "'mlflow' tracks this run no longer, from round 3 on: ConnectionError: no answer; the run goes on, "
        "and rounds.jsonl has every number"
    ]


def test_no_tracker_is_the_default(tmp_path):
    with trackers(toy_spec(), tmp_path) as listeners:
        assert listeners == ()


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")]
)
def test_a_package_that_is_not_installed_is_named(monkeypatch, tmp_path, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    sentence = f"engine.track names '{name}', which is not installed; in the checkout of Consilia, "
    sentence += f"pip install -c constraints.txt -e '.[{name}]'"
    with pytest.raises(UsageError, match=re.escape(sentence)), trackers(spec_with(name), tmp_path):
        pass


@pytest.fixture
def tensorboard(monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, path):
            calls.append(("open", path))

        def add_scalar(self, key, value, step):
            calls.append((key, value, step))

        def close(self):
            calls.append(("close",))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return calls


@pytest.fixture
def mlflow(monkeypatch):
    calls = []
    module = ModuleType("mlflow")

    @contextmanager
    def start_run(run_name):
        calls.append(("start", run_name))
        yield
        calls.append(("end",))

    module.start_run = start_run
    module.set_experiment = lambda name: calls.append(("experiment", name))
    module.log_params = lambda params: calls.append(("params", params))
    module.log_metrics = lambda values, step: calls.append((values, step))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return calls


def test_tensorboard_gets_every_number(tensorboard, tmp_path):
    with trackers(spec_with("tensorboard"), tmp_path / "runs/fedprox-0") as (after,):
        assert tensorboard == []  # a run that is refused leaves nothing behind
        after(LINE)
        after({**LINE, "round": 3})
    opened, *rest, closed = tensorboard
    assert opened == ("open", str(tmp_path / "runs/.tensorboard/fedprox-0"))
    assert closed == ("close",)
    assert rest == [(key, value, step) for step in (2, 3) for key, value in NUMBERS.items()]


def test_mlflow_gets_settings_once_and_every_number(mlflow, tmp_path):
    with trackers(spec_with("mlflow"), tmp_path) as (after,):
        assert mlflow == []
        after(LINE)
        after({**LINE, "round": 3})
    named = {key.replace("/", "."): value for key, value in NUMBERS.items()}
    assert mlflow == [
        ("experiment", "toy"),
        ("start", "fedprox-0"),
        ("params", {"method": "fedprox", "seed": 0, "mu": 0.1}),
        (named, 2),
        (named, 3),
        ("end",),
    ]


def test_mlflow_gets_labels_in_characters_it_takes(mlflow, tmp_path):
    tested = {"anna": {"dice/Tumör (rund)": 0.7, "dice/solid & cystic": 0.6}}
    with trackers(spec_with("mlflow"), tmp_path) as (after,):
        after({**LINE, "test": tested})
    values, _ = mlflow[3]
    assert values["test.dice.Tumör _rund_.anna"] == 0.7
    assert values["test.dice.solid _ cystic.anna"] == 0.6


def test_several_trackers_hear_of_each_round(tensorboard, mlflow, tmp_path):
    with trackers(spec_with("mlflow", "tensorboard"), tmp_path) as listeners:
        for after in listeners:
            after(LINE)
    assert ("test/dice/anna", 0.7, 2) in tensorboard
    assert mlflow[-1] == ("end",)


def test_a_run_that_stops_closes_its_trackers(tensorboard, tmp_path):
    def stop():
        with trackers(spec_with("tensorboard"), tmp_path) as (after,):
            after(LINE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert tensorboard[-1] == ("close",)
