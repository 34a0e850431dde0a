"""Expensive requests and bytes that are not HTTP: the gateway serves others meanwhile, and releases everything."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.agent.gateway.serving import Served, opened_gateway
from tests.hostile.gateway import large_bodies
from tests.support.short_turns import HELD_SECONDS
from tests.support.turns import least_of_three, measured_turns


def path_of(there: Served, *parts: str) -> str:
    return "/".join((there.base.split(str(there.gateway.port))[1], *parts))


async def sent(there: Served, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", there.gateway.port)
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize("body", large_bodies().items(), ids=lambda item: item[0])
async def test_bodies_that_cost_much_to_look_at_leave_the_loop_to_others(body: tuple[str, bytes]) -> None:
    @least_of_three
    async def measured() -> None:
        with TemporaryDirectory() as folder:
            async with opened_gateway(Path(folder), max_records_per_request=3_000) as there:
                await there.wired.topic("t")
                fields = f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(body[1])}"
                head = f"POST {path_of(there, 'topics/t/records')} HTTP/1.1\r\n{fields}\r\n\r\n"
                with measured_turns() as turns:
                    reader, _ = await sent(there, head.encode() + body[1])
                    answer = await reader.readline()
                    with suppress(ConnectionError):
                        await reader.read()
                assert answer[9:12] in (b"200", b"400", b"413")
                turns.check(HELD_SECONDS)

    await measured()


@pytest.mark.uvloop
async def test_a_client_that_has_gone_is_not_waited_for(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        budget = there.wired.agent._budget
        topic = "/v3/clusters/{cluster_id}/topics/{topic_name}"
        for path, route, status in (
            (
                "partitions/0/records?offset=latest&timeout_ms=30000",
                "partitions/{partition_id}/records",
                "499",
            ),
            ("events", "events", "200"),
        ):
            head = f"GET {path_of(there, 'topics/t', path)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            reader, writer = await sent(there, head.encode())
            if status == "200":
                await reader.readuntil(b"\r\n\r\n")
            while not budget.used:
                await asyncio.sleep(0.001)
            writer.transport.abort()
            ended = {"route": f"{topic}/{route}", "method": "GET", "status": status}
            while not there.wired.metric("gateway_requests_total", **ended):
                await asyncio.sleep(0.001)
            while budget.used or there.gateway._parts.streams.count:
                await asyncio.sleep(0.001)


@pytest.mark.uvloop
@pytest.mark.parametrize(
    "data",
    [
        b"GET /v3/clusters HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
        b"CONNECT http://other.example/v3/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=["no host", "long line", "many fields", "other host", "bad chunk"],
)
async def test_bytes_that_are_not_http_are_refused_and_no_error_in_the_log(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_gateway(tmp_path) as there:
        reader, _ = await sent(there, data)
        assert b" 400 " in await reader.readline()
        assert there.wired.metric("gateway_closed_connections_total", reason="not HTTP") == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def chunked_head(there: Served) -> bytes:
    """The head of a produce request whose body comes in chunks."""
    head = f"POST {path_of(there, 'topics/t/records')} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.uvloop
async def test_a_body_that_is_no_http_is_refused_when_it_comes(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        reader, writer = await sent(there, chunked_head(there))
        while not any(connection.requests for connection in there.gateway._connections.open.values()):
            await asyncio.sleep(0.001)
        writer.write(b"ZZ\r\n")
        assert b" 400 " in await reader.readline()
        await reader.read()
        assert there.wired.metric("gateway_closed_connections_total", reason="not HTTP") == 1


@pytest.mark.uvloop
async def test_records_before_what_is_no_http_are_stored_and_reported(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        record = b'{"value":{"type":"JSON","data":1}}'
        reader, writer = await sent(there, chunked_head(there) + b"%x\r\n%s\r\n" % (len(record), record))
        await reader.readuntil(b'"offset":0')
        writer.write(b"ZZ\r\n")
        assert b'{"error_code":400,' in await reader.read()


@pytest.mark.uvloop
async def test_bytes_that_are_not_http_after_another_request_are_refused(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        poll = path_of(there, "topics/t/partitions/0/records?offset=latest&timeout_ms=200")
        first = f"GET {poll} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        reader, writer = await sent(there, first.encode() + chunked_head(there))
        while not there.wired.agent._budget.used:
            await asyncio.sleep(0.001)
        writer.write(b"ZZ\r\n")
        assert b"HTTP/1.1 400 " in await reader.read()


@pytest.mark.uvloop
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/topics", {"topic_name": "x" * 40_000}),
        ("/topics", {"topic_name": "t", "configs": [{"name": "retention.ms", "value": "1"}] * 30_000}),
        ("/topics/t/configs:alter", {"data": [{"name": "retention.ms", "value": "1"}] * 30_000}),
        ("/topics/t/configs:alter", {"data": [{"name": "x" * 40_000, "value": "1"}]}),
    ],
    ids=["long name", "configs of a new topic", "configs", "long config"],
)
async def test_values_that_kafka_cannot_take_are_the_clients_mistake(
    tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    async with opened_gateway(tmp_path) as there:
        assert (await there.ask("POST", path, body))[0] == 400
