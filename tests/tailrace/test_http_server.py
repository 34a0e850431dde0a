"""A process's HTTP server: its gauges are kept for as long as it serves, and its connections are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from aiohttp.web_protocol import RequestHandler
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tailrace.http.http_connections import HttpBounds, HttpConnection, HttpConnections, HttpTelemetry
from tailrace.http.http_server import GAUGES_EVERY_SECONDS, HttpServer, Page, Readiness
from tailrace.security.tls import Tls, TlsFiles
from tests.support.certificates import Authority
from tests.support.clocks import ManualClock
from tests.support.patience import PATIENCE_SECONDS


class BrokenPages:
    """Pages whose gauges fail at first in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.routes: Mapping[str, Page] = {}
        self.updates = 0

    async def readiness(self) -> Readiness:
        return Readiness([])

    async def update_gauges(self) -> None:
        self.updates += 1
        if self.updates == 1:
            raise KeyError("a bug")


def test_gauges_are_updated_again_after_an_unforeseen_error() -> None:
    async def scenario() -> None:
        clock, pages = ManualClock(), BrokenPages()
        http = HttpServer(pages, clock)
        await http.start("127.0.0.1", 0)
        try:
            for _ in range(2):
                await asyncio.sleep(0)
                clock.advance(GAUGES_EVERY_SECONDS)
            await asyncio.sleep(0)
        finally:
            await http.close()
        assert pages.updates == 3

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert [(line["event"], line["cause"]) for line in lines] == [
        ("gauges were not updated", "KeyError: 'a bug'")
    ]


class Served:
    """A server with these bounds, and what it counted."""

    def __init__(self, http: HttpServer, pages: BrokenPages, clock: ManualClock) -> None:
        self.http, self.pages, self.clock = http, pages, clock

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        writer.write(sent)
        return reader, writer

    def closed(self, reason: str) -> float | None:
        return self.pages.registry.get_sample_value(
            "tailrace_http_closed_connections_total", {"reason": reason}
        )


@asynccontextmanager
async def http_server(bounds: HttpBounds, tls: Tls | None = None) -> AsyncIterator[Served]:
    clock, pages = ManualClock(), BrokenPages()
    pages.updates = 1
    http = HttpServer(pages, clock, bounds=bounds)
    await http.start("127.0.0.1", 0, tls)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield Served(http, pages, clock)
    finally:
        await http.close()


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def ends(reader: asyncio.StreamReader) -> bool:
    """Whether the server has closed the connection, with no answer."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_connections_of_one_address_are_bounded_and_open_ones_stay() -> None:
    async def ends_or_answers(reader: asyncio.StreamReader) -> bool:
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True

    async with http_server(HttpBounds(max_connections_per_address=1)) as served:
        first, writer = await served.connect(HEALTH)
        assert (await first.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        second, _ = await served.connect(HEALTH)
        assert await ends(second)
        assert served.closed("max_connections_per_address") == 1
        writer.write(HEALTH)
        assert (await first.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.close()
        while True:  # the server sees the end soon
            third, _ = await served.connect(HEALTH)
            if not await ends_or_answers(third):
                break


async def test_connections_of_one_address_are_bounded_before_their_tls_handshake(tmp_path: Path) -> None:
    files = Authority.make().files(tmp_path, "127.0.0.1")
    tls = Tls("http", TlsFiles(files.certificate, files.key))

    async with http_server(HttpBounds(max_connections_per_address=1), tls) as served:
        silent, _ = await served.connect()
        assert await ends((await served.connect())[0])
        assert served.closed("max_connections_per_address") == 1
        await served.http.close()
        assert await ends(silent)


def test_connections_of_one_ipv6_64_are_bounded_together() -> None:
    bounds = HttpBounds(max_connections_per_address=1)
    connections = HttpConnections(bounds, HttpTelemetry(CollectorRegistry()), ManualClock())
    first, second, other = (
        HttpConnection(cast(RequestHandler, object()), connections, address=address)
        for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")
    )
    assert connections.opened(first) is None
    assert connections.opened(second) == "max_connections_per_address"
    assert connections.opened(other) is None
    for connection in (first, second):
        connections.ended(connection)
    assert connections.opened(second) is None


async def test_a_head_that_does_not_end_closes_its_connection() -> None:
    async with http_server(HttpBounds(head_seconds=10.0)) as served:
        for sent in (b"", b"GET /healthz HT"):
            reader, _ = await served.connect(sent)
            ended = asyncio.ensure_future(ends(reader))
            while not ended.done():
                await asyncio.sleep(0)
                served.clock.advance(1.0)
            assert await ended
        assert served.closed("slow head") == 2


async def test_a_large_head_closes_its_connection() -> None:
    async with http_server(HttpBounds(head_bytes=4_096)) as served:
        reader, _ = await served.connect(b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 1_000)
        assert await ends(reader)
        assert served.closed("large head") == 1


async def test_an_idle_connection_is_closed() -> None:
    async with http_server(HttpBounds(idle_seconds=60.0)) as served:
        reader, _ = await served.connect(HEALTH)
        await reader.readuntil(b"}")
        ended = asyncio.ensure_future(ends(reader))
        while not ended.done():
            await asyncio.sleep(0)
            served.clock.advance(5.0)
        assert await ended and served.closed("idle") == 1
