"""Invitations, enrolments, keys and folders: what is refused when a hospital joins."""

import json
import stat

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

import tomli_w

from consilia.errors import ConsiliaError, UsageError
from consilia.federation import coordinator as co
from consilia.federation import site as si
from consilia.federation.invitation import (
    Enrolment,
    read_invitation,
    write_enrolment,
    write_invitation,
)
from consilia.federation.keys import fingerprint, new_key, read_key, write_key
from consilia.federation.up import prepare
from tests.federation.support import MIXED, spec_for

FEDERATION = spec_for("fedmix", sites=MIXED).federation


@pytest.fixture
def made(tmp_path):
    table = FEDERATION.model_dump(mode="json", exclude_none=True)
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(table))
    invitations = co.make_coordinator(
        tmp_path / "c", tmp_path / "federation.toml", host="localhost", port=8443
    )
    return co.Coordinator.open(tmp_path / "c"), invitations


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_keys_are_their_owners_alone(made, tmp_path):
    coordinator, invitations = made
    folder = coordinator.folder
    assert mode(folder) == 0o700
    secret = ["coordinator.key", "secret", "tokens.json", "tls/ca.key", "tls/public.key"]
    assert {mode(folder / name) for name in secret} == {0o600}
    assert mode(invitations["anna"]) == 0o600
    site = si.join(invitations["anna"], tmp_path / "anna", "dataset:phantom-mixed/ashford").folder
    assert mode(site) == 0o700
    assert {mode(site / name) for name in ("node.key", "secret", "tls/ca.key")} == {0o600}
    assert read_key(site / "node.key").curve.name == "secp384r1"


def test_a_key_that_others_may_read_is_not_used(tmp_path):
    write_key(tmp_path / "key", new_key())
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(UsageError, match="may be read by others; run `chmod 600"):
        read_key(tmp_path / "key")


def test_a_site_joins_and_is_admitted(made, tmp_path):
    coordinator, invitations = made
    si.join(invitations["anna"], tmp_path / "anna", "dataset:phantom-mixed/ashford")
    name, print_ = co.admit(coordinator, tmp_path / "anna/anna.enrolment")
    key = read_key(tmp_path / "anna/node.key").public_key()
    assert (name, print_) == ("anna", fingerprint(key))
    assert list(coordinator.enrolled()) == ["anna"]
    co.admit(coordinator, tmp_path / "anna/anna.enrolment")  # twice does no harm
    own = si.SiteFolder.open(tmp_path / "anna").federation
    assert own.sites == ("anna",)
    assert own.labels == FEDERATION.labels


def tampered(path, change):
    table = json.loads(path.read_text())
    change(table["signed"])
    path.write_text(json.dumps(table))
    return path


TAMPERING = {
    "another host": lambda t: t.update(host="evil.example.org"),
    "another port": lambda t: t.update(port=1),
    "another authority": lambda t: t.update(ca="-----BEGIN CERTIFICATE-----"),
    "another site": lambda t: t.update(site="bo"),
    "another token": lambda t: t.update(token="0" * 64),
    "other labels": lambda t: t["federation"].update(labels=["square", "round"]),
    "another coordinator": lambda t: t.update(
        coordinator=__import__("consilia.federation.keys", fromlist=["x"]).public_text(
            new_key().public_key()
        )
    ),
}


@pytest.mark.parametrize("case", TAMPERING)
def test_a_tampered_invitation_is_refused(made, tmp_path, case):
    _, invitations = made
    path = tampered(invitations["anna"], TAMPERING[case])
    with pytest.raises(UsageError, match=r"changed after it was signed"):
        si.join(path, tmp_path / "anna", "dataset:phantom-mixed/ashford")
    assert not (tmp_path / "anna").exists()


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/x", "a/b", "..", "a\0b", "", "A b"])
def test_a_path_in_an_invitation_is_refused_even_if_the_coordinator_signed_it(made, tmp_path, name):
    coordinator, invitations = made
    key = read_key(coordinator.folder / "coordinator.key")
    honest = read_invitation(invitations["anna"])
    forged = honest.model_construct(**{**honest.model_dump(), "site": name})
    forged = forged.model_copy(update={"federation": honest.federation})
    write_invitation(tmp_path / "forged.invitation", forged, key)
    with pytest.raises(ConsiliaError, match="not a plain name"):
        si.join(tmp_path / "forged.invitation", tmp_path / "anna", "dataset:phantom-mixed/ashford")
    assert not (tmp_path / "anna").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"signed": [], "signature": ""}', "\0" * 10])
def test_what_is_no_invitation_is_refused(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(UsageError, match="not an invitation of Consilia's"):
        read_invitation(tmp_path / "x")


def enrolment_of(made, site, tmp_path, *, token=None, key=None, signer=None):
    _, invitations = made
    invitation = read_invitation(invitations[site])
    if token is not None:
        invitation = invitation.model_copy(update={"token": token})
    key = key or new_key()
    path = tmp_path / "x.enrolment"
    write_enrolment(path, Enrolment.make(invitation, key.public_key()), signer or key)
    return path


def test_an_enrolment_without_the_invitation_is_refused(made, tmp_path):
    path = enrolment_of(made, "anna", tmp_path, token="0" * 64)
    with pytest.raises(UsageError, match="does not come from whoever holds the invitation"):
        co.admit(made[0], path)
    assert made[0].enrolled() == {}


def test_an_enrolment_of_somebody_elses_key_is_refused(made, tmp_path):
    path = enrolment_of(made, "anna", tmp_path, signer=new_key())
    with pytest.raises(UsageError, match="not signed with the key it names"):
        co.admit(made[0], path)


def test_a_second_key_for_a_site_or_one_key_for_two_is_refused(made, tmp_path):
    key = new_key()
    co.admit(made[0], enrolment_of(made, "anna", tmp_path, key=key))
    with pytest.raises(UsageError, match="site 'anna' is enrolled with another key"):
        co.admit(made[0], enrolment_of(made, "anna", tmp_path))
    with pytest.raises(UsageError, match="site 'anna' is enrolled with this key"):
        co.admit(made[0], enrolment_of(made, "bo", tmp_path, key=key))


def test_a_folder_that_holds_something_is_not_written_over(made, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(UsageError, match="not empty"):
        si.join(made[1]["anna"], tmp_path / "full", "dataset:phantom-mixed/ashford")
    with pytest.raises(UsageError, match="not empty"):
        co.make_coordinator(
            tmp_path / "full", tmp_path / "federation.toml", host="localhost", port=8443
        )


def test_nothing_can_turn_tls_or_keys_off(made, tmp_path):
    """The commands the keeper runs: TLS, keys, loopback, the database; never --insecure."""
    coordinator, invitations = made
    site = si.join(invitations["anna"], tmp_path / "anna", "dataset:phantom-mixed/ashford")
    prepare(coordinator, nginx=False)
    si.prepare(site)
    listed = json.loads((coordinator.folder / "processes.json").read_text())
    superlink = listed["commands"]["superlink"]
    node = json.loads((site.folder / "processes.json").read_text())
    supernode = node["commands"]["supernode"]
    for words in (superlink, supernode):
        assert "--insecure" not in words
        assert words[words.index("--host") + 1] == "127.0.0.1"
        assert words[words.index("--isolation") + 1] == "process"
        assert "--superexec-auth-secret-file" in words
    for option in (
        "--enable-supernode-auth",
        "--database",
        "--ssl-certfile",
        "--disable-runtime-dependency-installation",
    ):
        assert option in superlink
    for option in ("--auth-supernode-private-key", "--root-certificates"):
        assert option in supernode
    for table, folder in ((listed, coordinator.folder), (node, site.folder)):
        assert table["environment"]["FLWR_TELEMETRY_ENABLED"] == "0"
        assert table["environment"]["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert table["environment"]["FLWR_HOME"] == str(folder / "flower")
