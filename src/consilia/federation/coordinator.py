"""The coordinator's half: its folder, its door, and a run across hospitals."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from consilia.declare import Federation
from consilia.declare.read import read_federation, validate
from consilia.engines.quiet import QUIET, hush
from consilia.errors import DeclarationError, UsageError, listing
from consilia.federation import processes
from consilia.federation.invitation import (
    Enrolment,
    Invitation,
    Strict,
    plain_name,
    read_enrolment,
    write_invitation,
)
from consilia.federation.keys import (
    fingerprint,
    make_authority,
    make_certificate,
    new_key,
    public_text,
    read_public,
    write_key,
    write_private,
)
from consilia.federation.proxy import nginx_file
from consilia.runs.spec import RunSpec
from consilia.runs.store import RunFolder, refuse_full

if TYPE_CHECKING:
    from consilia.engines.flower import Link

LOOPBACK = ("localhost", "127.0.0.1")
RUN = "federation.json"


class Settings(Strict):
    """What `coordinator init` wrote down."""

    host: str
    port: int = Field(ge=1, le=65535)
    listen: str
    superlink_port: int = Field(ge=1, le=65535)


@dataclass(frozen=True)
class Coordinator:
    """A coordinator's folder."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Coordinator:
        """Return a folder that `coordinator init` wrote."""
        if not (folder / "settings.json").is_file():
            msg = f"'{folder}' is no coordinator's folder; `consilia coordinator init` makes one"
            raise UsageError(msg)
        return cls(folder.resolve())

    @property
    def settings(self) -> Settings:
        """How hospitals and this machine reach the SuperLink."""
        table = json.loads((self.folder / "settings.json").read_text(encoding="utf-8"))
        return validate(Settings, table, "settings.json", UsageError)

    @property
    def federation(self) -> Federation:
        """The sites that were invited and what they study."""
        return read_federation(self.folder / "federation.toml")

    @property
    def superlink(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.settings.superlink_port}"

    def enrolled(self) -> dict[str, str]:
        """Return the public key of every site that has enrolled."""
        found = {}
        for path in sorted((self.folder / "sites").glob("*.pem")):
            found[plain_name(path.stem)] = path.read_text(encoding="utf-8")
        return found

    def link(self) -> Link:
        """Return the way to this machine's SuperLink."""
        hush(self.folder / "flower")
        from consilia.engines.flower import Link

        ca = (self.folder / "tls" / "ca.crt").read_bytes()
        secret = (self.folder / "secret").read_bytes()
        return Link(self.superlink, ca, secret, self.folder / ".starting")


# --- init ---------------------------------------------------------------------------------------


def make_coordinator(
    folder: Path,
    federation: Path,
    *,
    host: str,
    port: int,
    listen: str = "127.0.0.1",
    superlink_port: int | None = None,
    certificate: tuple[Path, Path, Path] | None = None,
) -> dict[str, Path]:
    """Write a coordinator's folder and return the invitation of each site.

    Args:
        folder: The new folder, readable by its owner alone.
        federation: What was agreed: labels, image size and each site's declaration.
        host: The name or address by which hospitals reach this machine.
        port: The port they connect to.
        listen: The address the door listens on.
        superlink_port: The SuperLink's port on loopback; by default a free one.
        certificate: The user's own server certificate, its key, and the authority hospitals check
            it against; by default all three are made here.
    """
    declared = read_federation(federation)
    refuse_full(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    folder = folder.resolve()
    shutil.copyfile(federation, folder / "federation.toml")
    tls = folder / "tls"
    make_authority(tls, f"{declared.name} coordinator")
    make_certificate(tls, "loopback", LOOPBACK)
    if certificate is None:
        make_certificate(tls, "public", tuple(dict.fromkeys((host, *LOOPBACK))))
        shutil.copyfile(tls / "ca.crt", tls / "public-ca.crt")
    else:
        own, key, authority = certificate
        shutil.copyfile(own, tls / "public.crt")
        write_private(tls / "public.key", key.read_bytes())
        shutil.copyfile(authority, tls / "public-ca.crt")
    key_ = new_key()
    write_key(folder / "coordinator.key", key_)
    write_private(folder / "secret", secrets.token_bytes(32))
    settings = Settings(
        host=host, port=port, listen=listen, superlink_port=superlink_port or free_port()
    )
    (folder / "settings.json").write_text(
        settings.model_dump_json(indent=1) + "\n", encoding="utf-8"
    )
    where = f"{listen}:{port}"
    (folder / "nginx").mkdir(mode=0o700)
    text = nginx_file(folder, where, f"127.0.0.1:{settings.superlink_port}")
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    (folder / "sites").mkdir(mode=0o700)
    written, tokens = {}, {}
    for site in declared.sites:
        own_part = declared.model_copy(
            update={"site": (_without_path(declared, site),), "test": None}
        )
        tokens[site] = secrets.token_hex(32)
        invitation = Invitation(
            site=site,
            federation=own_part,
            host=host,
            port=port,
            ca=(tls / "public-ca.crt").read_text(encoding="utf-8"),
            coordinator=public_text(key_.public_key()),
            token=tokens[site],
        )
        written[site] = folder / "invitations" / f"{site}.invitation"
        write_invitation(written[site], invitation, key_)
    write_private(folder / "tokens.json", json.dumps(tokens).encode())
    return written


def _without_path(federation: Federation, site: str) -> Any:
    """Return a site's declaration; where its data is, it knows itself."""
    return federation[site].model_copy(update={"data": "data"})


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def admit(coordinator: Coordinator, path: Path) -> tuple[str, str]:
    """Accept a site's enrolment and return its name and its key's fingerprint."""
    enrolment = read_enrolment(path)
    site, tokens = enrolment.site, json.loads((coordinator.folder / "tokens.json").read_bytes())
    if site not in tokens:
        msg = f"enrolment '{path.name}' is of site '{site}', which was not invited"
        raise UsageError(msg)
    if not enrolment.proves(tokens[site]):
        msg = (
            f"enrolment '{path.name}' does not come from whoever holds the invitation of '{site}'; "
            "ask the site for it again"
        )
        raise UsageError(msg)
    _refuse_taken(coordinator, enrolment)
    kept = coordinator.folder / "sites" / f"{plain_name(site)}.pem"
    kept.write_text(enrolment.key, encoding="utf-8")
    if processes.running(coordinator.folder):
        coordinator.link().register(enrolment.key.encode(), site)
    return site, fingerprint(read_public(enrolment.key))


def _refuse_taken(coordinator: Coordinator, enrolment: Enrolment) -> None:
    for site, key in coordinator.enrolled().items():
        if (site == enrolment.site) != (key == enrolment.key):
            msg = (
                f"site '{site}' is enrolled with {'another' if site == enrolment.site else 'this'} key; "
                f"remove '{coordinator.folder / 'sites' / site}.pem' if it is to be replaced"
            )
            raise UsageError(msg)


# --- up, down -----------------------------------------------------------------------------------


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
        command("flower-superlink"),
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
        *("--listen", f"{settings.listen}:{settings.port}"),
        *("--target", f"https://{coordinator.superlink}", "--ca", str(tls / "ca.crt")),
        *("--certificate", str(tls / "public.crt"), "--key", str(tls / "public.key")),
    ]
    if use:
        door = [found or "nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder / "nginx")]
    (folder / "flower").mkdir(mode=0o700, exist_ok=True)
    environment = {**QUIET, "FLWR_HOME": str(folder / "flower")}
    processes.write_list(folder, {"superlink": superlink, "proxy": door}, environment)
    return "nginx" if use else "proxy"


def command(name: str) -> str:
    """Return the path of a program that came with Flower, beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        found = shutil.which(name)
        if found is None:
            msg = f"'{name}' is not installed; `pip install 'consilia[flower]'` brings it"
            raise UsageError(msg)
        return found
    return str(path)


def up(coordinator: Coordinator, *, nginx: bool | None = None) -> str:
    """Start the SuperLink and the door, let the enrolled sites in, and return the door's name."""
    door = prepare(coordinator, nginx=nginx)
    processes.start(coordinator.folder)
    link = coordinator.link()
    processes.wait_for(coordinator.folder, link.alive, "the SuperLink")
    processes.wait_for(coordinator.folder, lambda: door_answers(coordinator) == 403, "the door")
    for site, key in coordinator.enrolled().items():
        link.register(key.encode(), site)
    return door


def door_answers(coordinator: Coordinator, path: str = "/v1/control/list-runs") -> int | None:
    """Return what the public port answers to a request that must not pass: 403, if all is well."""
    import ssl

    import httpx

    settings = coordinator.settings
    context = ssl.create_default_context(cafile=str(coordinator.folder / "tls" / "public-ca.crt"))
    context.check_hostname = False  # this machine may know itself by another name than hospitals do
    host = "127.0.0.1" if settings.listen in {"0.0.0.0", "::"} else settings.listen
    try:
        with httpx.Client(verify=context, timeout=5) as client:
            return client.post(f"https://{host}:{settings.port}{path}").status_code
    except httpx.HTTPError:
        return None


# --- run ----------------------------------------------------------------------------------------


def for_sites(spec: RunSpec) -> dict[str, Any]:
    """Return a study as sites are told it: without paths of this machine or of other sites."""
    sites = tuple(_without_path(spec.federation, site.name) for site in spec.federation.site)
    federation = spec.federation.model_copy(update={"site": sites, "test": None})
    told = spec.model_copy(
        update={
            "federation": federation,
            "learner": spec.learner.model_copy(update={"init": None}),
        }
    )
    return told.model_dump(mode="json", exclude_none=True)


def as_federation(spec: RunSpec) -> RunSpec:
    """Return a run as it is kept across hospitals: a checkpoint a round, and hashes in the ledger."""
    engine = spec.engine.model_copy(update={"checkpoint_every": 1, "ledger": "hashes"})
    return spec.model_copy(update={"engine": engine})


def refuse_uninvited(coordinator: Coordinator, spec: RunSpec) -> None:
    """Refuse a study with sites that were not invited or have not enrolled."""
    invited, enrolled = coordinator.federation.sites, coordinator.enrolled()
    strangers = [site for site in spec.federation.sites if site not in invited]
    if strangers:
        msg = f"the study has the site {listing(strangers)}, but invited are {listing(invited)}"
        raise DeclarationError(msg)
    waiting = [site for site in spec.federation.sites if site not in enrolled]
    if waiting:
        msg = (
            f"site {listing(waiting)} has not enrolled; `consilia coordinator admit` accepts the file "
            "that `consilia site init` wrote"
        )
        raise UsageError(msg)


def run_record(folder: RunFolder, coordinator: Coordinator) -> dict[str, Any]:
    """Return what belongs to a run besides its spec: its name at the sites, and its Flower runs."""
    if not (folder.path / RUN).is_file():
        fresh = {"run": secrets.token_hex(16), "coordinator": str(coordinator.folder), "flower": []}
        folder.write_json(RUN, fresh)
    found: dict[str, Any] = folder.read_json(RUN)
    return found


# --- status -------------------------------------------------------------------------------------


def status(coordinator: Coordinator, run: Path | None = None) -> dict[str, Any]:
    """Return who is connected, and who took part in each round of a run."""
    alive = processes.pids(coordinator.folder)
    nodes: Mapping[bytes, str] = {}
    if alive:
        link = coordinator.link()
        nodes = link.nodes() if link.alive() else {}
    keys = coordinator.enrolled()
    sites = {
        site: nodes.get(keys[site].encode(), "not registered") if site in keys else "not enrolled"
        for site in coordinator.federation.sites
    }
    found: dict[str, Any] = {
        "up": bool(alive),
        "processes": alive,
        "address": f"{coordinator.settings.host}:{coordinator.settings.port}",
        "door": door_answers(coordinator) if alive else None,
        "sites": sites,
    }
    last = run or latest_run(coordinator)
    if last is not None:
        found["run"] = _run_status(last)
    return found


def latest_run(coordinator: Coordinator) -> Path | None:
    """Return the run that was started last."""
    path = coordinator.folder / "run.json"
    if not path.is_file():
        return None
    found = Path(json.loads(path.read_text(encoding="utf-8"))["path"])
    return found if (found / "spec.toml").is_file() else None


def note_run(coordinator: Coordinator, path: Path) -> None:
    """Remember which run was started last, for `status` and `resume`."""
    text = json.dumps({"path": str(path.resolve()), "time": time.time(), "pid": os.getpid()})
    (coordinator.folder / "run.json").write_text(text, encoding="utf-8")


def _run_status(path: Path) -> dict[str, Any]:
    folder = RunFolder.open(path)
    spec = folder.spec()
    lines = folder.lines("rounds.jsonl")
    rounds = [
        {
            "round": line["round"],
            "took_part": line["took_part"],
            "events": line["events"],
            "bytes_up": line.get("bytes_up"),
            "bytes_down": line.get("bytes_down"),
            "seconds": line.get("seconds"),
        }
        for line in lines
    ]
    return {
        "path": str(path),
        "study": spec.study,
        "method": spec.method.name,
        "rounds": spec.rounds,
        "finished": folder.finished,
        "active": _held(path),
        "history": rounds,
    }


def _held(path: Path) -> bool:
    """Return whether a process works on a run folder."""
    import fcntl

    try:
        with (path / ".lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
