"""Brings a coordinator up: the SuperLink on loopback, the door that hospitals see, and a look at it."""

from __future__ import annotations

import shutil
import ssl
import sys
import threading

from consilia.engines.quiet import QUIET
from consilia.federation import processes
from consilia.federation.coordinator import Coordinator
from consilia.federation.proxy import address


def prepare(coordinator: Coordinator, *, nginx: bool | None = None) -> str:
    """Write what the keeper starts; return which program is the door.

    Args:
        coordinator: Whose folder.
        nginx: Whether to use it; by default where it is installed.
    """
    folder, settings, tls = coordinator.folder, coordinator.settings, coordinator.folder / "tls"
    found = shutil.which("nginx")
    use = found is not None if nginx is None else nginx
    superlink = [
        processes.command("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(settings.superlink_port)),
        *("--ssl-ca-certfile", str(tls / "ca.crt")),
        *("--ssl-certfile", str(tls / "loopback.crt"), "--ssl-keyfile", str(tls / "loopback.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")),
        *("--database", str(folder / "flower" / "state.db")),
    ]
    door = [
        *(sys.executable, "-m", "consilia.federation.proxy"),
        *("--listen", address(settings.listen, settings.port)),
        *("--target", f"https://{coordinator.superlink}", "--ca", str(tls / "ca.crt")),
        *("--certificate", str(tls / "public.crt"), "--key", str(tls / "public.key")),
    ]
    if use:
        door = [found or "nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder / "nginx")]
    (folder / "flower").mkdir(mode=0o700, exist_ok=True)
    environment = {**QUIET, "FLWR_HOME": str(folder / "flower")}
    processes.write_list(folder, {"superlink": superlink, "proxy": door}, environment)
    return "nginx" if use else "proxy"


def up(coordinator: Coordinator, *, nginx: bool | None = None) -> str:
    """Start the SuperLink and the door, let the enrolled sites in, and return the door's name."""
    door = prepare(coordinator, nginx=nginx)
    processes.start(coordinator.folder)
    link = coordinator.link()
    processes.wait_for(coordinator.folder, link.alive, "the SuperLink")
    processes.wait_for(coordinator.folder, lambda: door_answers(coordinator) == 403, "the door")
    coordinator.let_in()
    return door


def stay(coordinator: Coordinator, *, nginx: bool | None = None) -> None:
    """Do what `up` does in this very process, until it is ended: for systemd or a container."""
    prepare(coordinator, nginx=nginx)
    keeper = processes.Keeper(coordinator.folder)
    threading.Thread(target=_let_in, args=(coordinator, keeper.stopped), daemon=True).start()
    keeper.run()


def _let_in(coordinator: Coordinator, stopped: threading.Event) -> None:
    link = coordinator.link()
    while not stopped.wait(0.5):
        if link.alive():
            coordinator.let_in()
            return


def door_answers(coordinator: Coordinator, path: str = "/v1/control/list-runs") -> int | None:
    """Return what the public port answers to a request that must not pass: 403, if all is well."""
    import httpx

    settings = coordinator.settings
    context = ssl.create_default_context(cafile=str(coordinator.folder / "tls" / "public-ca.crt"))
    context.check_hostname = False  # this machine may know itself by another name than hospitals do
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.listen, settings.listen)
    try:
        with httpx.Client(verify=context, timeout=5) as client:
            return client.post(f"https://{address(host, settings.port)}{path}").status_code
    except httpx.HTTPError:
        return None
