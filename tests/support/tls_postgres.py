"""A TLS proxy for a PostgreSQL built without TLS. It implements PostgreSQL's own handshake, with a CA made for the
test."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tailrace.background_tasks import cancel_and_wait

_SSL_REQUEST = bytes([0, 0, 0, 8, 4, 210, 22, 47])
"""PostgreSQL's message of that name: its length and the code 80877103."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the CA's certificate, and a server's certificate with its key."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, host: str) -> Certificates:
    """Make a CA, and a certificate signed by it for `host` (a name or an address)."""
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A CA for a test")])
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    authority = (
        _certificate(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    server = (
        _certificate(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), ca_name, server_key.public_key()
        )
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    made.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


@contextmanager
def tls_before(port: int, certificates: Certificates) -> Iterator[int]:
    """Forward PostgreSQL clients that ask for TLS, and no others, to the server at `port`; yields the proxy's port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readexactly(len(_SSL_REQUEST)) != _SSL_REQUEST:
                return
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(context)
            behind, to_server = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(_pump(reader, to_server), _pump(behind, writer))
            finally:
                to_server.close()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one of the two sides closed the connection
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tls before postgres", daemon=True)
    thread.start()
    starting = asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result(10)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end_others(), loop).result(10)
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_end_others(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end_others() -> None:
    """Cancel the loop's remaining tasks, and wait for them: a client may keep its connection open."""
    await cancel_and_wait(*(asyncio.all_tasks() - {asyncio.current_task()}))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
