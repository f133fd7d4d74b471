"""A coordinator with a damaged memory: one sentence names the file and a way out, and the way out works."""

import json
import re
import shutil

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

import tomli_w

from consilia.errors import MessageError, UsageError
from consilia.federation import coordinator as co
from consilia.federation import site as si
from consilia.federation.across import RUN, _run_record
from consilia.federation.keys import read_key
from consilia.federation.status import latest_run, note_run
from consilia.runs.store import RunFolder
from tests.cli.support import consilia
from tests.federation.support import INCOMPLETE, MIXED, Federation, final_bytes, spec_for

DAMAGE = ["", "{", "[]", "null", '{"path": 1, "run": 1}', "\x00\ufffd"]


@pytest.fixture
def coordinator(tmp_path):
    table = spec_for("fedmix", sites=MIXED).federation.model_dump(mode="json", exclude_none=True)
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(table))
    invitations = co.make_coordinator(
        tmp_path / "c", tmp_path / "federation.toml", host="localhost", port=8443
    )
    made = co.Coordinator.open(tmp_path / "c")
    si.join(invitations["anna"], tmp_path / "anna", "dataset:phantom-mixed/ashford")
    co.admit(made, tmp_path / "anna/anna.enrolment")
    return made


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", spec_for("fedmix", sites=MIXED))


@pytest.mark.parametrize("spoiled", ["server.safetensors", "progress.json"])
def test_a_run_whose_checkpoint_is_damaged_begins_again_to_the_same_bits(
    tmp_path, monkeypatch, spoiled
):
    """The sites still have what they remembered, and answered, after rounds that are run again."""
    spec = spec_for("fedia", sites=INCOMPLETE, labels=["round"])
    federation = Federation(spec, tmp_path / "f", monkeypatch)
    federation.run()
    path = tmp_path / "f/run"
    expected = final_bytes(path, spec.rounds)
    (path / "metrics.json").unlink()  # as if it had been killed before its last word
    _, state = RunFolder(path).latest_checkpoint()
    (state / spoiled).write_bytes(b"damaged")
    asked = federation.wire.grid.count
    way_out = "remove that folder and resume the run from round 1, or begin the run again"
    with pytest.raises(MessageError, match=f"^checkpoint '{state}' cannot be used: .*; {way_out}"):
        federation.run()
    assert federation.wire.grid.count == asked  # nothing was sent
    shutil.rmtree(state)
    federation.run()
    assert federation.wire.grid.count > asked
    assert final_bytes(path, spec.rounds) == expected


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_run_record_sends_the_run_elsewhere(coordinator, run, text):
    """Without it nobody knows by which name the sites remember the run, so it cannot go on."""
    kept = _run_record(run, coordinator)
    assert _run_record(run, coordinator) == kept
    (run.path / RUN).write_text(text)
    with pytest.raises(UsageError, match=r"^federation\.json of run .*; begin it again with anoth"):
        _run_record(run, coordinator)


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_note_of_the_last_run_asks_for_its_name(
    coordinator, run, text, capfd, monkeypatch
):
    note_run(coordinator, run.path)
    assert latest_run(coordinator) == run.path
    note = coordinator.folder / "run.json"
    note.write_text(text)
    ended = consilia(capfd, monkeypatch, "coordinator", "resume", "--at", str(coordinator.folder))
    assert ended.code == 2
    assert f"file '{note}' is missing, damaged or not ours; remove it, and name" in _flat(ended.err)
    note.unlink()
    words = ("coordinator", "resume", str(run.path), "--at", str(coordinator.folder))
    assert "site 'bo' has not enrolled" in _flat(consilia(capfd, monkeypatch, *words).err)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
@pytest.mark.parametrize("name", ["settings.json", "tokens.json"])
def test_damaged_settings_are_to_be_put_back(coordinator, tmp_path, name, text):
    path = coordinator.folder / name
    before = path.read_text()
    enrolment = tmp_path / "anna/anna.enrolment"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"^file '{path}' is missing, .*; put it back as it was$"):
        _ = coordinator.settings if name == "settings.json" else co.admit(coordinator, enrolment)
    path.write_text(before)
    assert coordinator.settings.port == 8443
    assert co.admit(coordinator, enrolment)[0] == "anna"


def test_damaged_settings_of_a_site_are_to_be_put_back(coordinator, tmp_path):
    path = si.SiteFolder.open(tmp_path / "anna").folder / "settings.json"
    path.write_text(json.dumps({"port": 1})[:-1])
    with pytest.raises(UsageError, match=f"^file '{path}' is missing, .*; put it back as it was$"):
        _ = si.SiteFolder.open(tmp_path / "anna").settings


@pytest.mark.parametrize("content", [b"", b"damaged", b"\xff\xfe"])
def test_a_damaged_key_of_a_site_is_admitted_again(coordinator, tmp_path, content):
    path = coordinator.folder / "sites/anna.pem"
    before = coordinator.enrolled()
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"^'{path}': .* damaged .*; remove it and `consilia coor"):
        coordinator.enrolled()
    path.unlink()
    co.admit(coordinator, tmp_path / "anna/anna.enrolment")
    assert coordinator.enrolled() == before


def test_a_damaged_or_lost_key_of_the_coordinator_is_to_be_put_back(coordinator):
    path = coordinator.folder / "coordinator.key"
    path.write_text("damaged")
    for _ in ("damaged", "lost"):
        with pytest.raises(UsageError, match=f"^key '{path}' .*; put it back as it was$"):
            read_key(path)
        path.unlink(missing_ok=True)


def _flat(text):
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("name", ["secret", "tls/ca.crt"])
def test_a_coordinator_without_its_secret_or_certificate_names_the_file(coordinator, name):
    (coordinator.folder / name).write_bytes(b"")
    sentence = rf"^file '{coordinator.folder}/{name}' is missing, empty .*; put it back as it was"
    with pytest.raises(UsageError, match=sentence):
        coordinator.link()
    (coordinator.folder / name).unlink()
    with pytest.raises(UsageError, match=sentence):
        coordinator.link()
