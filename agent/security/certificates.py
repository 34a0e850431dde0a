"""The subject of a client's certificate."""

from __future__ import annotations

from cryptography import x509


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (DER) in RFC 2253's form: `CN=alice,OU=payments,O=Example`. Raises
    ValueError."""
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
