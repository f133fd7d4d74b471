"""The round loop when things go wrong: NaN, failures, absence, kills."""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch

from consilia.engines import inprocess
from consilia.engines.messages import Failed
from consilia.engines.site import SiteWorker
from consilia.errors import DataError, RunError, UsageError
from consilia.payload import Record, pack
from consilia.runs.store import RunFolder
from consilia.testing import run_toy, toy_sites, toy_spec, with_changes
from tests.methods.support import assert_same_state, final_state, without_times


def rounds_of(path):
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture
def spoil(monkeypatch):
    """Change the replies of a site to training records."""
    honest = SiteWorker.handle

    def install(site, change, rounds=(2,)):
        def handle(self, record):
            reply = honest(self, record)
            if self.name == site and record.verb == "train" and record.round in rounds:
                return change(reply)
            return reply

        monkeypatch.setattr(SiteWorker, "handle", handle)

    return install


def with_value(reply, value):
    name = next(iter(reply.tensors))
    spoiled = torch.full_like(reply.tensors[name], value)
    return replace(reply, tensors={**reply.tensors, name: spoiled})


def event_of(path, round_):
    (event,) = rounds_of(path)[round_ - 1]["events"]
    return event


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_dropped_and_logged(spoil, tmp_path, value):
    spoil("bo", lambda reply: with_value(reply, value))
    metrics = run_toy(toy_spec(), tmp_path / "run")
    assert event_of(tmp_path / "run", 2) == {
        "site": "bo",
        "event": "dropped: its update holds a number that is not finite",
    }
    assert rounds_of(tmp_path / "run")[1]["took_part"] == ["anna", "cleo"]
    assert rounds_of(tmp_path / "run")[2]["took_part"] == ["anna", "bo", "cleo"]
    assert metrics["mean"]["dice"] is not None


def test_a_dropped_site_is_as_if_it_had_been_absent(spoil, tmp_path):
    absent = toy_spec(training={"keep_optimizer": False}, participation={"absent": {"bo": [2]}})
    run_toy(absent, tmp_path / "absent")
    spoil("bo", lambda reply: with_value(reply, float("nan")))
    run_toy(toy_spec(training={"keep_optimizer": False}), tmp_path / "dropped")
    assert_same_state(final_state(tmp_path / "absent"), final_state(tmp_path / "dropped"))


@pytest.mark.parametrize(
    ("change", "event"),
    [
        (
            lambda r: replace(r, tensors=dict(list(r.tensors.items())[1:])),
            "refused: train message of site 'bo' in round 2: field 'weights/encoder.levels.0.0.weight' holds",
        ),
        (
            lambda r: replace(r, tensors={**r.tensors, "image": torch.zeros(4, 4)}),
            "refused: train message of site 'bo' in round 2: tensor 'image' belongs to no field",
        ),
        (
            lambda r: replace(r, body={**r.body, "patients": 5}),
            "refused: train message of site 'bo' in round 2: field 'message' holds the extra patients",
        ),
        (lambda r: replace(r, round=1), "refused: it answers a message that was not sent to it"),
        (
            lambda r: replace(r, verb="evaluate"),
            "refused: it answers a message that was not sent to it",
        ),
    ],
)
def test_a_reply_that_breaks_its_type_is_refused(spoil, tmp_path, change, event):
    spoil("bo", change)
    run_toy(toy_spec(), tmp_path / "run")
    assert event_of(tmp_path / "run", 2)["event"].startswith(event)
    assert rounds_of(tmp_path / "run")[1]["took_part"] == ["anna", "cleo"]


def test_a_reply_in_another_sites_name_is_refused(spoil, tmp_path):
    spoil("bo", lambda reply: replace(reply, site="dora"))
    run_toy(toy_spec(), tmp_path / "run")
    events = {e["site"]: e["event"] for e in rounds_of(tmp_path / "run")[1]["events"]}
    assert events["dora"] == "refused: it answers a message that was not sent to it"
    assert events["bo"] == "absent: it did not answer"


def test_an_exception_at_a_site_does_not_stop_the_run(monkeypatch, tmp_path):
    from consilia.methods.averaging import Averaging

    honest = Averaging.local_update

    def fails(self, down, memory, site):
        if site.name == "bo" and site.round == 2:
            msg = "out of memory"
            raise RuntimeError(msg)
        return honest(self, down, memory, site)

    monkeypatch.setattr(Averaging, "local_update", fails)
    run_toy(toy_spec(), tmp_path / "run")
    assert event_of(tmp_path / "run", 2) == {
        "site": "bo",
        "event": "failed: RuntimeError: out of memory",
    }


def test_too_few_sites_end_the_run_with_a_sentence_and_resume_goes_on(spoil, tmp_path, monkeypatch):
    spec = toy_spec(participation={"min_sites": 3})
    with monkeypatch.context() as patch:
        spoil("bo", lambda reply: with_value(reply, float("nan")))
        with pytest.raises(RunError) as ended:
            run_toy(spec, tmp_path / "run")
        assert str(ended.value) == (
            "round 2: 2 of the invited sites gave a usable update and min_sites is 3 (bo dropped: its update "
            "holds a number that is not finite); `consilia resume` goes on from the last checkpoint"
        )
        patch.undo()
    monkeypatch.undo()
    torch.set_num_threads(1)
    resumed = run_toy(spec, tmp_path / "run")
    whole = run_toy(spec, tmp_path / "whole")
    assert without_times(resumed) == without_times(whole)


def fails_to(verb, monkeypatch):
    """Let every site fail where a record asks for this."""
    honest = SiteWorker.handle

    def handle(self, record):
        if record.verb == verb:
            return pack(Failed("no"), record.verb, self.name, record.round)
        return honest(self, record)

    monkeypatch.setattr(SiteWorker, "handle", handle)


def test_the_way_out_of_a_first_round_that_failed_works(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        fails_to("train", patch)
        with pytest.raises(RunError, match=r"give the command again with another --out$"):
            run_toy(toy_spec(), tmp_path / "run")
    with pytest.raises(UsageError, match="holds another run"):
        run_toy(toy_spec(training={"learning_rate": 0.01}), tmp_path / "run")
    run_toy(toy_spec(rounds=1, training={"learning_rate": 0.01}), tmp_path / "another")


def test_a_run_that_nobody_comes_to_names_the_way_out(monkeypatch, tmp_path):
    fails_to("introduce", monkeypatch)
    with pytest.raises(RunError) as ended:
        run_toy(toy_spec(), tmp_path / "run")
    assert str(ended.value) == (
        "no site introduced itself in round 1 (anna failed: no; bo failed: no; cleo failed: no); "
        "correct that, and give the command again with another --out"
    )


def test_a_site_that_was_never_drawn_is_told_in_the_last_round(tmp_path):
    metrics = run_toy(toy_spec(rounds=2, participation={"fraction": 0.01}), tmp_path / "run")
    first, last = rounds_of(tmp_path / "run")
    unjudged = {"anna", "bo", "cleo"} - set(metrics["sites"])
    assert unjudged == {"anna", "bo", "cleo"} - {*first["took_part"], *last["took_part"]}
    told = {e["site"] for e in last["events"] if e["event"] == "not judged: it never took part"}
    assert told == unjudged
    assert unjudged
    assert first["events"] == []


def test_a_fraction_of_the_sites_is_drawn_anew_each_round(tmp_path):
    run_toy(toy_spec(rounds=8, participation={"fraction": 0.5}), tmp_path / "run")
    present = [tuple(line["took_part"]) for line in rounds_of(tmp_path / "run")]
    assert all(len(sites) == 2 for sites in present)
    assert len(set(present)) > 1


def test_a_folder_with_another_run_is_never_written_over(tmp_path):
    run_toy(toy_spec(), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.json").read_text()
    with pytest.raises(UsageError, match="holds another run"):
        run_toy(toy_spec(seed=1), tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty and holds no run"):
        run_toy(toy_spec(), tmp_path / "full")
    assert (tmp_path / "run" / "metrics.json").read_text() == before
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_two_processes_cannot_share_a_run_folder(tmp_path):
    folder = RunFolder.create(tmp_path / "run", toy_spec())
    with folder.locked(), pytest.raises(RunError, match="in use by another process"):
        run_toy(toy_spec(), tmp_path / "run")


def test_memories_and_replies_beyond_the_cap_wait_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(inprocess, "MEBIBYTE", 4)
    monkeypatch.setattr("consilia.engines.rounds.MEBIBYTE", 4)
    run_toy(
        toy_spec(engine={"memory_mib": 1, "threads": 1, "checkpoint_every": 1}), tmp_path / "disk"
    )
    monkeypatch.undo()
    torch.set_num_threads(1)
    run_toy(toy_spec(), tmp_path / "ram")
    assert_same_state(final_state(tmp_path / "disk"), final_state(tmp_path / "ram"))


@pytest.mark.parametrize("method", ["fedavg", "fedala", "fedlppa"])
def test_a_network_with_channels_last_ends_the_same_on_disk_in_lanes_and_resumed(
    method, tmp_path, monkeypatch
):
    spec = toy_spec(
        method={"name": method}, labels=["round"], learner={"network": "unet-fedlppa"}, rounds=3
    )
    plain = run_toy(spec, tmp_path / "plain")
    monkeypatch.setattr(inprocess, "MEBIBYTE", 4)
    monkeypatch.setattr("consilia.engines.rounds.MEBIBYTE", 4)
    changes = ("engine.memory_mib=1", "engine.lanes=2", "engine.ledger=hashes")
    hard = with_changes(spec, *changes, "engine.checkpoint_every=1")

    class StopError(Exception):
        pass

    def stop(line):
        raise StopError

    sites = toy_sites(spec)
    with pytest.raises(StopError):
        inprocess.run_in_process(
            hard, tmp_path / "hard", data=tmp_path, sites=sites, listeners=(stop,)
        )
    assert without_times(run_toy(hard, tmp_path / "hard")) == without_times(plain)
    assert_same_state(final_state(tmp_path / "hard"), final_state(tmp_path / "plain"))


def test_the_ledger_can_carry_hashes(tmp_path):
    run_toy(toy_spec(rounds=1, engine={"ledger": "hashes", "threads": 1}), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    assert lines
    assert all(len(line["sha256"]) == 64 for line in lines)


def test_selection_rules(tmp_path):
    last = run_toy(toy_spec(rounds=12), tmp_path / "last")
    ten = run_toy(
        toy_spec(rounds=12, evaluate={"selection": "last_ten", "every": 5}), tmp_path / "ten"
    )
    lines = rounds_of(tmp_path / "last")
    assert last["sites"]["bo"]["dice"] == lines[-1]["test"]["bo"]["dice"]
    mean = sum(line["test"]["bo"]["dice"] for line in lines[-10:]) / 10
    assert ten["sites"]["bo"]["dice"] == pytest.approx(mean)
    best = toy_spec(rounds=6, evaluate={"selection": "best_validation", "validation": 0.2})
    found = run_toy(best, tmp_path / "best")
    lines = rounds_of(tmp_path / "best")
    held = [sum(s["dice"] for s in line["validation"].values()) for line in lines]
    chosen = lines[held.index(max(held))]
    assert found["sites"]["bo"]["dice"] == chosen["test"]["bo"]["dice"]
    selection = json.loads((tmp_path / "best/selection.json").read_text())
    assert selection == {"rule": "best_validation", "rounds": [chosen["round"]]}
    kept = json.loads((tmp_path / "best/selected/progress.json").read_text())
    assert kept["round"] == chosen["round"]
    cases = json.loads((tmp_path / "best/cases.json").read_text())
    assert sum(cases["bo"]["values"]["dice"]) / 6 == pytest.approx(found["sites"]["bo"]["dice"])


def killed_run(spec, sites, path, seconds):
    """Run in a child process and kill it after some time; return whether it was still running."""
    child = os.fork()
    if child == 0:  # pragma: no cover - the child never returns
        try:
            run_toy(spec, path, sites)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("kills", [pytest.param(20, marks=pytest.mark.slow), 4])
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path, kills):
    spec = toy_spec(rounds=10)
    sites = toy_sites(spec)
    whole = run_toy(spec, tmp_path / "whole", sites)
    began = time.perf_counter()
    run_toy(spec, tmp_path / "again", sites)  # everything is imported now, as in the children
    lasted = time.perf_counter() - began
    expected = final_state(tmp_path / "whole")
    moments = random.Random(kills)
    hit = 0
    for turn in range(kills):
        path = tmp_path / f"killed-{turn}"
        hit += killed_run(spec, sites, path, moments.uniform(0, lasted))
        resumed = run_toy(spec, path, sites)
        assert without_times(resumed) == without_times(whole)
        assert_same_state(final_state(path), expected)
        assert not list(path.rglob("*.part"))
    assert hit >= kills // 2


def test_an_unknown_verb_is_a_failed_reply(tmp_path):
    spec = toy_spec()
    workers = inprocess.make_workers(
        spec,
        (method := inprocess.make_method("fedavg")),
        spec.federation,
        toy_sites(spec),
        [inprocess.make_bench(spec, method, spec.federation)],
        inprocess.MemoryStore(tmp_path / "memories", 1 << 20),
        tmp_path,
        None,
    )
    reply = workers["anna"].handle(Record("export", "anna", 1, "Hello", {}, {}))
    assert reply.body["reason"] == (
        "a record asks to 'export'; expected one of introduce, train, evaluate, examine, portray"
    )


def test_a_site_that_diverged_once_comes_back_healthy(monkeypatch, tmp_path):
    from consilia.methods.averaging import Averaging

    honest = Averaging.loss

    def diverges(self, anchor, site):
        plain = honest(self, anchor, site)
        broken = site.name == "bo" and site.round == 1
        return (lambda batch: plain(batch) * float("nan")) if broken else plain

    monkeypatch.setattr(Averaging, "loss", diverges)
    run_toy(toy_spec(), tmp_path / "run")
    took = [line["took_part"] for line in rounds_of(tmp_path / "run")]
    assert took == [["anna", "cleo"], ["anna", "bo", "cleo"], ["anna", "bo", "cleo"]]


def test_every_admitted_site_is_judged_also_when_it_was_not_drawn_to_train(tmp_path):
    spec = toy_spec(rounds=4, participation={"fraction": 0.34}, evaluate={"selection": "last_ten"})
    metrics = run_toy(spec, tmp_path / "run")
    met = {site for line in rounds_of(tmp_path / "run") for site in line["took_part"]}
    assert set(metrics["sites"]) == met
    cases = json.loads((tmp_path / "run/cases.json").read_text())
    assert set(cases) == met


def test_a_site_without_test_images_is_left_out_and_none_at_all_is_refused(tmp_path):
    import numpy as np

    spec = toy_spec()
    sites = toy_sites(spec)
    empty = {k: replace(v, test=v.test.take(np.arange(0))) for k, v in sites.items()}
    metrics = run_toy(spec, tmp_path / "run", {**sites, "bo": empty["bo"]})
    assert set(metrics["sites"]) == {"anna", "cleo"}
    assert all(line["events"] == [] for line in rounds_of(tmp_path / "run"))
    with pytest.raises(DataError, match="no site has test images"):
        run_toy(spec, tmp_path / "none", empty)


def test_a_label_that_the_truth_does_not_know_of_is_not_judged(tmp_path):
    spec = toy_spec()
    sites = {
        name: replace(data, test=replace(data.test, marked=(True, False)))
        for name, data in toy_sites(spec).items()
    }
    part = run_toy(spec, tmp_path / "part", sites)
    whole = run_toy(spec, tmp_path / "whole")
    assert part["mean"]["dice"] == pytest.approx(whole["mean"]["dice/round"])


def test_a_method_that_invites_fewer_than_min_sites_is_not_stopped(tmp_path):
    forms = {"anna": "none", "bo": "none", "cleo": "mask"}
    sites = [{"name": name, "supervision": form} for name, form in forms.items()]
    spec = toy_spec(sites=sites, method={"name": "fedst"}, participation={"min_sites": 2})
    run_toy(spec, tmp_path / "run")


def test_a_run_whose_spec_was_changed_by_hand_is_not_resumed(tmp_path):
    spec = toy_spec(rounds=2)
    whole = run_toy(spec, tmp_path / "run")
    (tmp_path / "run/metrics.json").unlink()
    asked = tmp_path / "run/spec.toml"
    before = asked.read_text()
    for changed in (toy_spec(rounds=1), toy_spec(rounds=2, seed=7)):
        asked.unlink()
        RunFolder.create(tmp_path / f"other-{changed.seed}-{changed.rounds}", changed)
        shutil.copy(tmp_path / f"other-{changed.seed}-{changed.rounds}/spec.toml", asked)
        with pytest.raises(RunError, match="is not the one that its rounds were made with"):
            run_toy(changed, tmp_path / "run")
        assert not (tmp_path / "run/metrics.json").exists()
    asked.write_text(before)
    elsewhere = toy_spec(rounds=2, engine={"memory_mib": 7})
    assert without_times(run_toy(elsewhere, tmp_path / "run")) == without_times(whole)


def test_a_note_of_the_data_that_is_not_ours_is_refused(tmp_path):
    folder = RunFolder.create(tmp_path / "run", toy_spec())
    folder.write_json("data.json", [1])
    with pytest.raises(UsageError, match=r"^data\.json of run .* does not hold what a run writes"):
        inprocess.know_again(folder, {})


def test_a_run_whose_data_has_changed_is_not_resumed(tmp_path):
    spec = toy_spec(rounds=2)
    sites = toy_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    (tmp_path / "run/metrics.json").unlink()
    first = min(sites)
    other = sites[first].train.image.copy()
    other[0, 0, 0, 0] ^= 1
    changed = replace(sites[first], train=replace(sites[first].train, image=other))
    with pytest.raises(RunError) as problem:
        run_toy(spec, tmp_path / "run", {**sites, first: changed})
    assert str(problem.value) == (
        f"the images or labels of '{first}' are not those that run '{tmp_path / 'run'}' began with; "
        "put them back, or begin a new run with another --out"
    )
