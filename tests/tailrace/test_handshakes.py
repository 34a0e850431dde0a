"""TLS handshakes are bounded before they begin, on both event loops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tailrace.security.handshakes import HandshakeBounds, Handshakes, NoHandshake
from tailrace.security.tls import Tls, TlsFiles
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_SECONDS

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
DAY = 86_400.0
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
Run = Callable[[Coroutine[Any, Any, None]], None]


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Listener:
    """A listener with TLS, and why connections ended before they were handed over."""

    def __init__(
        self,
        handshakes: Handshakes,
        port: int,
        client: ssl.SSLContext,
        ended: list[tuple[NoHandshake, str, str]],
    ) -> None:
        self.handshakes, self.port, self.client, self.ended = handshakes, port, client, ended
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, source: str = HERE, *, tls: bool = False) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(
            HERE,
            self.port,
            ssl=self.client if tls else None,
            local_addr=(source, 0),
        )
        self.writers.append(writer)
        return reader

    async def has(self, count: int) -> None:
        """Wait until so many handshakes are unfinished."""
        while len(self.handshakes) != count:
            await asyncio.sleep(0)


async def ends(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


def run_listener(
    run: Run, folder: Path, bounds: HandshakeBounds, scenario: Callable[[Listener], Awaitable[None]]
) -> None:
    authority = Authority.make()
    files = authority.files(folder, HERE)
    (folder / "ca.pem").write_bytes(authority.certificate)
    tls = Tls("kafka", TlsFiles(files.certificate, files.key), minimum=ssl.TLSVersion.TLSv1_2)

    async def whole() -> None:
        ended: list[tuple[NoHandshake, str, str]] = []
        handshakes = Handshakes(Echo, tls.server_context, bounds, lambda *why: ended.append(why))
        server = await asyncio.get_running_loop().create_server(handshakes.arrival, HERE, 0)
        port = server.sockets[0].getsockname()[1]
        client = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        listener = Listener(handshakes, port, client, ended)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await scenario(listener)
        finally:
            server.close()
            await handshakes.close()
            for writer in listener.writers:
                writer.close()

    run(whole())


@LOOPS
def test_data_sent_with_the_handshake_arrives(run: Run, tmp_path: Path) -> None:
    async def scenario(listener: Listener) -> None:
        for _ in range(20):
            reader = await listener.connect(tls=True)
            listener.writers[-1].write(b"hello")
            assert await reader.readexactly(5) == b"hello"
        await listener.has(0)
        assert listener.ended == []

    run_listener(run, tmp_path, HandshakeBounds(1, 1, DAY), scenario)


@LOOPS
def test_silent_connections_of_one_address_leave_room_for_others(run: Run, tmp_path: Path) -> None:
    async def scenario(listener: Listener) -> None:
        silent = [await listener.connect() for _ in range(2)]
        await listener.has(2)
        assert await ends(await listener.connect())
        assert listener.ended == [(NoHandshake.TOO_MANY_OF_ADDRESS, HERE, "")]
        await listener.connect(ELSEWHERE, tls=True)
        listener.writers[0].close()
        await listener.has(1)
        assert listener.ended[1][:2] == (NoHandshake.FAILED, HERE)
        await listener.connect(tls=True)
        assert not silent[1].at_eof()

    run_listener(run, tmp_path, HandshakeBounds(3, 2, DAY), scenario)


@LOOPS
def test_there_is_a_limit_for_all_addresses(run: Run, tmp_path: Path) -> None:
    async def scenario(listener: Listener) -> None:
        for source in (HERE, ELSEWHERE):
            await listener.connect(source)
        await listener.has(2)
        assert await ends(await listener.connect("127.0.0.3"))
        assert listener.ended == [(NoHandshake.TOO_MANY, "127.0.0.3", "")]

    run_listener(run, tmp_path, HandshakeBounds(2, 2, DAY), scenario)


@LOOPS
def test_a_late_handshake_ends(run: Run, tmp_path: Path) -> None:
    async def scenario(listener: Listener) -> None:
        assert await ends(await listener.connect())
        await listener.has(0)
        ((why, _, error),) = listener.ended
        assert why is NoHandshake.FAILED and "longer than 0.05 seconds" in error

    run_listener(run, tmp_path, HandshakeBounds(2, 2, 0.05), scenario)


@LOOPS
def test_a_listener_that_closes_ends_its_handshakes(run: Run, tmp_path: Path) -> None:
    async def scenario(listener: Listener) -> None:
        reader = await listener.connect()
        await listener.has(1)
        await listener.handshakes.close()
        assert await ends(reader) and len(listener.handshakes) == 0 and listener.ended == []

    run_listener(run, tmp_path, HandshakeBounds(2, 2, DAY), scenario)
