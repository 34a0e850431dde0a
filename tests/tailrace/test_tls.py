"""Mutual TLS: which peers are served, and files that are replaced while in use."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web
from cryptography.x509.oid import ExtendedKeyUsageOID

from tailrace.buffers import Buffer
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.rpc import (
    HelloRefused,
    NotConnected,
    RpcClient,
    RpcSecurity,
    RpcServer,
    TcpLink,
    decode_body,
    encode_body,
)
from tailrace.rpc.frames import Header
from tailrace.security.tls import BadCertificate, Tls, TlsFiles, expiry_s
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.uvloop

SECRET = b"one of thirty-two characters ..."
OTHER = b"another of the same length ....."
HERE = "127.0.0.1"


async def _echo(method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
    return encode_body(decode_body(body, int) + 1), [b"t" * 100_000]


class Stand:
    """A server, and clients of any security."""

    def __init__(self, server: RpcServer) -> None:
        self._server = server

    async def ask(self, security: RpcSecurity) -> int:
        """One call on a connection of its own. Raises RpcError."""
        link = TcpLink(f"{HERE}:{self._server.port}", security.tls)
        client = RpcClient(link, clock=SystemClock(), entropy=SystemEntropy(), security=security)
        try:
            answer, tail = await client.call("add", 1, int, 5)
            assert tail == b"t" * 100_000
            return answer
        finally:
            await client.close()

    async def is_refused(self, security: RpcSecurity) -> str:
        """Why there is no connection."""
        with pytest.raises(NotConnected) as refused:
            await self.ask(security)
        return str(refused.value)


@asynccontextmanager
async def served(security: RpcSecurity) -> AsyncIterator[Stand]:
    server = RpcServer(_echo, clock=SystemClock(), entropy=SystemEntropy(), security=security)
    await server.listen(HERE, 0)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield Stand(server)
    finally:
        await server.close(grace_s=0)


def rpc(files: TlsFiles, peer_name: str = "", *secrets: bytes) -> RpcSecurity:
    return RpcSecurity(secrets, Tls("rpc", files, peer_name=peer_name))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make()


# --- who is served


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("secrets", [(), (SECRET,)])
def test_both_sides_show_a_certificate_with_a_secret_beside_or_without(
    authority: Authority, tmp_path: Path, secrets: tuple[bytes, ...], loop_factory: Any
) -> None:
    files = authority.files(tmp_path, HERE)

    async def use() -> None:
        async with served(rpc(files, "", *secrets)) as stand:
            assert await stand.ask(rpc(files, "", *secrets)) == 2

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(use())


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("taken_first", [0, 2 << 20])
def test_over_tls_an_answer_counts_as_held_until_its_peer_has_taken_it(
    authority: Authority, tmp_path: Path, taken_first: int, loop_factory: Any
) -> None:
    security = rpc(authority.files(tmp_path, HERE))
    tail = bytes(24 << 20)  # more than sockets take
    asked = asyncio.Event()

    async def large(method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        asked.set()
        return b"", [tail]

    async def run() -> None:
        server = RpcServer(large, clock=SystemClock(), entropy=SystemEntropy(), security=security)
        await server.listen(HERE, 0)
        link = TcpLink(f"{HERE}:{server.port}", security.tls)
        client = RpcClient(link, clock=SystemClock(), entropy=SystemEntropy(), security=security)
        connection = await client._connected("any", client._clock.monotonic() + 5)
        transport = connection.wire._transport  # type: ignore[attr-defined]
        answer = connection._waiting[500] = asyncio.get_running_loop().create_future()
        connection._send(Header(connection.version, 500, "large", 0), b"")
        while taken_first and connection.wire.heard < taken_first:
            await asyncio.sleep(0)
        transport.pause_reading()
        await asked.wait()
        for _ in range(500):  # what can leave has left
            await asyncio.sleep(0)
        assert server.held_bytes > len(tail)
        transport.resume_reading()
        assert (await answer).tail == tail
        while server.held_bytes:
            await asyncio.sleep(0)
        await client.close()
        await server.close(grace_s=0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


async def test_over_tls_a_wrong_secret_is_refused_as_well(authority: Authority, tmp_path: Path) -> None:
    files = authority.files(tmp_path, HERE)

    async with served(rpc(files, "", SECRET)) as stand:
        with pytest.raises(NotConnected) as refused:
            await stand.ask(rpc(files, "", OTHER))
        assert isinstance(refused.value, HelloRefused) or "secret" in str(refused.value)


def test_silent_peers_have_a_limit_before_their_handshake(authority: Authority, tmp_path: Path) -> None:
    security = rpc(authority.files(tmp_path, HERE))

    async def run() -> None:
        server = RpcServer(
            _echo, clock=SystemClock(), entropy=SystemEntropy(), security=security, max_pending_hellos=1
        )
        await server.listen(HERE, 0)
        try:
            _, silent = await asyncio.open_connection(HERE, server.port)
            refused, writer = await asyncio.open_connection(HERE, server.port)
            with suppress(ConnectionResetError):
                assert await refused.read() == b""
            assert server.refused_hellos == 1
            silent.close()
            writer.close()
        finally:
            await server.close(grace_s=0)

    uvloop.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


async def test_a_client_without_tls_and_one_of_another_authority_are_refused(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.files(tmp_path / "server", HERE)
    stranger = Authority.make("stranger").files(
        tmp_path / "stranger", HERE, authorities=authority.certificate
    )

    async with served(rpc(files)) as stand:
        await stand.is_refused(RpcSecurity())
        await stand.is_refused(rpc(stranger))
        assert await stand.ask(rpc(files)) == 2


async def test_a_server_of_another_authority_or_another_host_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    client = authority.files(tmp_path / "client", HERE)

    stranger = Authority.make("stranger")
    for files in (
        stranger.files(tmp_path / "stranger", HERE, authorities=authority.certificate),
        authority.files(tmp_path / "elsewhere", "10.9.8.7", "elsewhere.example"),
    ):
        async with served(rpc(files)) as stand:
            assert "certificate verify failed" in (await stand.is_refused(rpc(client))).lower()


async def test_a_configured_name_counts_for_both_sides_in_the_place_of_the_address(
    authority: Authority, tmp_path: Path
) -> None:
    ours = authority.files(tmp_path / "ours", "tailrace.example")
    others = authority.files(tmp_path / "others", "payroll.example", HERE)

    async with served(rpc(ours, "tailrace.example")) as stand:
        assert await stand.ask(rpc(ours, "tailrace.example")) == 2
        await stand.is_refused(rpc(others, "tailrace.example"))  # of the same authority, for another service
        assert "mismatch" in (await stand.is_refused(rpc(ours, "payroll.example"))).lower()


async def test_a_certificate_for_servers_alone_makes_no_client(authority: Authority, tmp_path: Path) -> None:
    files = authority.files(tmp_path / "both", HERE)
    half = authority.files(tmp_path / "half", HERE, usages=(ExtendedKeyUsageOID.SERVER_AUTH,))

    async with served(rpc(files)) as stand:
        await stand.is_refused(rpc(half))


async def test_a_certificate_that_has_ended_is_refused(authority: Authority, tmp_path: Path) -> None:
    files = authority.files(tmp_path / "good", HERE)
    ended = authority.files(tmp_path / "ended", HERE, end=datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC))

    async with served(rpc(files)) as stand:
        await stand.is_refused(rpc(ended))


# --- replaced files


async def test_a_replaced_certificate_is_shown_to_the_next_connection(
    authority: Authority, tmp_path: Path
) -> None:
    server = rpc(authority.files(tmp_path / "server", HERE))
    client = rpc(authority.files(tmp_path / "client", HERE))
    assert server.tls is not None
    tls = server.tls

    async with served(server) as stand:
        assert await stand.ask(client) == 2
        authority.files(tmp_path / "server", "elsewhere.example")
        assert await stand.ask(client) == 2  # not taken up yet
        tls.refresh()
        await stand.is_refused(client)
        authority.files(tmp_path / "server", HERE)
        tls.refresh()
        assert await stand.ask(client) == 2


async def test_an_authority_is_exchanged_without_a_restart_and_the_old_one_counts_no_more(
    authority: Authority, tmp_path: Path
) -> None:
    next_one = Authority.make("next")
    both = authority.certificate + next_one.certificate
    server = rpc(authority.files(tmp_path / "server", HERE, authorities=both))
    old = rpc(authority.files(tmp_path / "old", HERE, authorities=both))
    new = rpc(next_one.files(tmp_path / "new", HERE, authorities=both))
    assert server.tls is not None
    tls = server.tls

    async with served(server) as stand:
        assert (await stand.ask(old), await stand.ask(new)) == (2, 2)
        next_one.files(tmp_path / "server", HERE)  # trusts the next one alone from here on
        tls.refresh()
        assert await stand.ask(new) == 2
        await stand.is_refused(old)


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_a_removed_authority_opened_is_not_resumed(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, loop_factory: Any
) -> None:
    tls = Tls("http", authority.files(tmp_path / "server", HERE), minimum=ssl.TLSVersion.TLSv1_2)
    files = authority.files(tmp_path / "client", HERE)
    context = ssl.create_default_context(cafile=str(files.authorities))
    context.load_cert_chain(files.certificate, files.key)
    context.maximum_version = version

    def ask(port: int, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with (
            socket.create_connection((HERE, port), 10) as plain,
            context.wrap_socket(plain, server_hostname=HERE, session=session) as secured,
        ):
            if secured.recv(10) != b"served":
                raise ConnectionResetError
            return secured.session, secured.session_reused

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"served")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, HERE, 0, ssl=tls.server_context)
        port = server.sockets[0].getsockname()[1]
        session, _ = await asyncio.to_thread(ask, port, None)
        _, is_reused = await asyncio.to_thread(ask, port, session)
        assert is_reused == (version == ssl.TLSVersion.TLSv1_2)  # else this shows nothing
        next_one = Authority.make("next")
        authority.files(tmp_path / "server", HERE, authorities=next_one.certificate)
        tls.refresh()
        for brought in (session, None):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(ask, port, brought)
        server.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


async def test_a_client_shows_its_newest_certificate(authority: Authority, tmp_path: Path) -> None:
    server = rpc(authority.files(tmp_path / "server", HERE))
    client = rpc(
        Authority.make("stranger").files(tmp_path / "client", HERE, authorities=authority.certificate)
    )
    assert client.tls is not None
    tls = client.tls

    async with served(server) as stand:
        await stand.is_refused(client)
        authority.files(tmp_path / "client", HERE)
        tls.refresh()
        assert await stand.ask(client) == 2


async def test_bad_files_are_counted_and_the_last_good_ones_stay(
    authority: Authority, tmp_path: Path
) -> None:
    security = rpc(authority.files(tmp_path, HERE))
    assert security.tls is not None
    tls = security.tls
    expires = tls.expires_s
    cert, key = (tmp_path / "cert.pem").read_bytes(), (tmp_path / "key.pem").read_bytes()
    bad: list[tuple[str, bytes]] = [
        ("cert.pem", b"no certificate"),
        ("cert.pem", cert[: len(cert) // 2]),
        ("key.pem", authority.files(tmp_path / "another", HERE).key.read_bytes()),
        ("ca.pem", b""),
    ]

    async with served(security) as stand:
        for number, (name, content) in enumerate(bad, 1):
            good = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(content)
            tls.refresh()
            tls.refresh()  # seen already
            assert (tls.failures, tls.expires_s) == (number, expires), name
            assert await stand.ask(security) == 2
            (tmp_path / name).write_bytes(good)
            tls.refresh()
        (tmp_path / "key.pem").unlink()
        tls.refresh()
        assert tls.failures == len(bad) + 1
        assert await stand.ask(security) == 2
        (tmp_path / "key.pem").touch(0o600)
        (tmp_path / "key.pem").write_bytes(key)
        tls.refresh()
        assert await stand.ask(security) == 2


def test_a_key_that_others_could_read_is_taken_up_once_its_mode_is_mended(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.files(tmp_path, HERE)
    tls = Tls("rpc", files)
    before = tls.client_context
    authority.files(tmp_path, HERE)
    files.key.chmod(0o644)
    tls.refresh()
    assert (tls.failures, tls.client_context) == (1, before)
    files.key.chmod(0o600)
    tls.refresh()
    assert tls.failures == 1
    assert tls.client_context is not before


def test_at_start_a_bad_file_is_named(authority: Authority, tmp_path: Path) -> None:
    files = authority.files(tmp_path, HERE)
    files.key.chmod(0o644)
    with pytest.raises(BadCertificate, match=r"key .*key\.pem' can be read or written by others"):
        Tls("rpc", files)
    files.key.chmod(0o600)
    files.key.write_bytes(b"none")
    with pytest.raises(BadCertificate, match=r"certificate '.*cert\.pem' with key '.*key\.pem'"):
        Tls("rpc", files)
    files = authority.files(tmp_path, HERE, authorities=b"none")
    with pytest.raises(BadCertificate, match=r"authorities '.*ca\.pem'"):
        Tls("rpc", files)


@pytest.mark.parametrize("year", [2030, 2049, 2050, 2090])
def test_the_end_of_a_certificate_is_known(authority: Authority, tmp_path: Path, year: int) -> None:
    end = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    files = authority.files(tmp_path, HERE, end=end)
    assert expiry_s(files.certificate) == int(end.timestamp())


# --- HTTPS


def test_https_follows_its_files_and_requires_client_certificates_if_configured(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.files(tmp_path / "http", HERE)
    open_tls = Tls("http", TlsFiles(files.certificate, files.key), minimum=ssl.TLSVersion.TLSv1_2)
    closed_tls = Tls("http", files, minimum=ssl.TLSVersion.TLSv1_2)
    anonymous = ssl.create_default_context(cafile=str(files.authorities))

    async def get(tls: Tls, context: ssl.SSLContext) -> int:
        app = web.Application()
        app.add_routes([web.get("/healthz", _healthy)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, HERE, 0, ssl_context=tls.server_context).start()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"https://{HERE}:{runner.addresses[0][1]}/healthz", ssl=context) as answer,
            ):
                return answer.status
        finally:
            await runner.cleanup()

    assert uvloop.run(get(open_tls, anonymous)) == 200
    assert uvloop.run(get(closed_tls, closed_tls.client_context)) == 200
    with pytest.raises((aiohttp.ClientError, OSError)):
        uvloop.run(get(closed_tls, anonymous))

    authority.files(tmp_path / "http", "elsewhere.example")
    open_tls.refresh()
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        uvloop.run(get(open_tls, anonymous))


async def _healthy(request: web.Request) -> web.Response:
    return web.Response()
