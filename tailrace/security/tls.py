"""TLS from files: a certificate, its key, and the authorities that sign peers' certificates. Replaced files are
reloaded.

A listener keeps one context for its life, which starts each handshake with the newest context. A client uses the newest
context for each connection. So replaced files take effect with the next connection, without a restart.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import structlog

from tailrace.security.credentials import BadCredential, check_private

_log = structlog.get_logger(__name__)


class BadCertificate(ValueError):
    """A TLS file can't be used; the message says which one, what was seen and what to do."""


class PeerNameMismatch(Exception):
    """The right authority signed the peer's certificate, but it has the wrong name."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate (with the chain up to the authority), its key, and the authorities of peers."""

    certificate: Path
    key: Path
    authorities: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.authorities) if path is not None)


class Tls:
    """One TLS identity, which `refresh` keeps up to date.

    With `authorities`, both sides show a certificate (mutual TLS). `client_certificates` says whether clients of a
    server must, may (CERT_OPTIONAL) or need not. `peer_name`: a DNS name that a peer's certificate must contain. If it
    is '', a client expects the host that it connects to, and a server accepts any name.

    The constructor raises BadCertificate. Later, bad files are logged and counted, and the last good ones stay in use.
    """

    def __init__(
        self,
        purpose: str,
        files: TlsFiles,
        *,
        peer_name: str = "",
        minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        client_certificates: ssl.VerifyMode = ssl.CERT_REQUIRED,
    ) -> None:
        self.purpose = purpose
        self._of_clients = client_certificates if files.authorities is not None else ssl.CERT_NONE
        self.peer_name = peer_name
        self.failures = 0
        self._files = files
        self._minimum = minimum
        self._seen = self._look()
        self._current = self._load()
        self.server_context: ssl.SSLContext = _ListenerContext(lambda: self._current.server)

    @property
    def client_context(self) -> ssl.SSLContext:
        """The newest context, for the next connection to a server."""
        return self._current.client

    @property
    def expires_s(self) -> int:
        """When the certificate in use expires, in seconds of Unix time."""
        return self._current.expires_s

    def refresh(self) -> None:
        """Load files that have changed."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._current = self._load()
        except BadCertificate as error:
            self.failures += 1
            _log.error("TLS files have changed and can't be used; the last ones stay in use", purpose=self.purpose,
                       reason=str(error))  # fmt: skip
        else:
            _log.info("TLS files have changed and are in use", purpose=self.purpose,
                      expires=datetime.fromtimestamp(self.expires_s, UTC).isoformat())  # fmt: skip

    def check_peer(self, certificate: Mapping[str, Any] | None) -> None:
        """Raise PeerNameMismatch unless this client's certificate contains the peer name."""
        if not self.peer_name:
            return
        names = [name for kind, name in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
        if self.peer_name not in names:
            raise PeerNameMismatch(
                f"a certificate for {', '.join(names) or 'no DNS name'}; {self.peer_name!r} is wanted"
            )

    # --- details

    def _look(self) -> tuple[tuple[int, int, int, int] | None, ...]:
        return tuple(_fingerprint(path) for path in self._files.paths)

    def _load(self) -> _Contexts:
        files = self._files
        server = self._empty(ssl.PROTOCOL_TLS_SERVER, self._of_clients)
        client = self._empty(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
        try:
            check_private(files.key)
        except BadCredential as error:
            raise BadCertificate(f"the key {error}") from error
        for context in (server, client):
            try:
                context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
            except OSError as error:  # ssl.SSLError is one
                raise BadCertificate(
                    f"certificate {str(files.certificate)!r} with key {str(files.key)!r}: {_reason(error)}"
                ) from error
            if files.authorities is None:
                continue
            try:
                context.load_verify_locations(files.authorities)
            except OSError as error:
                raise BadCertificate(f"authorities {str(files.authorities)!r}: {_reason(error)}") from error
        return _Contexts(server, client, expiry_s(files.certificate))

    def _empty(self, protocol: int, peers: ssl.VerifyMode) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = self._minimum
        context.options |= (
            ssl.OP_NO_TICKET
        )  # only this context knows the resumable sessions, so they end with it
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
            context.verify_mode = peers
        return context


class _ListenerContext(ssl.SSLContext):
    """A listener's context. Each connection does its whole handshake with the newest context.

    The context that starts a connection keeps its TLS 1.2 session. So a session can't be resumed after the files were
    replaced, and its client is checked against the newest authorities. (A server-name callback would run too late.)
    """

    def __new__(cls, newest: Callable[[], ssl.SSLContext]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, newest: Callable[[], ssl.SSLContext]) -> None:
        self._newest = newest

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Wrap a new connection; asyncio and uvloop call this for each."""
        return self._newest().wrap_bio(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Contexts:
    server: ssl.SSLContext
    client: ssl.SSLContext
    expires_s: int


def expiry_s(certificate: Path) -> int:
    """Return when the first certificate of a PEM file expires, in seconds of Unix time. Raises BadCertificate."""
    try:
        text = certificate.read_text("ascii")
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        first = text[text.index(begin) : text.index(end) + len(end)]
        return _not_after(memoryview(ssl.PEM_cert_to_DER_cert(first)))
    except (OSError, ValueError, IndexError) as error:
        raise BadCertificate(f"certificate {str(certificate)!r} can't be read: {error}") from error


def _not_after(der: memoryview) -> int:
    """Return the certificate's `notAfter` in seconds of Unix time.

    RFC 5280: Certificate { TBSCertificate { [0] version?, serial, signature, issuer, Validity { from, to } ...
    """
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    if tag == 0xA0:  # the version, which is optional
        _, _, rest = _element(rest)
    for _ in range(2):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, rest = _element(validity)
    tag, value, _ = _element(rest)
    text = bytes(value).decode("ascii")
    if tag == 0x17:  # UTCTime: two digits of the year, below 50 of this century
        text = ("20" if text < "50" else "19") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())


def _element(der: memoryview) -> tuple[int, memoryview, memoryview]:
    """Return the first element's tag and value, and the bytes after it. Raises IndexError if it ends early."""
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if start + length > len(der):
        raise IndexError("it ends early")
    return der[0], der[start : start + length], der[start + length :]


def _fingerprint(path: Path) -> tuple[int, int, int, int] | None:
    """Return values that differ if the file was changed. st_ctime_ns also changes with only the mode or owner."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _refuse_password() -> str:
    raise ssl.SSLError("the key is encrypted; store it without a passphrase, readable by its owner alone")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.lower().replace("_", " ") if error.reason else str(error)
    return error.strerror or str(error)
