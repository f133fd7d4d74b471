"""Invitations and enrolments: the two small files by which a hospital joins, each signed.

The coordinator writes an *invitation* for each site and sends it over any channel. The hospital
makes its own key, which never leaves it, and sends back an *enrolment*: the public half, signed
with the private one, and proof that it holds the invitation.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from consilia.declare import Federation
from consilia.declare.federation import NAME
from consilia.declare.read import validate
from consilia.errors import ConsiliaError, DeclarationError, UsageError
from consilia.federation.keys import Private, Public, public_text, read_public, sign, verifies

LARGEST = 1 << 20
_INVITATION = b"consilia invitation 1\0"
_ENROLMENT = b"consilia enrolment 1\0"
M = TypeVar("M", bound="Strict")


class Strict(BaseModel):
    """A frozen table of a file that Consilia itself wrote; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Invitation(Strict):
    """What a hospital must know to join: whom to trust, where to connect, what is studied."""

    site: str
    federation: Federation
    host: str = Field(pattern=r"[A-Za-z0-9._:\[\]-]{1,253}")
    port: int = Field(ge=1, le=65535)
    ca: str
    coordinator: str
    token: str = Field(pattern=r"[0-9a-f]{64}")

    @field_validator("site")
    @classmethod
    def _site_is_a_name(cls, site: str) -> str:
        return plain_name(site)

    @property
    def key(self) -> Public:
        """The key that signs every message of the coordinator."""
        return read_public(self.coordinator)


class Enrolment(Strict):
    """What a hospital sends back: its name and the public half of its key."""

    site: str
    key: str
    proof: str

    @field_validator("site")
    @classmethod
    def _site_is_a_name(cls, site: str) -> str:
        return plain_name(site)

    @classmethod
    def make(cls, invitation: Invitation, key: Public) -> Self:
        """Return the enrolment of a key, with proof that this hospital holds the invitation."""
        text = public_text(key)
        return cls(
            site=invitation.site, key=text, proof=_proof(invitation.token, invitation.site, text)
        )

    def proves(self, token: str) -> bool:
        """Return whether whoever wrote this held the invitation with this token."""
        return hmac.compare_digest(self.proof, _proof(token, self.site, self.key))


def plain_name(name: str) -> str:
    """Return a site's name, or refuse one that could be anything else, such as a path."""
    if not NAME.fullmatch(name):
        msg = f"site name {name!r:.80} is not a plain name, so the file is refused"
        raise DeclarationError(msg)
    return name


def _proof(token: str, site: str, key: str) -> str:
    text = _ENROLMENT + f"{site}\0{key}".encode()
    return hmac.new(bytes.fromhex(token), text, hashlib.sha256).hexdigest()


def write_invitation(path: Path, invitation: Invitation, key: Private) -> None:
    """Write an invitation, signed with the coordinator's key."""
    _write(path, invitation, _INVITATION, key)


def read_invitation(path: Path) -> Invitation:
    """Return an invitation whose signature is the coordinator's, or refuse it."""
    table, signature, text = _read(path, "an invitation")
    found = _checked(Invitation, table, path)
    if not verifies(found.key, _INVITATION + text, signature):
        msg = (
            f"invitation '{path.name}' was changed after it was signed; ask the coordinator for it "
            "again, over another channel"
        )
        raise UsageError(msg)
    return found


def write_enrolment(path: Path, enrolment: Enrolment, key: Private) -> None:
    """Write an enrolment, signed with the site's own key."""
    _write(path, enrolment, _ENROLMENT, key)


def read_enrolment(path: Path) -> Enrolment:
    """Return an enrolment that was signed with the key it names, or refuse it."""
    table, signature, text = _read(path, "an enrolment")
    found = _checked(Enrolment, table, path)
    if not verifies(read_public(found.key), _ENROLMENT + text, signature):
        msg = f"enrolment '{path.name}' is not signed with the key it names; ask the site for it again"
        raise UsageError(msg)
    return found


def _write(path: Path, content: Strict, context: bytes, key: Private) -> None:
    table = content.model_dump(mode="json", exclude_none=True)
    signature = sign(key, context + _canonical(table))
    text = json.dumps({"signed": table, "signature": signature}, indent=1) + "\n"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _read(path: Path, what: str) -> tuple[dict[str, Any], str, bytes]:
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError
        outer = json.loads(path.read_text(encoding="utf-8"))
        if set(outer) != {"signed", "signature"}:
            raise ValueError
        table, signature = outer["signed"], outer["signature"]
        if not isinstance(table, dict) or not isinstance(signature, str):
            raise TypeError
    except OSError as error:
        msg = f"file '{path}' cannot be read: {(error.strerror or str(error)).lower()}"
        raise UsageError(msg) from None
    except (ValueError, TypeError, RecursionError):
        msg = f"file '{path.name}' is not {what} of Consilia's; name the file that was sent to you"
        raise UsageError(msg) from None
    return table, signature, _canonical(table)


def _checked(kind: type[M], table: dict[str, Any], path: Path) -> M:
    try:
        return validate(kind, table, path.name, UsageError)
    except ConsiliaError as error:
        raise UsageError(str(error)) from None


def _canonical(table: dict[str, Any]) -> bytes:
    return json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
