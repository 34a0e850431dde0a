"""How commands log in: with the properties file that TAILRACE_CLIENT names. Its properties have librdkafka's names.

    bootstrap.servers=127.0.0.1:9092
    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-256
    sasl.username=admin
    sasl.password=...
    ssl.ca.location=/etc/tailrace/ca.pem

kcat (`-F FILE`) and confluent-kafka read the same file.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tailrace.security.credentials import BadCredential, check_private
from tailrace.settings import CLIENT_VARIABLE
from tailrace_cli.connections.broker import DEFAULT_BOOTSTRAP
from tailrace_cli.errors import CommandFailed

Send = Callable[[bytes], Awaitable[bytes]]
"""Sends one SASL token and returns the broker's token."""


def client_properties(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the properties in the file; none without a file. Raises CommandFailed."""
    given = environ.get(CLIENT_VARIABLE)
    if not given:
        return {}
    path = Path(given).expanduser()
    try:
        check_private(path)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (BadCredential, OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{CLIENT_VARIABLE}: {error}") from error
    properties = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            properties[name.strip()] = value.strip()
    return properties


def bootstrap_of(given: str | None, properties: Mapping[str, str]) -> str:
    """Return the broker of `--bootstrap`, else of the file, else the default."""
    return properties.get("bootstrap.servers", DEFAULT_BOOTSTRAP) if given is None else given


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context of a connection, None without TLS. Raises CommandFailed."""
    if "SSL" not in properties.get("security.protocol", "").upper().split("_"):
        return None
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"))
        if "ssl.certificate.location" in properties:
            context.load_cert_chain(
                properties["ssl.certificate.location"], properties.get("ssl.key.location")
            )
    except OSError as error:
        raise CommandFailed(f"{CLIENT_VARIABLE}: a TLS file can't be used: {error}") from error
    return context


def sasl_mechanism(properties: Mapping[str, str]) -> str | None:
    """Return the SASL mechanism to log in with; None for no login."""
    if not properties.get("security.protocol", "").upper().startswith("SASL"):
        return None
    return properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "SCRAM-SHA-256"


async def log_in(properties: Mapping[str, str], mechanism: str, send: Send) -> None:
    """Log in by exchanging the mechanism's tokens. Raises CommandFailed."""
    from scramp import ScramClient, ScramException

    user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
    if mechanism == "PLAIN":
        await send(f"\0{user}\0{password}".encode())
        return
    try:
        client = ScramClient([mechanism], user, password)
        client.set_server_first((await send(client.get_client_first().encode())).decode())
        client.set_server_final((await send(client.get_client_final().encode())).decode())
    except ScramException as error:
        raise CommandFailed(f"the login by {mechanism} failed: {error}") from error
