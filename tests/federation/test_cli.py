"""The commands of both sides, as far as they go without a network."""

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

import tomli_w

from consilia.federation import coordinator as co
from tests.cli.support import consilia
from tests.federation.live import SEGMENTATION


@pytest.fixture
def call(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(tomli_w.dumps({"name": "live", **SEGMENTATION}))
    return lambda *words: consilia(capfd, monkeypatch, *words)


@pytest.fixture
def joined(call):
    """Let both sites join and return what the commands printed."""
    made = json.loads(call("coordinator", "init", "--json").out)
    told = {}
    for site, path in made["invitations"].items():
        words = ["site", "init", path, "--data", f"dataset:phantom-mixed/{site}", "--at", site]
        told[site] = json.loads(call(*words, "--fingerprint", made["fingerprint"], "--json").out)
    admitted = call("coordinator", "admit", *(x["enrolment"] for x in told.values()), "--json")
    return made, told, json.loads(admitted.out)


def test_from_nothing_to_two_enrolled_sites(call, joined, tmp_path):
    made, told, admitted = joined
    assert set(made["invitations"]) == set(told) == set(admitted) == {"ashford", "bergen"}
    assert all(x["fingerprint"] == made["fingerprint"] for x in told.values())
    assert all(not x["problems"] for x in told.values())
    found = json.loads(call("coordinator", "status", "--json").out)
    assert (found["up"], found["door"]) == (False, None)
    assert set(found["sites"].values()) == {"not registered"}
    shown = call("coordinator", "status").out
    assert "the coordinator is down" in shown
    assert list(co.Coordinator.open(tmp_path / "coordinator").enrolled()) == ["ashford", "bergen"]


def test_a_wrong_fingerprint_is_refused(call):
    made = json.loads(call("coordinator", "init", "--json").out)
    path = made["invitations"]["bergen"]
    ended = call("site", "init", path, "--data", "x", "--fingerprint", "0000")
    assert ended.code == 2
    assert "do not use it" in ended.err


def test_a_data_folder_that_is_not_there_is_refused(call):
    made = json.loads(call("coordinator", "init", "--json").out)
    ended = call("site", "init", made["invitations"]["bergen"], "--data", "nowhere")
    assert ended.code == 3
    assert "data folder 'nowhere' does not exist" in ended.err


def test_what_cannot_be_allowed_is_refused(call):
    made = json.loads(call("coordinator", "init", "--json").out)
    words = [
        "site",
        "init",
        made["invitations"]["bergen"],
        "--data",
        "dataset:phantom-mixed/bergen",
    ]
    ended = call(*words, "--allow", "everything")
    assert ended.code == 2
    assert "expected one of 'examine' and 'portray'" in ended.err
    assert call(*words, "--allow", "examine").code == 0


def test_half_a_certificate_is_refused(call, tmp_path):
    ended = call("coordinator", "init", "--certificate", tmp_path / "x.crt")
    assert ended.code == 2
    assert "go together" in ended.err


def test_ones_own_certificate_is_what_the_door_shows(call, tmp_path):
    from consilia.federation.keys import make_authority, make_certificate

    make_authority(tmp_path / "own", "our authority")
    make_certificate(tmp_path / "own", "server", ("consilia.example.org", "localhost"))
    own = tmp_path / "own"
    words = [
        "--certificate",
        own / "server.crt",
        "--key",
        own / "server.key",
        "--ca",
        own / "ca.crt",
    ]
    assert call("coordinator", "init", *words, "--host", "consilia.example.org").code == 0
    tls = tmp_path / "coordinator/tls"
    assert (tls / "public.crt").read_bytes() == (own / "server.crt").read_bytes()
    assert (tls / "public-ca.crt").read_bytes() == (own / "ca.crt").read_bytes()
    assert (tls / "ca.crt").read_bytes() != (own / "ca.crt").read_bytes()


def test_ledger_pause_and_down_of_a_site_that_was_never_up(call, joined):
    assert call("site", "ledger", "--at", "bergen").out == "nothing has left\n"
    assert json.loads(call("site", "ledger", "--at", "bergen", "--json").out) == []
    assert "paused" in call("site", "pause", "--at", "bergen").out
    assert call("site", "down", "--at", "bergen").out == "it was not up\n"
    assert call("coordinator", "down").out == "it was not up\n"


def test_the_ledger_is_summed_up_and_looked_through(call, joined, tmp_path):
    line = {
        "time": "2026-01-01T00:00:00+00:00",
        "run": "0" * 32,
        "study": "live",
        "round": 1,
        "site": "bergen",
        "direction": "up",
        "verb": "train",
        "message": "Up",
        "field": "weights",
        "dtype": "float32",
        "shape": "3 tensors",
        "numbers": 10,
        "bytes": 40,
        "sha256": "a" * 64,
    }
    path = tmp_path / "bergen/ledger.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(line | {"round": 2}) + '\n{"cut')
    shown = call("site", "ledger", "--at", "bergen").out
    assert "Up.weights" in shown
    assert "2 messages left, 80 B; none of it has the shape" in shown
    assert "aaaaaaaa" in call("site", "ledger", "--at", "bergen", "--lines").out
    path.write_text(json.dumps(line | {"shape": "[4, 1, 16, 16]"}) + "\n")
    assert "LOOK CLOSELY at Up.weights" in call("site", "ledger", "--at", "bergen").out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["coordinator", "up", "--at", "nowhere"], "is no coordinator's folder"),
        (["coordinator", "status", "--at", "nowhere"], "is no coordinator's folder"),
        (["site", "up", "--at", "nowhere"], "is no site's folder"),
        (["coordinator", "init"], "not empty"),
        (["coordinator", "resume"], "no run was started here"),
        (["coordinator", "run", "phantom-mixed"], "the study has the site 'cusco'"),
        (["coordinator", "admit", "federation.toml"], "not an enrolment of Consilia's"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(call, joined, words, sentence):
    ended = call(*words)
    assert ended.code in (2, 3)
    assert sentence in ended.err
    assert ended.err.count("\n") == 1


def test_a_run_needs_the_coordinator_up_and_all_sites_enrolled(call, joined, tmp_path):
    run = {"federation": {"name": "live", **SEGMENTATION}, "method": {"name": "fedmix"}}
    (tmp_path / "study").mkdir()
    (tmp_path / "study/run.toml").write_text(tomli_w.dumps(run))
    ended = call("coordinator", "run", "study")
    assert (ended.code, "the coordinator is down" in ended.err) == (2, True)
    (tmp_path / "coordinator/sites/bergen.pem").unlink()
    ended = call("coordinator", "run", "study")
    assert (ended.code, "site 'bergen' has not enrolled" in ended.err) == (2, True)
    ended = call("coordinator", "run", "study", "--method", "central")
    assert (ended.code, "needs all data in one place" in ended.err) == (2, True)
