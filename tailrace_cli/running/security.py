"""The secrets, certificates and listeners of a process. RPC beyond this machine needs a secret; a command line must
not contain a password."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Gauge

from agent.security.listener_contexts import ClientSecurity
from agent.security.listeners import EVERY_ADDRESS, BadListener, Listener, parse_listeners, read_listeners
from agent.security.tenant_placement import parse_tenants
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock
from tailrace.rpc import exposure
from tailrace.rpc.link import split_address
from tailrace.rpc.loaded_security import LoadedSecurity, SecurityFiles
from tailrace.security.credentials import MIN_SECRET_CHARACTERS, BadCredential, read_secrets
from tailrace.security.tls import BadCertificate, Tls, TlsFiles
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.data_folder import SECRET
from tailrace_cli.settings import Settings

log = structlog.get_logger("tailrace.security")

REFRESH_SECONDS = 10.0
"""How often files are checked for changes."""


def check_rpc_not_exposed(*, listen: str | None, sequencers: Sequence[str], is_closed: bool) -> None:
    """Refuse RPC to or from other machines without a secret. Raises CommandFailed."""
    try:
        exposure.check_rpc_not_exposed(listen=listen, sequencers=sequencers, is_closed=is_closed)
    except exposure.RpcExposed as error:
        raise CommandFailed(str(error)) from error


def open_security(settings: Settings, *, data: Path | None = None) -> LoadedSecurity:
    """Open the secrets and certificates that this process shows to the other processes of its cluster.

    Args:
        data: the folder of `tailrace serve`, whose secret is used if the settings have none.

    Raises CommandFailed.
    """
    secret, file, tls = settings.rpc_secret.get_secret_value(), settings.rpc_secret_file, settings.tls
    if not secret and file is None and data is not None:
        file = data / SECRET
    files = SecurityFiles(
        secret=secret,
        secret_file=file,
        certificate=tls.rpc_cert_file,
        key=tls.rpc_key_file,
        authorities=tls.rpc_ca_file,
        peer_name=tls.rpc_name,
    )
    try:
        return LoadedSecurity(files)
    except (BadCredential, BadCertificate) as error:
        raise CommandFailed(str(error)) from error


def open_http_tls(settings: Settings) -> Tls | None:
    """Open the TLS identity of `http`; None for plain HTTP. Raises CommandFailed."""
    tls = settings.tls
    return _open_tls("http", tls.http_cert_file, tls.http_key_file, tls.http_client_ca_file)


def open_gateway_tls(settings: Settings) -> Tls | None:
    """Open the TLS identity of the gateway; None for plain HTTP. Raises CommandFailed."""
    tls = settings.tls
    return _open_tls("gateway", tls.gateway_cert_file, tls.gateway_key_file, tls.gateway_client_ca_file)


def open_client_security(settings: Settings) -> ClientSecurity:
    """Open the listeners, TLS identity and token secret for Kafka clients. Raises CommandFailed."""
    check_tenants(settings)
    check_client_auth(settings)
    return ClientSecurity(
        open_listeners(settings), settings.security, open_kafka_tls(settings), read_token_secret(settings)
    )


def read_token_secret(settings: Settings) -> str:
    """Read the secret for delegation tokens; empty if none is set. Raises CommandFailed."""
    file = settings.security.delegation_token_secret_file
    if file is None:
        return ""
    secret, *others = _read(file, "security.delegation_token_secret_file")
    if others or len(secret) < MIN_SECRET_CHARACTERS:
        raise CommandFailed(
            f"security.delegation_token_secret_file: {str(file)!r} needs one line, of {MIN_SECRET_CHARACTERS}"
            " characters or more"
        )
    return secret


def open_listeners(settings: Settings) -> tuple[Listener, ...]:
    """Parse `listeners`; empty if clients connect to `listen`. Raises CommandFailed with a line for each mistake."""
    if (
        not settings.listeners
        and split_address(settings.listen)[0] in EVERY_ADDRESS
        and not settings.advertise
    ):
        raise CommandFailed(
            f"listen {settings.listen!r} is a wildcard address, so clients can't be sent there; "
            "give --advertise HOST:PORT"
        )
    try:
        return parse_listeners(settings.listeners, settings.advertised_listeners)
    except BadListener as error:
        raise CommandFailed(str(error)) from error


def check_tenants(settings: Settings) -> None:
    """Raise CommandFailed if the tenants' settings are wrong."""
    security, names = settings.security, [listener.name for listener in open_listeners(settings)]
    try:
        parse_tenants(security.tenant_listeners, security.tenant_rules, names)
    except BadListener as error:
        raise CommandFailed(str(error)) from error


def open_kafka_tls(settings: Settings) -> Tls | None:
    """Open the TLS identity of `listeners`; None if no certificate is set. Raises CommandFailed."""
    client_auth, files = settings.security.client_auth, settings.tls
    tls = _open_tls(
        purpose="kafka",
        certificate=files.kafka_cert_file,
        key=files.kafka_key_file,
        authorities=None if client_auth == "none" else files.kafka_client_ca_file,
        peers=ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL,
    )
    listeners, _ = read_listeners(settings.listeners, settings.advertised_listeners)
    if tls is None and any(listener.protocol.has_tls for listener in listeners):
        raise CommandFailed("a listener with TLS needs tls.kafka_cert_file and tls.kafka_key_file")
    return tls


def check_client_auth(settings: Settings) -> None:
    """Raise CommandFailed if `client_auth` asks for client certificates but no CA file is set."""
    if settings.security.client_auth != "none" and settings.tls.kafka_client_ca_file is None:
        raise CommandFailed(
            "security.client_auth needs the CA certificates of clients; set tls.kafka_client_ca_file"
        )


def _open_tls(
    purpose: str,
    certificate: Path | None,
    key: Path | None,
    authorities: Path | None,
    peers: ssl.VerifyMode = ssl.CERT_REQUIRED,
) -> Tls | None:
    """Open a TLS identity; None without files. It accepts TLS 1.2: health checks of load balancers and some clients
    don't speak 1.3."""
    if certificate is None and key is None and authorities is None:
        return None
    if certificate is None or key is None:
        missing = "cert_file" if certificate is None else "key_file"
        raise CommandFailed(
            f"tls.{purpose}_{missing} is missing; `{purpose}` needs tls.{purpose}_cert_file and tls.{purpose}_key_file"
        )
    files = TlsFiles(
        certificate.expanduser(), key.expanduser(), None if authorities is None else authorities.expanduser()
    )
    try:
        return Tls(purpose, files, minimum=ssl.TLSVersion.TLSv1_2, client_certificates=peers)
    except BadCertificate as error:
        raise CommandFailed(str(error)) from error


@asynccontextmanager
async def kept_current(
    clock: Clock, registry: CollectorRegistry, rpc: LoadedSecurity, *identities: Tls | None
) -> AsyncIterator[None]:
    """Reload replaced files inside the block, and export when certificates expire as metrics."""
    served = [tls for tls in identities if tls is not None]
    _export(registry, rpc, served)

    async def keep() -> None:
        while True:
            await clock.sleep(REFRESH_SECONDS)
            with log_and_continue(log, "replaced secrets were not looked for"):
                rpc.refresh()
            for tls in served:
                with log_and_continue(log, "replaced certificates were not looked for", purpose=tls.purpose):
                    tls.refresh()

    keeper = asyncio.create_task(keep(), name="security files")
    try:
        yield
    finally:
        await cancel_and_wait(keeper)


def _export(registry: CollectorRegistry, rpc: LoadedSecurity, served: Sequence[Tls]) -> None:
    expiry = Gauge(
        "tailrace_tls_certificate_expiry_timestamp_seconds",
        "When the certificate in use expires, in seconds of Unix time.",
        ["purpose"],
        registry=registry,
    )
    unused = Gauge(
        "tailrace_security_reload_failures",
        "Failed reloads in a row of replaced certificates or secrets; the last good ones stay in use.",
        ["purpose"],
        registry=registry,
    )
    unused.labels("rpc_secret").set_function(lambda: rpc.failures)
    for tls in (rpc.tls, *served):
        if tls is not None:
            expiry.labels(tls.purpose).set_function(partial(getattr, tls, "expires_s"))
            unused.labels(tls.purpose).set_function(partial(getattr, tls, "failures"))


def refuse_password_in_command(url: str | None) -> None:
    """Raise CommandFailed if the URL that --database gives contains a password. The message omits the URL."""
    if not url:
        return
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return  # not a URL: opening it reports that
    if parsed.password or "password" in parsed.query:
        raise CommandFailed(
            "--database: every user of this machine can read a password on the command line; remove it from the URL "
            "and give it with --database-password-file FILE (mode 0600) or PGPASSWORD, or set TAILRACE_DATABASE to the "
            "whole URL"
        )


class DatabasePassword:
    """Reads the password from a file for each connection, so that it can change without a restart.

    The constructor raises CommandFailed. If the file can't be read later, the last password stays in use.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last = _read(file, "database_password_file")[0]

    def __call__(self) -> str:
        try:
            self._last = read_secrets(self._file.expanduser())[0]
        except BadCredential as error:
            log.warning(
                "could not read the database's password again; the old one stays in use", reason=str(error)
            )
        return self._last

    def __repr__(self) -> str:
        return f"DatabasePassword({str(self._file)!r})"


def database_password(settings: Settings) -> DatabasePassword | None:
    """Return a reader of the database's password file, None without one. Raises CommandFailed."""
    file = settings.database_password_file
    return None if file is None else DatabasePassword(file)


def _read(file: Path, setting: str) -> tuple[str, ...]:
    try:
        return read_secrets(file.expanduser())
    except BadCredential as error:
        raise CommandFailed(f"{setting}: {error}") from error
