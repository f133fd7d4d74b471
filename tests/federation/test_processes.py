"""Real processes over TLS: the five main methods give the same bits; a kill; an intruder."""

import http.client
import json
import signal
import ssl
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

from consilia.methods import METHODS, make_method
from tests.federation.live import CLASSIFICATION, SEGMENTATION, Live, finish
from tests.federation.support import lines

MAIN = {
    "segmentation": ("fedmix", "fedia", "fedlppa"),
    "classification": ("fedpsl", "fedlsm"),
}
TABLES = {"segmentation": SEGMENTATION, "classification": CLASSIFICATION}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Start a federation of each kind when it is asked for, and keep it up."""
    started = {}

    def of(kind):
        if kind not in started:
            started[kind] = Live(tmp_path_factory.mktemp(kind), TABLES[kind])
            started[kind].up()
        return started[kind]

    yield of
    for one in started.values():
        one.down()


@pytest.mark.xdist_group("federation")
@pytest.mark.parametrize("kind", MAIN)
def test_main_methods_give_the_bits_and_numbers_of_one_process(live, kind):
    federation = live(kind)
    methods = [name for name in MAIN[kind] if name in METHODS]
    specs = {name: federation.spec(name) for name in methods}
    for name, spec in specs.items():
        assert make_method(name).unmet(spec.federation) is None
    running = {name: federation.start(spec, name) for name, spec in specs.items()}
    for name, child in running.items():
        printed = finish(child)
        assert printed == federation.metrics(name)
        federation.assert_as_in_one_process(name, specs[name])
        _ledgers_agree(federation, name)


def _ledgers_agree(federation, name):
    """What a site says has left it is what the coordinator says has come, hash by hash."""
    run = federation.run(name)
    number = json.loads((run / "federation.json").read_text())["run"]
    for site, folder in federation.folders.items():
        own = [x for x in lines(folder.folder, "ledger.jsonl") if x["run"] == number]
        for direction in ("up", "down"):
            sent = [_plain(x) for x in own if x["direction"] == direction and "field" in x]
            noted = [
                _plain(x)
                for x in lines(run, "ledger.jsonl")
                if (x["site"], x["direction"]) == (site, direction)
            ]
            assert sent == noted
            assert sent


def _plain(line):
    return {k: v for k, v in line.items() if k not in ("time", "run", "study", "again")}


@pytest.mark.xdist_group("federation")
def test_a_killed_coordinator_resumes_to_the_same_result(live):
    federation = live("segmentation")
    spec = federation.spec("fedmix", rounds=3, seed=7, evaluate={"every": 3})
    child = federation.start(spec, "killed")
    until = time.monotonic() + 120
    while 1 not in federation.took_part("killed") and time.monotonic() < until:
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (federation.run("killed") / "metrics.json").exists()
    finish(federation.resume("killed"))
    assert list(federation.took_part("killed")) == [1, 2, 3]
    federation.assert_as_in_one_process("killed", spec)


@pytest.mark.xdist_group("federation")
def test_the_public_port_has_no_other_api(live):
    federation = live("segmentation")
    settings = federation.coordinator.settings
    ca = federation.coordinator.folder / "tls" / "public-ca.crt"
    context = ssl.create_default_context(cafile=str(ca))
    paths = (
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/docs",
        "/openapi.json",
        "/health",
        "/",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "//v1/fleet/x",
        "/v1/fleet//../control/list-runs",
    )
    for path in paths:
        for method in ("GET", "POST"):
            assert raw(method, path, settings.port, context) == 403, path
    answered = raw("POST", "/v1/fleet/pull-messages", settings.port, context)
    assert answered in (400, 401, 404, 415, 422)  # the SuperLink itself, and it wants a key


def raw(method, path, port, context):
    """Send a path as it is written; most clients would tidy it up first."""
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=False)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()
