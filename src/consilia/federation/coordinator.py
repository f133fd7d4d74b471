"""The coordinator's folder: its keys, the invitations it wrote, the sites it admitted."""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from consilia.declare import Federation
from consilia.declare.read import read_federation, validate
from consilia.engines.quiet import hush
from consilia.errors import UsageError
from consilia.federation import processes
from consilia.federation.invitation import (
    Enrolment,
    Invitation,
    Strict,
    plain_name,
    read_enrolment,
    write_invitation,
)
from consilia.federation.kept import read_kept, read_whole
from consilia.federation.keys import (
    LOOPBACK,
    fingerprint,
    make_authority,
    make_certificate,
    new_key,
    public_text,
    read_public,
    write_key,
    write_private,
)
from consilia.federation.proxy import address, nginx_file
from consilia.federation.study import without_path
from consilia.runs.store import refuse_full

if TYPE_CHECKING:
    from consilia.engines.flower import Link


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
        table = read_kept(self.folder / "settings.json", dict[str, Any])
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
            text = path.read_text(encoding="utf-8", errors="replace")
            try:
                read_public(text)
            except UsageError as error:
                msg = (
                    f"'{path}': {error}; remove it and `consilia coordinator admit` that site's "
                    "enrolment again"
                )
                raise UsageError(msg) from None
            found[plain_name(path.stem)] = text
        return found

    def link(self) -> Link:
        """Return the way to this machine's SuperLink."""
        hush(self.folder / "flower")
        from consilia.engines.flower import Link

        out = "put it back as it was; without it, `consilia coordinator init` makes a new folder"
        ca = read_whole(self.folder / "tls" / "ca.crt", out)
        secret = read_whole(self.folder / "secret", out)
        return Link(self.superlink, ca, secret, self.folder / ".starting")

    def let_in(self) -> None:
        """Let the SuperNode of every enrolled site connect to the SuperLink, which must be up."""
        link = self.link()
        for site, key in self.enrolled().items():
            link.register(key.encode(), site)


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
        host=host, port=port, listen=listen, superlink_port=superlink_port or processes.free_port()
    )
    (folder / "settings.json").write_text(
        settings.model_dump_json(indent=1) + "\n", encoding="utf-8"
    )
    (folder / "nginx").mkdir(mode=0o700)
    text = nginx_file(folder, address(listen, port), f"127.0.0.1:{settings.superlink_port}")
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    (folder / "sites").mkdir(mode=0o700)
    written, tokens = {}, {}
    for site in declared.sites:
        own_part = declared.model_copy(
            update={"site": (without_path(declared, site),), "test": None}
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


def admit(coordinator: Coordinator, path: Path) -> tuple[str, str]:
    """Accept a site's enrolment and return its name and its key's fingerprint."""
    enrolment = read_enrolment(path)
    site = enrolment.site
    tokens = read_kept(coordinator.folder / "tokens.json", dict[str, str])
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
        coordinator.let_in()
    return site, fingerprint(read_public(enrolment.key))


def _refuse_taken(coordinator: Coordinator, enrolment: Enrolment) -> None:
    for site, key in coordinator.enrolled().items():
        if (site == enrolment.site) != (key == enrolment.key):
            msg = (
                f"site '{site}' is enrolled with {'another' if site == enrolment.site else 'this'} key; "
                f"remove '{coordinator.folder / 'sites' / site}.pem' if it is to be replaced"
            )
            raise UsageError(msg)
