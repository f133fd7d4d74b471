"""Keys and certificates: P-384 throughout, private ones readable by their owner alone."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from consilia.errors import UsageError, reason

Private = ec.EllipticCurvePrivateKey
Public = ec.EllipticCurvePublicKey
DAYS = 825
#: The names by which a machine's own processes reach each other.
LOOPBACK = ("localhost", "127.0.0.1")
#: Clocks of hospitals differ a little.
_EARLIER = datetime.timedelta(hours=1)


def new_key() -> Private:
    """Return a fresh P-384 key."""
    return ec.generate_private_key(ec.SECP384R1())


def write_private(path: Path, text: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)


def write_key(path: Path, key: Private) -> None:
    """Write a private key as OpenSSH does, which is what a SuperNode reads."""
    form = serialization.PrivateFormat.OpenSSH
    plain = serialization.NoEncryption()
    write_private(path, key.private_bytes(serialization.Encoding.PEM, form, plain))


def read_key(path: Path) -> Private:
    """Read a private key that nobody else could have read or changed."""
    try:
        if path.stat().st_mode & 0o077:
            msg = f"key '{path}' may be read by others; run `chmod 600 {path}`"
            raise UsageError(msg)
        text = path.read_bytes()
    except OSError as error:
        msg = f"key '{path}' cannot be read: {reason(error)}; put it back as it was"
        raise UsageError(msg) from None
    try:
        load = serialization.load_ssh_private_key
        if b"OPENSSH" not in text:
            load = serialization.load_pem_private_key  # type: ignore[assignment]
        key = load(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Private):
        msg = f"key '{path}' is no elliptic-curve key; put it back as it was"
        raise UsageError(msg)
    return key


def public_text(key: Public) -> str:
    """Return a public key as PEM, which is how Flower names a SuperNode too."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form).decode()


def read_public(text: str) -> Public:
    """Return the P-384 public key that a PEM text holds."""
    try:
        key = serialization.load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Public) or key.curve.name != "secp384r1":
        msg = "a public key is damaged or of another kind; expected a P-384 key in PEM form"
        raise UsageError(msg)
    return key


def fingerprint(key: Public) -> str:
    """Return a short form of a key for two people to compare over the telephone."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()
    return "-".join(digest[i : i + 4] for i in range(0, 32, 4))


def sign(key: Private, text: bytes) -> str:
    """Return a signature as hexadecimal text."""
    return key.sign(text, ec.ECDSA(hashes.SHA384())).hex()


def verifies(key: Public, text: bytes, signature: str) -> bool:
    """Return whether a signature over a text was made with the private half of a key."""
    try:
        key.verify(bytes.fromhex(signature), text, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


# --- certificates -------------------------------------------------------------------------------


def make_authority(folder: Path, name: str) -> None:
    """Write a certificate authority of our own: `ca.crt` and `ca.key`."""
    key = new_key()
    subject = _subject(name)
    builder = (
        _builder(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_pair(folder, "ca", key, builder.sign(key, hashes.SHA384()))


def make_certificate(folder: Path, name: str, hosts: tuple[str, ...]) -> None:
    """Write a server certificate for these hosts, signed by the authority in the folder."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = read_key(folder / "ca.key")
    key = new_key()
    alternatives = x509.SubjectAlternativeName([_general(host) for host in hosts])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _builder(_subject(hosts[0]), authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(alternatives, critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer_key, critical=False)
    )
    _write_pair(folder, name, key, builder.sign(ca_key, hashes.SHA384()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(folder: Path, name: str, key: Private, certificate: x509.Certificate) -> None:
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    write_private(
        folder / f"{name}.key", key.private_bytes(serialization.Encoding.PEM, form, plain)
    )
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
