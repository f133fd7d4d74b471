"""The fault table of messages: whatever comes back, the run ends with a model and says who took part."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")
import torch

from consilia.engines.packet import Packet, seal, unseal
from consilia.errors import RunError
from consilia.federation.desk import append
from consilia.methods import METHODS, make_method
from consilia.payload import Record
from consilia.testing import run_toy, toy_spec
from tests.federation.support import (
    INCOMPLETE,
    MIXED,
    Federation,
    events,
    final_bytes,
    flower,
    lines,
    spec_for,
    without_times,
)

MAIN = ("fedmix", "fedia", "fedpsl", "fedlsm", "fedlppa")
OWN = [
    name
    for name, entry in METHODS.items()
    if entry.method.data == "own" and entry.method.labels == "declared"
]


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    """Run a spec in one process, with the same people absent, once for all who ask."""
    known = {}

    def run(spec, absent=None):
        if absent:
            rules = spec.participation.model_copy(update={"absent": absent})
            spec = spec.model_copy(update={"participation": rules})
        engine = spec.engine.model_copy(update={"ledger": "hashes", "checkpoint_every": 1})
        spec = spec.model_copy(update={"engine": engine})
        key = spec.model_dump_json()
        if key not in known:
            path = tmp_path_factory.mktemp("one") / "run"
            known[key] = (run_toy(spec, path), path)
        return known[key]

    return run


def assert_same(path, one, rounds=2):
    """Compare the final weights of two runs, bit for bit."""
    assert final_bytes(path, rounds) == final_bytes(one, rounds)


def fitting(name, **changes):
    """Return a toy spec that a method can serve."""
    kinds = [
        {"sites": MIXED},
        {"sites": INCOMPLETE, "labels": ["round"]},
        {"task": "multi-label"},
        {"task": "single-label"},
    ]
    for kind in kinds:
        spec = spec_for(name, **kind, **changes)
        if make_method(name).unmet(spec.federation) is None:
            return spec
    raise AssertionError(f"no toy federation fits {name}")


def slow_but_for_the_main(names):
    return [n if n in MAIN else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", slow_but_for_the_main(OWN))
def test_every_method_gives_the_same_bits_and_numbers(name, tmp_path, monkeypatch, in_process):
    spec = fitting(name, rounds=2, training={"steps": 2})
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    found = federation.run()
    expected, one = in_process(spec)
    assert_same(tmp_path / "f/run", one)
    assert without_times(found) == without_times(expected)
    assert [without_times(x) for x in lines(tmp_path / "f/run")] == [
        without_times(x) for x in lines(one)
    ]
    assert_no_images(federation)


def assert_no_images(federation):
    """No array in any message has the type or the shape of a batch of images or of labels."""
    size = list(federation.spec.federation.image.size)
    seen = 0
    for _, _, asked, reply in federation.wire.packets:
        for packet in (asked, reply):
            for name, kind, shape in json.loads(packet.manifest)["tensors"]:
                seen += 1
                assert kind not in ("uint8", "bool"), name
                assert all(shape[i : i + 2] != size for i in range(len(shape))), (name, shape)
    assert seen > 20


@pytest.fixture
def federation(tmp_path, monkeypatch):
    sites = [{"name": name, "supervision": "mask"} for name in ("anna", "bo")]
    training = {"steps": 2, "keep_optimizer": True, "optimizer": "adam"}
    spec = spec_for("fedavg", sites=sites, rounds=2, training=training)
    return Federation(spec, tmp_path / "f", monkeypatch)


def spoiled(federation, site, change, round_=2, signer=None):
    """Let a site answer one training with something else, signed with its own key all the same."""

    def tamper(name, told, asked, reply):
        if (name, told["verb"], told["round"]) != (site, "train", round_):
            return None
        desk = federation.desks[site]
        record, _ = unseal(reply, desk.key.public_key(), site, 1 << 30)
        key = federation.desks[signer or site].key
        return seal(change(record), key, {"answers": asked.digest})

    federation.wire.tamper = tamper


def with_tensor(record, change):
    name = next(iter(record.tensors))
    return replace(record, tensors={**record.tensors, name: change(record.tensors[name])})


def without_field(record):
    return replace(record, body={k: v for k, v in record.body.items() if k != "loss"})


SPOILED = {
    "NaN": (lambda r: with_tensor(r, lambda t: t * float("nan")), "dropped: its update holds"),
    "Inf": (lambda r: with_tensor(r, lambda t: t / 0), "dropped: its update holds"),
    "wrong shape": (lambda r: with_tensor(r, lambda t: t[..., None]), "refused: train message"),
    "wrong type": (lambda r: with_tensor(r, lambda t: t.double()), "refused: train message"),
    "extra field": (lambda r: replace(r, body={**r.body, "more": 1}), "refused: train message"),
    "extra tensor": (
        lambda r: replace(r, tensors={**r.tensors, "image": torch.zeros(4, 1, 16, 16)}),
        "refused: train message",
    ),
    "missing field": (without_field, "refused: train message"),
    "missing tensor": (
        lambda r: replace(r, tensors=dict(list(r.tensors.items())[1:])),
        "refused: train message",
    ),
    "ten times its size": (
        lambda r: replace(
            r, tensors={n: torch.cat([t] * 10) for n, t in r.tensors.items() if t.ndim}
        ),
        "refused: train message",
    ),
    "more than ten networks": (
        lambda r: with_tensor(r, lambda t: torch.zeros(10 << 20)),
        "refused: a packet has",
    ),
    "another round": (lambda r: replace(r, round=1), "refused: it answers something else"),
    "another verb": (lambda r: replace(r, verb="evaluate"), "refused: it answers something else"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_reply_is_refused_and_the_run_goes_on(federation, tmp_path, case, in_process):
    change, expected = SPOILED[case]
    spoiled(federation, "bo", change)
    found = federation.run()
    ((site, event),) = events(tmp_path / "f/run", 2)
    assert site == "bo"
    assert event.startswith(expected)
    line = lines(tmp_path / "f/run")[1]
    assert line["took_part"] == ["anna"]
    same, one = in_process(federation.spec, {"bo": (2,)})
    assert_same(tmp_path / "f/run", one)
    assert found["mean"] == same["mean"]


def test_an_answer_in_another_sites_name_is_refused(federation, tmp_path, in_process):
    """Anna answers for Bo: her key is the federation's too, but it is not his."""
    spoiled(federation, "bo", lambda record: record, signer="anna")
    federation.run()
    assert events(tmp_path / "f/run", 2) == [
        ("bo", "refused: a packet is not signed by the key it must come from")
    ]
    _, one = in_process(federation.spec, {"bo": (2,)})
    assert_same(tmp_path / "f/run", one)


def test_an_exception_in_a_site_is_a_sentence_that_quotes_nothing(
    federation, tmp_path, monkeypatch
):
    from consilia.methods.drift.fedavg import FedAvg

    honest = FedAvg.local_update

    def fails(self, down, memory, site):
        if (site.name, site.round) == ("bo", 2):
            raise ValueError("/data/patients/miller-anna.dcm")
        return honest(self, down, memory, site)

    monkeypatch.setattr(FedAvg, "local_update", fails)
    federation.run()
    expected = [("bo", "failed: ValueError; the site's log has the rest")]
    assert events(tmp_path / "f/run", 2) == expected
    left = (tmp_path / "f/bo/ledger.jsonl").read_text()
    assert "miller" not in left + (tmp_path / "f/run/ledger.jsonl").read_text()


def test_a_site_that_is_offline_for_three_rounds_and_back(tmp_path, monkeypatch, in_process):
    sites = [*MIXED, {"name": "cleo", "supervision": "mask"}]
    spec = spec_for("fedmix", sites=sites, rounds=6, training={"steps": 1}, evaluate={"every": 6})
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    away = (2, 3, 4)

    federation.wire.offline = {"bo": away}
    _follow_rounds(federation)
    federation.run()
    took = [line["took_part"] for line in lines(tmp_path / "f/run")]
    assert [("bo" in part) for part in took] == [True, False, False, False, True, True]
    assert ("bo", "absent: it is not connected") in events(tmp_path / "f/run", 3)
    _, one = in_process(spec, {"bo": away})
    assert_same(tmp_path / "f/run", one, 6)


def _follow_rounds(federation):
    """Let who is online depend on the round that is being sent."""
    wire, honest = federation.wire, federation.transport

    def transport(**options):
        made, bench = honest(**options)
        exchange = made.exchange

        def watched(records, deadline=None):
            records = list(records)
            if records and records[0].verb == "train":
                wire.round = records[0].round
            return exchange(records, deadline)

        object.__setattr__(made, "exchange", watched)
        return made, bench

    federation.transport = transport


def test_a_site_that_never_answers_costs_the_deadline_and_no_more(federation, tmp_path, in_process):
    federation.wire.silent = {"bo": (2,)}
    federation.run()
    assert events(tmp_path / "f/run", 2) == [("bo", "absent: it did not answer within 0 s")]
    _, one = in_process(federation.spec, {"bo": (2,)})
    assert_same(tmp_path / "f/run", one)


@pytest.mark.parametrize("method", ["fedavg", "fedia"])
def test_a_training_whose_reply_was_lost_is_not_remembered(
    tmp_path, monkeypatch, method, in_process
):
    """The site trained, but the coordinator did not get it: the site goes on from what was used."""
    sites = [*INCOMPLETE, {"name": "cleo", "supervision": "mask"}]
    training = {"keep_optimizer": True, "optimizer": "adam", "steps": 2}
    spec = spec_for(method, sites=sites, labels=["round"], rounds=4, training=training)
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    lost = {("bo", "train", 2)}

    def tamper(name, told, asked, reply):
        if (name, told["verb"], told["round"]) in lost:
            return Packet(reply.manifest, reply.buffer, b"cut off")
        return None

    federation.wire.tamper = tamper
    federation.run()
    assert events(tmp_path / "f/run", 2) == [
        ("bo", "refused: a packet is not signed by the key it must come from")
    ]
    _, one = in_process(spec, {"bo": (2,)})
    assert_same(tmp_path / "f/run", one, 4)


def test_a_repeated_message_is_answered_from_disk_and_not_applied_twice(
    federation, tmp_path, monkeypatch, in_process
):
    from consilia.engines.site import SiteWorker

    trained = []
    honest = SiteWorker.handle

    def counted(self, record):
        if record.verb == "train":
            trained.append((self.name, record.round))
        return honest(self, record)

    monkeypatch.setattr(SiteWorker, "handle", counted)
    federation.wire.tamper = lambda name, told, asked, reply: federation.desks[name].answer(asked)
    federation.run()
    assert len(trained) == len(set(trained)) == 4
    _, one = in_process(federation.spec)
    assert_same(tmp_path / "f/run", one)
    again = [line for line in lines(tmp_path / "f/bo", "ledger.jsonl") if line.get("again")]
    assert {line["verb"] for line in again} == {"introduce", "train", "evaluate"}


def test_a_replayed_reply_of_an_earlier_round_is_refused(federation, tmp_path):
    kept = {}

    def tamper(name, told, asked, reply):
        if name != "bo" or told["verb"] != "train":
            return None
        kept.setdefault("reply", reply)
        return kept["reply"] if told["round"] == 2 else None

    federation.wire.tamper = tamper
    federation.run()
    assert events(tmp_path / "f/run", 2) == [
        ("bo", "refused: it answers a message that was not sent to it")
    ]


@pytest.mark.parametrize("method", ["fedavg", "fedia"])
def test_an_old_question_that_comes_again_spoils_nothing(tmp_path, monkeypatch, method, in_process):
    """What the coordinator asked in round 1 reaches the site once more in every later round."""
    training = {"keep_optimizer": True, "optimizer": "adam", "steps": 1}
    spec = spec_for(method, sites=INCOMPLETE, labels=["round"], rounds=6, training=training)
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    first = []

    def tamper(name, told, asked, reply):
        if (name, told["verb"]) == ("bo", "train"):
            first.append(asked)
            again = federation.desks[name].answer(first[0])
            assert told["round"] == 1 or again.manifest != reply.manifest

    federation.wire.tamper = tamper
    found = federation.run()
    assert len(first) == 6
    assert all(line["took_part"] == ["anna", "bo"] for line in lines(tmp_path / "f/run"))
    expected, one = in_process(spec)
    assert found["sites"] == expected["sites"]
    assert_same(tmp_path / "f/run", one, 6)


def test_an_answer_that_was_cut_short_is_asked_for_again(federation, tmp_path, in_process):
    """Its sender died between two parts: the site answers from its disk."""
    whole = federation.wire.grid.pull
    cut = []

    def pull(names):
        found = whole(names)
        for name in found:
            if len(cut) < 2:
                cut.append(name)
                found[name] = None
        return found

    federation.wire.grid.pull = pull
    federation.run()
    assert len(cut) == 2
    _, one = in_process(federation.spec)
    assert_same(tmp_path / "f/run", one)


def test_a_site_that_dies_of_every_message_is_given_up(federation, tmp_path, in_process):
    asked = []

    def crash(name, told):
        if (name, told["verb"], told["round"]) != ("bo", "train", 2):
            return False
        asked.append(told)
        return True

    federation.wire.crash = crash
    federation.run()
    assert len(asked) == flower.transport.TRIES
    assert events(tmp_path / "f/run", 2) == [("bo", "absent: ClientApp stopped responding.")]
    _, one = in_process(federation.spec, {"bo": (2,)})
    assert_same(tmp_path / "f/run", one)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_training_process_is_asked_again_and_nothing_is_lost(
    tmp_path, monkeypatch, moment, in_process
):
    spec = spec_for("fedia", sites=INCOMPLETE, labels=["round"])
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    crashed = set()

    def crash(name, told):
        key = (name, told["verb"], told["round"])
        if name != "bo" or key in crashed:
            return False
        crashed.add(key)
        if moment == "after":  # it had trained and stored, but not sent
            pending = federation.wire.asked
            federation.desks[name].answer(pending)
        federation.restart(name)
        return True

    honest = federation.wire.deliver

    def deliver(message):
        from consilia.engines.flower import from_content

        federation.wire.asked = from_content(message.content)
        return honest(message)

    federation.wire.deliver = deliver
    federation.wire.crash = crash
    found = federation.run(deadline=60.0)
    assert len(crashed) == 7  # introduce, three trainings, three evaluations
    expected, one = in_process(spec)
    assert without_times(found) == without_times(expected)
    assert_same(tmp_path / "f/run", one, 3)


def test_a_full_disk_lets_nothing_out_and_the_site_comes_back(
    federation, tmp_path, monkeypatch, in_process
):
    from consilia.federation.state import SiteState

    honest = SiteState.keep

    def full(self, verb, round_, *rest):
        if "/bo/" in str(self.folder) and (verb, round_) == ("train", 2):
            raise OSError(28, "No space left on device")
        return honest(self, verb, round_, *rest)

    monkeypatch.setattr(SiteState, "keep", full)
    federation.run()
    expected = [("bo", "failed: OSError; the site's log has the rest")]
    assert events(tmp_path / "f/run", 2) == expected
    _, one = in_process(federation.spec, {"bo": (2,)})
    assert_same(tmp_path / "f/run", one)


def test_a_ledger_that_cannot_be_written_lets_nothing_leave(federation, tmp_path, in_process):
    ledger = federation.desks["bo"].folder / "ledger.jsonl"
    ledger.symlink_to("/dev/full")  # every write to it says that no space is left
    federation.run()
    why = "absent: this site cannot write its ledger, so it answers nothing"
    assert events(tmp_path / "f/run", 1) == events(tmp_path / "f/run", 2) == [("bo", why)]
    assert not [packet for packet in federation.wire.packets if packet[0] == "bo"]
    assert not [x for x in lines(tmp_path / "f/run", "ledger.jsonl") if _came(x, "bo")]
    _, one = in_process(federation.spec, {"bo": (1, 2)})
    assert_same(tmp_path / "f/run", one)


def _came(line, site):
    return (line["site"], line["direction"]) == (site, "up")


@pytest.mark.parametrize("cut", [b"", b'{"half', b'{"half": 1}\n'])
def test_a_line_of_the_ledger_never_joins_one_that_a_crash_cut(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(cut)
    append(path, b'{"a": 1}\n')
    append(path, b'{"b": 2}\n')
    assert path.read_text().splitlines()[-2:] == ['{"a": 1}', '{"b": 2}']


@pytest.mark.parametrize(
    ("verb", "round_"),
    [("introduce", 1), ("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2), ("train", 3)],
)
def test_a_coordinator_that_was_killed_goes_on_to_the_same_result(
    tmp_path, monkeypatch, verb, round_, in_process
):
    spec = spec_for("fedia", sites=INCOMPLETE, labels=["round"], training={"steps": 1})
    federation = Federation(spec, tmp_path / "f", monkeypatch)

    class Killed(BaseException):
        pass

    def tamper(name, told, asked, reply):
        if (told["verb"], told["round"], name) == (verb, round_, "bo"):
            raise Killed

    federation.wire.tamper = tamper
    with pytest.raises(Killed):
        federation.run()
    federation.wire.tamper = None
    found = federation.run()
    expected, one = in_process(spec)
    assert without_times(found) == without_times(expected)
    assert_same(tmp_path / "f/run", one, 3)


def test_too_few_sites_end_the_run_with_a_sentence(tmp_path, monkeypatch, in_process):
    spec = spec_for("fedavg", participation={"min_sites": 3}, training={"steps": 1})
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    federation.wire.silent = {"bo": (2,)}
    with pytest.raises(RunError, match="min_sites is 3"):
        federation.run()
    federation.wire.silent = {}
    federation.run()
    _, one = in_process(spec)
    assert_same(tmp_path / "f/run", one, 3)


def test_the_ledgers_of_both_ends_agree_field_by_field_and_hash_by_hash(federation, tmp_path):
    federation.run()
    at_coordinator = lines(tmp_path / "f/run", "ledger.jsonl")
    for site in federation.desks:
        own = lines(tmp_path / "f" / site, "ledger.jsonl")
        for direction in ("up", "down"):
            sent = [_plain(x) for x in own if x["direction"] == direction and "field" in x]
            noted = [
                _plain(x)
                for x in at_coordinator
                if x["site"] == site and x["direction"] == direction
            ]
            assert sent == noted
            assert sent
            assert all(len(json.loads(line)["sha256"]) == 64 for line in sent)


def _plain(line):
    return json.dumps({k: v for k, v in line.items() if k not in ("time", "run", "study")})


def test_a_study_with_a_row_per_case_needs_the_sites_leave(tmp_path, monkeypatch, in_process):
    spec = toy_spec(method={"name": "fedavg"})
    assert spec.evaluate.per_case
    refusing = Federation(spec, tmp_path / "f", monkeypatch, ("introduce", "train", "evaluate"))
    with pytest.raises(RunError, match=r"does not give; set evaluate.per_case = false"):
        refusing.run()
    willing = Federation(spec, tmp_path / "g", monkeypatch)
    found = willing.run()
    assert without_times(found) == without_times(in_process(spec)[0])


def test_record_is_what_the_key_says_not_what_the_body_says(federation):
    """A record has no sender inside: the site is the one whose key verified."""
    desk = federation.desks["anna"]
    record = Record("train", "bo", 1, "Up", {}, {})
    found, _ = unseal(seal(record, desk.key), desk.key.public_key(), "anna", 1 << 20)
    assert found.site == "anna"
