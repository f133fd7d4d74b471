"""Sites in lanes: turns, order, random numbers, failures, and a run that ends in the middle."""

import functools
import threading

import pytest
import torch

from consilia.engines.lanes import Lane, Lanes
from consilia.payload import Record
from consilia.testing import run_toy, toy_spec, with_changes
from tests.methods.support import assert_same_state, final_state, without_times

CPU = torch.device("cpu")


class Worker:
    """Answers a record after a number of pauses, and writes down when it had its turns."""

    def __init__(self, name, lane, log, pauses=2):
        self.name, self.lane, self.log, self.pauses = name, lane, log, pauses

    def handle(self, record):
        for turn in range(self.pauses):
            self.log.append((self.name, turn))
            self.lane.pause()
        return Record(record.verb, self.name, record.round, "Reply", {}, {})


@pytest.fixture
def lanes():
    made = [Lane(CPU), Lane(CPU)]
    yield made
    for lane in made:
        lane.close()
    assert not any(thread.name == "lane" for thread in threading.enumerate())


def record(site):
    return Record("train", site, 1, "Hello", {}, {})


def test_lanes_take_turns_and_replies_keep_the_order_of_the_records(lanes):
    log = []
    of = {"a": lanes[0], "b": lanes[1], "c": lanes[0]}
    workers = {"a": Worker("a", of["a"], log, 3), "b": Worker("b", of["b"], log, 1)}
    workers["c"] = Worker("c", of["c"], log)
    found = [reply.site for reply in Lanes(workers, of).exchange(map(record, "abc"))]
    assert found == ["a", "b", "c"]
    assert log == [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("c", 0), ("c", 1)]


def test_records_are_taken_no_earlier_than_a_lane_is_free(lanes):
    of = {"a": lanes[0], "b": lanes[1], "c": lanes[0], "d": lanes[1]}
    workers = {site: Worker(site, lane, []) for site, lane in of.items()}
    taken = []

    def records():
        for site in "abcd":
            taken.append(site)
            yield record(site)

    replies = Lanes(workers, of).exchange(records())
    assert next(replies).site == "a"
    assert taken == ["a", "b", "c"]
    assert [reply.site for reply in replies] == ["b", "c", "d"]


def test_each_lane_draws_its_own_random_numbers(lanes):
    drawn = {0: [], 1: []}

    def task(number):
        def run():
            torch.manual_seed(number)
            for _ in range(3):
                drawn[number].append(torch.rand(()).item())
                lanes[number].pause()
            return record("a")

        return run

    torch.manual_seed(7)
    for number, lane in enumerate(lanes):
        lane.begin(task(number))
    while not all(lane.ended for lane in lanes):
        for lane in lanes:
            if not lane.ended:
                lane.go_on()
    here = torch.rand(())
    for number, numbers in drawn.items():
        torch.manual_seed(number)
        assert numbers == torch.rand(3).tolist()
    torch.manual_seed(7)
    assert here == torch.rand(())


def test_what_a_task_raises_is_raised_where_its_result_is_asked_for(lanes):
    def fails():
        raise SystemExit(3)

    lanes[0].begin(fails)
    with pytest.raises(SystemExit):
        lanes[0].result()
    lanes[0].begin(lambda: record("a"))
    assert lanes[0].result().site == "a"


def test_a_lane_can_be_closed_in_the_middle_of_a_task():
    lane, reached = Lane(CPU), []

    def task():
        try:
            lane.pause()
        except Exception:  # as a worker does with whatever goes wrong at its site
            reached.append("failure")
        return record("a")

    lane.begin(task)
    lane.close()
    assert not reached
    assert not lane.ended


@pytest.mark.parametrize(("method", "lanes"), [("fedavg", 8), ("fedmix", 2), ("fedlppa", 3)])
def test_a_run_is_the_same_with_any_number_of_lanes(method, lanes, tmp_path):
    spec = toy_spec(method={"name": method}, labels=["round"])
    one = run_toy(spec, tmp_path / "one")
    many = run_toy(with_changes(spec, f"engine.lanes={lanes}"), tmp_path / "many")
    assert without_times(one) == without_times(many)
    assert_same_state(final_state(tmp_path / "one"), final_state(tmp_path / "many"))


def test_a_site_that_fails_in_a_lane_is_an_event(monkeypatch, tmp_path):
    from consilia.methods.averaging import Averaging

    honest = Averaging.local_update

    @functools.wraps(honest)
    def fails_at_bo(self, down, memory, site):
        if site.name == "bo":
            raise RuntimeError("disk on fire")
        return honest(self, down, memory, site)

    monkeypatch.setattr(Averaging, "local_update", fails_at_bo)
    metrics = run_toy(with_changes(toy_spec(), "engine.lanes=3"), tmp_path / "run")
    assert metrics["rounds"] == 3
    assert "disk on fire" in (tmp_path / "run" / "rounds.jsonl").read_text()
