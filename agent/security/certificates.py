"""The subject of a client's certificate."""

from __future__ import annotations

from cryptography import x509


def distinguished_name(certificate: bytes) -> str:
    """Return a certificate's (DER) subject in RFC 2253's form: `CN=alice,OU=payments`. Raises ValueError."""
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
