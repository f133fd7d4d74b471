"""A hospital's half: its folder, its key, its processes, its ledger."""

from __future__ import annotations

import json
import logging
import secrets
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field

from consilia.declare import Federation
from consilia.declare.read import read_federation, read_site, validate
from consilia.engines.quiet import QUIET, hush
from consilia.errors import DataError, UsageError
from consilia.federation import processes
from consilia.federation.invitation import (
    Enrolment,
    Invitation,
    Strict,
    read_invitation,
    write_enrolment,
)
from consilia.federation.kept import read_kept, read_whole
from consilia.federation.keys import (
    LOOPBACK,
    make_authority,
    make_certificate,
    new_key,
    read_key,
    write_key,
    write_private,
)
from consilia.federation.study import ALLOWED
from consilia.runs.store import refuse_full


class Settings(Strict):
    """What `site init` wrote down; a hospital may edit it."""

    port: int = Field(ge=1, le=65535)
    allow: tuple[str, ...] = ALLOWED
    engine: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> SiteFolder:
        """Return a folder that `site init` wrote."""
        if not (folder / "settings.json").is_file() or not (folder / "site.toml").is_file():
            msg = f"'{folder}' is no site's folder; `consilia site init` makes one"
            raise UsageError(msg)
        return cls(folder.resolve())

    @property
    def settings(self) -> Settings:
        """What this machine decided for itself."""
        table = read_kept(self.folder / "settings.json", dict[str, Any])
        return validate(Settings, table, "settings.json", UsageError)

    @property
    def invitation(self) -> Invitation:
        """The invitation the hospital accepted, its signature checked again."""
        return read_invitation(self.folder / "accepted.invitation")

    @property
    def federation(self) -> Federation:
        """What the hospital declared: the agreed labels, and its own site.toml."""
        agreed = read_federation(self.folder / "federation.toml")
        own = read_site(self.folder / "site.toml")
        table = {**agreed.model_dump(mode="json"), "site": [own.model_dump(mode="json")]}
        return validate(Federation, table, "site.toml")


def join(
    path: Path,
    folder: Path,
    data: str,
    *,
    allow: tuple[str, ...] = ALLOWED,
    engine: dict[str, Any] | None = None,
    port: int | None = None,
) -> SiteFolder:
    """Accept an invitation: write a site's folder with a fresh key and its enrolment.

    Args:
        path: The invitation.
        folder: The new folder, readable by its owner alone.
        data: The folder with the images and annotations, or a built-in dataset.
        allow: What the coordinator may ask.
        engine: Values of `[engine]` for this machine.
        port: The port on loopback by which the site's own processes talk; by default a free one.
    """
    invitation = read_invitation(path)
    refuse_full(folder)
    if not data.startswith("dataset:"):
        where = Path(data).expanduser().resolve()
        if not where.is_dir():
            msg = (
                f"data folder '{data}' does not exist; name the folder with images and annotations"
            )
            raise DataError(msg)
        data = str(where)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    folder = folder.resolve()
    declared = invitation.federation[invitation.site].model_copy(update={"data": data})
    federation = invitation.federation.model_copy(update={"site": (declared,)})
    _write_toml(folder / "federation.toml", federation.model_dump(mode="json", exclude_none=True))
    own = {"site": declared.model_dump(mode="json", exclude_none=True)}
    _write_toml(folder / "site.toml", own)
    (folder / "accepted.invitation").write_bytes(path.read_bytes())
    key = new_key()
    write_key(folder / "node.key", key)
    write_private(folder / "secret", secrets.token_bytes(32))
    make_authority(folder / "tls", f"{invitation.site} loopback")
    make_certificate(folder / "tls", "loopback", LOOPBACK)
    (folder / "coordinator-ca.crt").write_text(invitation.ca, encoding="utf-8")
    settings = Settings(port=port or processes.free_port(), allow=allow, engine=engine or {})
    (folder / "settings.json").write_text(
        settings.model_dump_json(indent=1) + "\n", encoding="utf-8"
    )
    enrolment = Enrolment.make(invitation, key.public_key())
    write_enrolment(folder / f"{invitation.site}.enrolment", enrolment, key)
    return SiteFolder(folder)


def _write_toml(path: Path, table: dict[str, Any]) -> None:
    path.write_text(tomli_w.dumps(table), encoding="utf-8")


# --- up -----------------------------------------------------------------------------------------


def prepare(site: SiteFolder) -> None:
    """Write what the keeper starts: the SuperNode, and the process that trains."""
    folder, settings, invitation = site.folder, site.settings, site.invitation
    tls = folder / "tls"
    (folder / "paused").unlink(missing_ok=True)
    read_key(folder / "node.key")  # refuses one that others may read
    supernode = [
        processes.command("flower-supernode"),
        *("--superlink", f"{invitation.host}:{invitation.port}"),
        *("--root-certificates", str(folder / "coordinator-ca.crt")),
        *("--auth-supernode-private-key", str(folder / "node.key")),
        *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")),
        *("--host", "127.0.0.1", "--port", str(settings.port)),
        *("--ssl-certfile", str(tls / "loopback.crt"), "--ssl-keyfile", str(tls / "loopback.key")),
        *("--ssl-ca-certfile", str(tls / "ca.crt")),
    ]
    train = [sys.executable, "-m", "consilia.federation.site", str(folder)]
    (folder / "flower").mkdir(mode=0o700, exist_ok=True)
    environment = {**QUIET, "FLWR_HOME": str(folder / "flower")}
    processes.write_list(folder, {"supernode": supernode, "train": train}, environment)


def up(site: SiteFolder) -> None:
    """Start the site's processes in the background and wait until the SuperNode has connected."""
    prepare(site)
    log = site.folder / "log" / "supernode.log"
    before = log.stat().st_size if log.is_file() else 0
    processes.start(site.folder)

    def connected() -> bool:
        if not log.is_file():
            return False
        with log.open("rb") as handle:
            handle.seek(before)
            return b"SuperNode ID" in handle.read()

    processes.wait_for(site.folder, connected, "the connection to the coordinator")


def work(folder: Path) -> None:
    """Answer what the SuperNode receives, until told to stop: the process that trains."""
    site = SiteFolder.open(folder)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    for noisy in ("httpx", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    hush(site.folder / "flower")
    from consilia.engines.flower import serve
    from consilia.federation.desk import Desk

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    settings, invitation = site.settings, site.invitation
    desk = Desk(
        invitation.site,
        site.folder,
        key=read_key(site.folder / "node.key"),
        coordinator=invitation.key,
        federation=site.federation,
        allow=settings.allow,
        engine=settings.engine,
    )
    address = f"127.0.0.1:{settings.port}"
    out = "put it back as it was; without it, `consilia site init` joins again from the invitation"
    ca = read_whole(site.folder / "tls" / "ca.crt", out)
    secret = read_whole(site.folder / "secret", out)
    serve(address, ca, secret, desk.answer, stopped, site.folder / "flower" / "in-hand.json")


def ledger(site: SiteFolder) -> list[dict[str, Any]]:
    """Return every line of the site's ledger; a line cut short by a crash is left out."""
    path = site.folder / "ledger.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


if __name__ == "__main__":
    work(Path(sys.argv[1]))
