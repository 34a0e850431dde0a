"""RPC's secrets and certificates, loaded from files that may be replaced at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tailrace.rpc.security import RpcSecurity
from tailrace.security.credentials import MIN_SECRET_CHARACTERS, BadCredential, read_secrets
from tailrace.security.tls import BadCertificate, Tls, TlsFiles

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """The given secret or file of secrets (the first one is preferred), and the TLS files, if any."""

    secret: str = field(default="", repr=False)
    secret_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    authorities: Path | None = None
    peer_name: str = ""

    @property
    def is_closed(self) -> bool:
        """Whether unknown peers are refused."""
        return bool(self.secret) or self.secret_file is not None or self.certificate is not None


class LoadedSecurity:
    """The current `rpc` security from the files. The constructor raises BadCredential and BadCertificate.

    `refresh` loads replaced files. It logs and counts a file that can't be used, and keeps the last good one.
    """

    def __init__(self, files: SecurityFiles) -> None:
        self.failures = 0
        self._file = files.secret_file
        if files.secret and files.secret_file is not None:
            raise BadCredential("rpc_secret and rpc_secret_file were both given; give one of them")
        self.tls = _tls(files)
        given = (files.secret,) if files.secret else ()
        self.rpc = RpcSecurity(
            _checked(given, "rpc_secret") if self._file is None else self._read(), self.tls
        )

    def refresh(self) -> None:
        """Load files that have changed."""
        if self.tls is not None:
            self.tls.refresh()
        if self._file is None:
            return
        try:
            secrets = self._read()
        except BadCredential as error:
            if not self.failures:
                _log.error("RPC's secret can't be reloaded; the last one stays in use", reason=str(error))
            self.failures += 1
            return
        self.failures = 0
        if secrets != self.rpc.secrets:
            self.rpc.secrets = secrets
            _log.info("RPC's secrets have changed; new connections use them", secrets=len(secrets))

    def _read(self) -> tuple[bytes, ...]:
        assert self._file is not None, "asked where there is a file"
        try:
            secrets = read_secrets(self._file.expanduser())
        except BadCredential as error:
            raise BadCredential(f"rpc_secret_file: {error}") from error
        return _checked(secrets, f"rpc_secret_file {str(self._file)!r}")


def _checked(secrets: tuple[str, ...], source: str) -> tuple[bytes, ...]:
    for secret in secrets:
        if len(secret) < MIN_SECRET_CHARACTERS:
            raise BadCredential(
                f"{source}: a secret has {len(secret)} characters, at least {MIN_SECRET_CHARACTERS} are wanted; make "
                "one with `openssl rand -base64 32`"
            )
    return tuple(secret.encode() for secret in secrets)


def _tls(files: SecurityFiles) -> Tls | None:
    given = {"cert": files.certificate, "key": files.key, "ca": files.authorities}
    missing = [name for name, path in given.items() if path is None]
    if len(missing) == len(given):
        if files.peer_name:
            raise BadCertificate(
                "tls.rpc_name was given without tls.rpc_cert_file, tls.rpc_key_file, tls.rpc_ca_file"
            )
        return None
    if missing:
        raise BadCertificate(
            f"tls.rpc_{missing[0]}_file is missing; give tls.rpc_cert_file, _key_file and _ca_file"
        )
    certificate, key, authorities = (path.expanduser() for path in given.values() if path is not None)
    return Tls("rpc", TlsFiles(certificate, key, authorities), peer_name=files.peer_name)
