"""The long tables over real processes: every method, four sites, kills at random moments, intruders."""

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

import httpx

from consilia.declare import Federation
from consilia.engines.packet import seal
from consilia.federation import processes
from consilia.federation.keys import make_authority, make_certificate, new_key, write_key
from consilia.federation.up import door_answers
from consilia.methods import METHODS, make_method
from consilia.payload import pack
from tests.federation.live import CLASSIFICATION, SEGMENTATION, Live, finish, until
from tests.federation.support import flower, lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.xdist_group("federation-tables"),
]
KILLS = int(os.environ.get("CONSILIA_KILLS", "1"))
NGINX = shutil.which("nginx")
MAIN = ("fedmix", "fedia", "fedpsl", "fedlsm", "fedlppa")
OWN = [
    name
    for name, entry in METHODS.items()
    if entry.method.data == "own" and entry.method.labels == "declared"
]
FOUR_MASKS = {
    **SEGMENTATION,
    "site": [
        {
            "name": n,
            "data": f"dataset:phantom-lesions/{n}",
            "supervision": "mask",
            "complete": n != "graz",
        }
        for n in ("graz", "hanoi", "izmir", "jaipur")
    ],
}
FOUR_IMAGES = {
    **CLASSIFICATION,
    "site": [
        {"name": n, "data": f"dataset:phantom-findings/{n}", "supervision": "image"}
        for n in ("kyoto", "lagos", "malmo", "natal")
    ],
}
#: Tried in turn until one fits a method.
TWO = {
    "segmentation": SEGMENTATION,
    "classification": CLASSIFICATION,
    "single-label": {**CLASSIFICATION, "exclusive": True, "test": None},
    "discs": {
        "task": "segmentation",
        "labels": ["cup", "disc"],
        "image": {"size": [16, 16], "channels": 3},
        "site": [
            {"name": "almeria", "data": "dataset:phantom-disc/almeria", "supervision": "mask"},
            {"name": "bristol", "data": "dataset:phantom-disc/bristol", "supervision": "scribble"},
        ],
    },
}
TWO["single-label"] = {
    "task": "classification",
    "labels": ["mel", "nv", "bcc", "akiec", "bkl", "df", "vasc"],
    "image": {"size": [16, 16], "channels": 3},
    "site": [
        {"name": n, "data": f"dataset:phantom-skin/{n}", "supervision": "image"}
        for n in ("oslo", "porto")
    ],
}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    started = {}

    def of(name, table, **options):
        if name not in started:
            for other in list(started):  # memory: one at a time
                started.pop(other).down()
            started[name] = Live(tmp_path_factory.mktemp(name), table)
            started[name].up(**options)
        return started[name]

    yield of
    for one in started.values():
        one.down()


def kind_of(method, tables):
    for name, table in tables.items():
        declared = Federation.model_validate({"name": "x", **table})
        if make_method(method).unmet(declared) is None:
            return name
    raise AssertionError(f"no federation fits {method}")


@pytest.mark.parametrize("method", sorted(OWN, key=lambda m: kind_of(m, TWO)))
def test_every_method_gives_the_bits_of_one_process(live, method):
    kind = kind_of(method, TWO)
    federation = live(kind, TWO[kind])
    spec = federation.spec(method)
    finish(federation.start(spec, method))
    federation.assert_as_in_one_process(method, spec)


@pytest.mark.parametrize("method", [m for m in MAIN if m in METHODS])
def test_main_methods_across_four_sites(live, method):
    tables = {"four-masks": FOUR_MASKS, "four-images": FOUR_IMAGES}
    kind = kind_of(method, tables)
    federation = live(kind, tables[kind])
    spec = federation.spec(method)
    finish(federation.start(spec, method), 600)
    assert all(len(here) == 4 for here in federation.took_part(method).values())
    federation.assert_as_in_one_process(method, spec)


# --- kills ---

VICTIMS = {
    "training process": ("bergen", "train"),
    "SuperNode": ("bergen", "supernode"),
    "SuperLink": ("coordinator", "superlink"),
    "proxy": ("coordinator", "proxy"),
    "ServerApp": None,
}


@pytest.mark.parametrize("turn", range(KILLS))
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_at_a_random_moment_loses_nothing(live, victim, turn, record_property):
    killed(live("segmentation", SEGMENTATION), victim, turn, record_property)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize("turn", range(KILLS))
def test_a_kill_of_nginx_at_a_random_moment_loses_nothing(live, turn, record_property):
    federation = live("nginx", SEGMENTATION, nginx=True)
    killed(federation, "proxy", turn, record_property)
    assert door_answers(federation.coordinator) == 403


def killed(federation, victim, turn, note):
    """Kill something while a run is in one of its rounds, and compare how the run ends."""
    federation.wait_online(federation.sites)
    name = f"{victim.replace(' ', '-').lower()}-{turn}"
    method = ("fedia", "fedmix")[turn % 2]
    spec = federation.spec(method, rounds=3, seed=turn, evaluate={"every": 3})
    child = federation.start(spec, name, "--deadline", "240", "--patience", "90")
    drawn = random.Random(f"{victim}/{turn}")
    after, more = drawn.randrange(3), drawn.uniform(0, 3)
    until(lambda: _began(federation, name) and len(federation.took_part(name)) >= after)
    time.sleep(more)
    began = time.monotonic()
    note("moment", f"round {len(federation.took_part(name)) + 1}, {more:.1f} s in")
    assert child.poll() is None, "the run had ended before anything was killed"
    if VICTIMS[victim] is None:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child = federation.resume(name)
    else:
        federation.kill(*VICTIMS[victim])
    finish(child, 900)
    took = federation.took_part(name)
    note("seconds from the kill to the end", f"{time.monotonic() - began:.0f}")
    note("took part", " ".join(str(len(here)) for here in took.values()))
    assert list(took) == [1, 2, 3]
    federation.assert_as_in_one_process(name, spec)


def _began(federation, name):
    """Whether a run has its Flower run, so that messages are about to be sent."""
    path = federation.run(name) / "federation.json"
    return path.is_file() and json.loads(path.read_text())["flower"]


def test_a_site_that_is_down_for_three_rounds_comes_back(live):
    federation = live("segmentation", SEGMENTATION)
    spec = federation.spec("fedmix", rounds=15, seed=99, evaluate={"every": 15})
    child = federation.start(spec, "away", "--patience", "1", "--deadline", "100")
    until(lambda: 2 in federation.took_part("away"))
    processes.stop(federation.folders["bergen"].folder)
    until(lambda: sum("bergen" not in x for x in federation.took_part("away").values()) >= 3)
    processes.start(federation.folders["bergen"].folder)
    finish(child, 900)
    here = ["bergen" in x for x in federation.took_part("away").values()]
    assert here[:2] == [True, True]
    assert here.count(False) >= 3
    assert here[-1], "it did not come back"
    federation.assert_as_in_one_process("away", spec)
    events = [e["event"] for x in lines(federation.run("away")) for e in x["events"]]
    assert any("absent" in event for event in events)


# --- intruders ---


@pytest.fixture(scope="module")
def fed(live):
    return live("segmentation", SEGMENTATION)


def supernode(fed, tmp_path, *, key=None, ca=None, port=None):
    """Start a SuperNode of an intruder's and return how it ended and what it said."""
    port = port or fed.coordinator.settings.port
    words = [processes.command("flower-supernode"), "--superlink", f"localhost:{port}"]
    words += ["--root-certificates", str(ca or fed.coordinator.folder / "tls/public-ca.crt")]
    words += ["--host", "127.0.0.1", "--port", str(processes.free_port()), "--max-retries", "1"]
    words += ["--isolation", "process"]
    if key is not None:
        words += ["--auth-supernode-private-key", str(key)]
    child = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FLWR_HOME": str(tmp_path / "home")},
    )
    try:
        out, _ = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        out, _ = child.communicate()
    return child.returncode, out


def test_an_unregistered_key_is_refused(fed, tmp_path):
    write_key(tmp_path / "key", new_key())
    code, said = supernode(fed, tmp_path, key=tmp_path / "key")
    assert code != 0
    assert "SuperNode ID" not in said
    assert "2004" in said or "activate" in said


def test_no_key_is_refused(fed, tmp_path):
    code, said = supernode(fed, tmp_path)
    assert code != 0
    assert "SuperNode ID" not in said
    assert "2001" in said or "must be registered" in said


def test_another_authority_is_refused(fed, tmp_path):
    make_authority(tmp_path / "tls", "other")
    make_certificate(tmp_path / "tls", "x", ("localhost",))
    write_key(tmp_path / "key", new_key())
    code, said = supernode(fed, tmp_path, key=tmp_path / "key", ca=tmp_path / "tls/ca.crt")
    assert code != 0
    assert "SuperNode ID" not in said
    assert "certificate" in said.lower()


def test_a_coordinator_with_a_certificate_of_another_authority_is_refused(fed, tmp_path):
    """Somebody in the network's middle: the same name, the same key at the site, another door."""
    make_authority(tmp_path / "tls", "other")
    make_certificate(tmp_path / "tls", "public", ("localhost",))
    port = processes.free_port()
    words = [sys.executable, "-m", "consilia.federation.proxy", "--listen", f"127.0.0.1:{port}"]
    words += ["--target", f"https://{fed.coordinator.superlink}"]
    words += ["--ca", str(fed.coordinator.folder / "tls/ca.crt")]
    for name, ending in (("certificate", "crt"), ("key", "key")):
        words += [f"--{name}", str(tmp_path / f"tls/public.{ending}")]
    middle = subprocess.Popen(words)
    try:
        until(lambda: _listens(port), 30)
        key = fed.folders["bergen"].folder / "node.key"
        code, said = supernode(fed, tmp_path, key=key, port=port)
    finally:
        middle.terminate()
        middle.wait()
    assert code != 0
    assert "SuperNode ID" not in said
    assert "certificate" in said.lower()


def _listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's own packing
def test_a_run_submitted_with_only_the_ca_file_runs_nowhere(fed, tmp_path):
    """On loopback Flower takes it; no process of ours runs its code, and no site hears of it."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab

    marker = tmp_path / "was-run"
    bundle = {
        **flower.link.BUNDLE,
        "consilia_bundle/__init__.py": f"open({str(marker)!r}, 'w').write('x')\n".encode(),
    }
    content, _ = build_fab_from_files(bundle)
    ca = (fed.coordinator.folder / "tls/ca.crt").read_bytes()
    client = flower.client.connect(ControlHttpClient, fed.coordinator.superlink, ca)
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    run = client.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
    assert run
    spec = fed.spec("fedmix", rounds=1, seed=31)
    finish(fed.start(spec, "beside"))  # ours takes up its own task and refuses the other
    runs = client.ListRuns(ListRunsRequest()).run_dict
    client.close()
    status = runs[run].status
    assert (status.status, status.sub_status) == ("finished", "failed")
    assert "refused" in status.details
    assert not marker.exists()
    fed.assert_as_in_one_process("beside", spec)


def test_runtime_and_control_are_not_on_the_public_port(fed):
    settings = fed.coordinator.settings
    ca = fed.coordinator.folder / "tls/public-ca.crt"
    context = ssl.create_default_context(cafile=str(ca))
    with httpx.Client(verify=context, base_url=f"https://localhost:{settings.port}") as client:
        for path in (
            "/v1/control/start-run",
            "/v1/control/register-node",
            "/v1/runtime/acquire-task",
        ):
            answer = client.post(path)
            assert (answer.status_code, answer.text) == (403, "only the Fleet API is served here\n")


def test_the_runtime_api_of_a_site_gives_no_task_without_its_secret(fed):
    from flwr.supercore.runtime import RuntimeHttpClient

    folder = fed.folders["bergen"]
    ca = (folder.folder / "tls/ca.crt").read_bytes()
    address = f"127.0.0.1:{folder.settings.port}"
    without = flower.client.connect(RuntimeHttpClient, address, ca)
    for client in (without, flower.client.connect_for_tasks(address, ca, b"x" * 32)):
        with pytest.raises(httpx.HTTPStatusError) as refused:
            flower.client.acquire(client)
        client.close()
        assert refused.value.response.status_code in (401, 403)


def test_a_message_in_another_sites_name_is_refused(fed):
    """Bergen answers in Ashford's name, with a key the federation knows: the wrong one."""
    from consilia.engines.messages import Failed
    from consilia.engines.packet import unseal
    from consilia.errors import MessageError
    from consilia.federation.keys import read_key, read_public

    keys = fed.coordinator.enrolled()
    forged = seal(
        pack(Failed("x"), "train", "ashford", 1),
        read_key(fed.folders["bergen"].folder / "node.key"),
        {"answers": "x"},
    )
    with pytest.raises(MessageError, match="not signed by the key it must come from"):
        unseal(forged, read_public(keys["ashford"]), "ashford", 1 << 20)
    unseal(forged, read_public(keys["bergen"]), "bergen", 1 << 20)


def test_fleet_requests_with_a_key_in_anothers_name_are_refused(fed):
    """Flower itself: Bergen's key with Ashford's node number gets 401."""
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.control import ControlHttpClient
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from consilia.federation.keys import read_key

    link = fed.coordinator.link()
    control = flower.client.connect(ControlHttpClient, link.address, link.ca)
    nodes = control.ListNodes(ListNodesRequest()).nodes_info
    control.close()
    of = {bytes(n.public_key).decode(): n.node_id for n in nodes}
    keys = fed.coordinator.enrolled()
    key = read_key(fed.folders["bergen"].folder / "node.key")
    ca = (fed.coordinator.folder / "tls/public-ca.crt").read_bytes()
    auth = NodeAuthHttpInterceptor(key, key.public_key())
    address = f"localhost:{fed.coordinator.settings.port}"
    client = flower.client.connect(FleetHttpClient, address, ca, auth)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.PullMessages(PullMessagesRequest(node=Node(node_id=of[keys["ashford"]])))
    client.close()
    assert refused.value.response.status_code == 401
