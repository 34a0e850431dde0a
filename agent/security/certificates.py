"""The subject of a client's certificate."""

from __future__ import annotations

from cryptography import x509


def distinguished_name(certificate: bytes) -> str:
    """The subject of a certificate (DER) as RFC 2253 writes it: `CN=alice,OU=payments,O=Example`. Raises ValueError."""
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
