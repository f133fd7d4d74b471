"""The door: nginx with the file that is written, and the small proxy, let the same requests through."""

import contextlib
import hashlib
import http.client
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

import tomli_w

from consilia.federation import coordinator as co
from consilia.federation import processes
from consilia.federation.keys import make_authority, make_certificate
from consilia.federation.proxy import REFUSAL, address, passes
from consilia.federation.up import prepare
from tests.federation.support import MIXED, spec_for

pytestmark = pytest.mark.xdist_group("federation-door")
NGINX = shutil.which("nginx")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
DOORS = ["proxy", pytest.param("nginx", marks=needs_nginx)]
REQUESTS = [
    ("POST", "/v1/fleet/pull-messages"),
    ("POST", "/v1/fleet/push-object?x=1//2"),
    ("POST", "/v1/fleet/a/b_c/D-9"),
    ("GET", "/v1/fleet/pull-messages"),
    ("PUT", "/v1/fleet/pull-messages"),
    ("DELETE", "/v1/fleet/pull-messages"),
    ("POST", "/"),
    ("POST", "/v1/fleet"),
    ("POST", "/v1/fleet/"),
    ("POST", "/v1/fleet/x/"),
    ("POST", "/v1/fleet//x"),
    ("POST", "//v1/fleet/x"),
    ("POST", "/v1/fleetx/y"),
    ("POST", "/V1/FLEET/x"),
    ("POST", "/v1/control/start-run"),
    ("POST", "/v1/runtime/acquire-task"),
    ("POST", "/v1/fleet/../control/start-run"),
    ("POST", "/v1/fleet/./x"),
    ("POST", "/v1/fleet/x/../../control/start-run"),
    ("POST", "/v1/fleet//../control/start-run"),
    ("POST", "/v1/fleet/%2e%2e/control/start-run"),
    ("POST", "/v1/fleet/x%2f..%2f..%2fcontrol/start-run"),
    ("POST", "/v1/fleet/..;/control/start-run"),
    ("POST", "/v1/fleet/x\\..\\..\\control"),
    ("POST", "/v1/control/start-run?/v1/fleet/x"),
    ("POST", "/v1/control/start-run#/v1/fleet/x"),
    ("POST", "/docs"),
    ("POST", "/openapi.json"),
]


class Behind(BaseHTTPRequestHandler):
    """Stands in for the SuperLink: notes what reaches it and answers with the hash of the body."""

    def do_POST(self):
        self.server.seen.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        text = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def behind(tls, port):
    """Serve on the SuperLink's port and yield the paths that arrive."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Behind)
    server.seen = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "loopback.crt", tls / "loopback.key")
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    """A coordinator in a folder whose name has a space, as folders of people have."""
    path = tmp_path_factory.mktemp("a folder")
    table = spec_for("fedmix", sites=MIXED).federation.model_dump(mode="json", exclude_none=True)
    (path / "federation.toml").write_text(tomli_w.dumps(table))
    port = processes.free_port()
    co.make_coordinator(path / "c d", path / "federation.toml", host="localhost", port=port)
    return co.Coordinator.open(path / "c d")


@pytest.fixture
def superlink(coordinator):
    with behind(coordinator.folder / "tls", coordinator.settings.superlink_port) as seen:
        yield seen


@pytest.fixture(scope="module", params=DOORS)
def door(request, coordinator):
    """Start the very command that the keeper would start."""
    prepare(coordinator, nginx=request.param == "nginx")
    words = processes.Keeper(coordinator.folder).commands["proxy"]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if send(coordinator, "POST", "/")[0] == 403:
                break
        except OSError:
            time.sleep(0.1)
    yield request.param
    child.terminate()
    child.wait()


def send(coordinator, method, path, body=b""):
    """Send a path as it is written; most clients would tidy it up first."""
    ca = coordinator.folder / "tls/public-ca.crt"
    context = ssl.create_default_context(cafile=str(ca))
    port = coordinator.settings.port
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
    try:
        connection.putrequest(method, path)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_only_plain_requests_of_the_fleet_api_reach_the_superlink(
    coordinator, superlink, door, method, path
):
    expected = passes(method, path.encode())
    status, text = send(coordinator, method, path)
    if expected:
        assert (status, superlink) == (200, [path])
    else:
        assert superlink == []
        assert status in (400, 403)  # a fragment or a backslash is no request at all to some
        assert status == 400 or text.decode() == f"{REFUSAL}\n"


def test_something_passes_and_most_does_not():
    assert sum(passes(method, path.encode()) for method, path in REQUESTS) == 2


def test_a_large_body_arrives_whole(coordinator, superlink, door):
    body = bytes(range(256)) * (1 << 15)  # 8 MiB
    status, text = send(coordinator, "POST", "/v1/fleet/push-object", body)
    assert (status, text.decode()) == (200, hashlib.sha256(body).hexdigest())


def test_the_door_talks_to_no_superlink_but_its_own(coordinator, door, tmp_path):
    """Whoever takes the SuperLink's port while it is down has not its certificate."""
    make_authority(tmp_path, "other")
    make_certificate(tmp_path, "loopback", ("localhost", "127.0.0.1"))
    with behind(tmp_path, coordinator.settings.superlink_port) as seen:
        assert send(coordinator, "POST", "/v1/fleet/pull-messages")[0] == 502
        assert seen == []


@needs_nginx
def test_nginx_accepts_the_file(coordinator):
    folder = coordinator.folder
    words = [NGINX, "-t", "-c", str(folder / "nginx.conf"), "-p", str(folder / "nginx")]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "warn" not in found.stderr


@pytest.mark.parametrize(
    ("host", "expected"),
    [("0.0.0.0", "0.0.0.0:1"), ("::", "[::]:1"), ("door.example.org", "door.example.org:1")],
)
def test_an_address_is_one_word(host, expected):
    assert address(host, 1) == expected


def test_the_children_of_a_killed_child_go_with_it(tmp_path):
    """nginx that is killed leaves workers which hold the port; so would any that forks."""
    told = tmp_path / "grandchild"
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(told)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    processes.write_list(tmp_path, {"forks": [sys.executable, "-c", script]}, {})
    processes.start(tmp_path)
    try:
        wait(lambda: told.is_file() and told.read_text().isdigit())
        first, leader = int(told.read_text()), processes.pids(tmp_path)["forks"]
        told.unlink()

        os.kill(leader, signal.SIGKILL)
        wait(lambda: not alive(first))
        wait(lambda: told.is_file() and told.read_text().isdigit())
        second = int(told.read_text())
    finally:
        processes.stop(tmp_path)
    wait(lambda: not alive(second))


def alive(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait(ready):
    until = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.05)
