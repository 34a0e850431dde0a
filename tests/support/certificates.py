"""Certificates for tests: an authority and the certificates that it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tailrace.security.tls import TlsFiles

_BORN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Authority:
    """Signs certificates; peers are checked against `certificate`."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    certificate: bytes

    @classmethod
    def make(cls, name: str = "authority") -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key.public_key(), _END).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        signed = builder.sign(key, hashes.SHA256())
        return cls(subject, key, signed.public_bytes(serialization.Encoding.PEM))

    def files(
        self,
        folder: Path,
        *names: str,
        subject: str = "",
        authorities: bytes | None = None,
        end: datetime.datetime = _END,
        usages: tuple[x509.ObjectIdentifier, ...] = (
            ExtendedKeyUsageOID.SERVER_AUTH,
            ExtendedKeyUsageOID.CLIENT_AUTH,
        ),
    ) -> TlsFiles:
        """Write a certificate for these DNS names and addresses, its key, and the authorities (only this one) to
        files."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(x509.Name.from_rfc4514_string(subject), self.name, key.public_key(), end)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_name(name) for name in names]), critical=not subject
        )
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
        )
        signed = builder.sign(self.key, hashes.SHA256())
        folder.mkdir(exist_ok=True)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return TlsFiles(
            _write(folder / "cert.pem", signed.public_bytes(serialization.Encoding.PEM)),
            _write(folder / "key.pem", secret),
            _write(folder / "ca.pem", self.certificate if authorities is None else authorities),
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime.datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(_BORN).not_valid_after(end)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, data: bytes) -> Path:
    """Replace a file as an operator does: a new file under the old name."""
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_bytes(data)
    os.replace(new, path)
    return path
