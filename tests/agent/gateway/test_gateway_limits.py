"""The gateway's limits on its clients: connections, silence, slow reading, memory; and its shutdown."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import aiohttp
import pytest

from agent.gateway import client as gateway_client
from agent.gateway.client import CLIENT_ID, GatewayClient
from agent.gateway.responses import ResponseStream
from tailrace.batches.record_batch import Compression
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.http.http_connections import HttpConnections
from tailrace.kafka import ApiKey
from tailrace.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from tests.agent.gateway.serving import Served, opened_gateway, served
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import wired_agent

pytestmark = pytest.mark.uvloop


async def opened(there: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", there.gateway.port)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection is closed."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_connections_above_the_limit_are_closed_and_others_served(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, max_connections=2) as there:
        held = [await opened(there) for _ in range(2)]
        held[0][1].write(b"GET /v3/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await held[0][0].readline()).startswith(b"HTTP/1.1 200")
        refused, writer = await opened(there)
        assert await closed(refused) == b""
        assert there.wired.metric("gateway_closed_connections_total", reason="max_connections") == 1
        for _, each in [*held, (refused, writer)]:
            each.close()


async def test_a_client_that_never_ends_its_request_is_closed(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, idle_ms=400) as there:
        silent, _ = await opened(there)
        trickling, writer = await opened(there)
        writer.write(b"GET /v3/clusters HTTP/1.1\r\nHost")

        async def trickle() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.05)

        task = asyncio.create_task(trickle())
        assert await closed(silent) == b"" and await closed(trickling) == b""
        task.cancel()


async def test_a_head_that_does_not_end_closes_its_connection_before_it_is_idle(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, idle_ms=3_600_000, head_ms=300) as there:
        half, writer = await opened(there)
        writer.write(b"GET /v3/clu")
        assert await closed(half) == b""


async def test_one_address_leaves_connections_of_the_gateway_to_others(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, max_connections_per_address=1) as there:
        kept, writer = await opened(there)
        more, _ = await opened(there)
        assert await closed(more) == b"" and not kept.at_eof()
        writer.close()


async def test_idle_connections_are_closed_also_after_an_error_that_was_not_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_idle, looks = HttpConnections.close_slow, itertools.count()

    def breaks_once(connections: HttpConnections) -> None:
        if next(looks) == 0:
            raise ZeroDivisionError("a bug")
        close_idle(connections)

    monkeypatch.setattr(HttpConnections, "close_slow", breaks_once)

    async with opened_gateway(tmp_path, idle_ms=300) as there:
        silent, _ = await opened(there)
        assert await closed(silent) == b"" and next(looks) > 1


async def test_bodies_that_do_not_end_count_as_the_agents_memory_and_have_a_part_of_it(
    tmp_path: Path,
) -> None:
    async with wired_agent(tmp_path, memory_budget_bytes=16 << 20) as wired, served(wired) as there:
        await there.wired.topic("t")
        budget = there.wired.agent._budget
        path = there.base.split(str(there.gateway.port))[1] + "/topics/t/records"
        size = 1_900_000

        async def half_sent() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await opened(there)
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2 * size}\r\n\r\n".encode()
            )
            writer.write(b'{"value": "' + bytes(size))
            return reader, writer

        kept = []
        for number in (1, 2):
            kept.append(await half_sent())
            while budget.used < number * size:
                await asyncio.sleep(0.001)
        for _ in range(5):
            reader, writer = await half_sent()
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
            writer.close()
        assert 2 * size <= budget.used < 2 * size + 100
        assert (await there.get("/topics/t"))["topic_name"] == "t"  # through the handlers of Kafka's APIs
        for _, writer in kept:
            writer.close()
        while budget.used:
            await asyncio.sleep(0.001)


async def test_a_body_that_does_not_continue_is_ended(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, idle_ms=300) as there:
        await there.wired.topic("t")
        path = there.base.split(str(there.gateway.port))[1] + "/topics/t/records"
        reader, writer = await opened(there)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"value":')
        answer = await closed(reader)
        assert (
            answer.startswith(b"HTTP/1.1 408") and b"The rest of the body did not arrive in time." in answer
        )
        assert b"Connection: close" in answer


async def test_a_stream_of_records_is_cut_between_records_when_the_agent_ends(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        reader, writer = await opened(there)
        path = there.base.split(str(there.gateway.port))[1] + "/topics/t/records"
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode() + b"{}"
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b'"error_code":200' in await reader.readuntil(b"}\n")
        closing = asyncio.create_task(there.gateway.close())
        rest = await closed(reader)
        reports = [json.loads(line) for line in rest.splitlines() if line.startswith(b"{")]
        assert [each["error_code"] for each in reports] == [50302]
        await closing
        try:
            await there.ask("GET", "/topics")
            raise AssertionError("it listens no more")
        except aiohttp.ClientConnectorError:
            pass
        read = await (await there.wired.client()).fetch()
        assert read.high_watermark == 1


async def test_a_request_waits_for_memory_and_gives_it_back(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        budget = there.wired.agent._budget
        taken = 0
        while budget.try_take(1 << 20):
            taken += 1
        record = {"value": {"type": "STRING", "data": "x" * 2_000_000}}
        asked = asyncio.create_task(there.produce("t", record))
        while not budget.is_contended:
            await asyncio.sleep(0.01)
        await there.get("/brokers")
        assert not asked.done(), "small requests go on while a large one waits"
        for _ in range(taken):
            budget.give(1 << 20)
        [report] = await asked
        assert report["error_code"] == 41301
        assert budget.used == 0


async def test_a_client_above_its_quota_waits_and_gets_the_throttle_time_if_it_waited_long(
    tmp_path: Path,
) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        entity = [EntityData("client-id", CLIENT_ID)]
        quota = EntryData(entity, [OpData("producer_byte_rate", 10_000.0)])
        kafka = await there.wired.client()
        answer = await kafka.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest([quota]))
        assert answer.entries[0].error_code == 0
        await there.wired.agent.catalog.refresh()
        small, large = ({"value": {"type": "STRING", "data": "x" * size}} for size in (105_000, 900_000))
        [report] = await there.produce("t", small)
        assert report["error_code"] == 200, "what is above a quota is served"
        assert there.wired.metric("throttled_requests_total", quota="producer_byte_rate") == 1
        report, refusal = await there.produce("t", large)
        assert (report["error_code"], refusal["error_code"]) == (200, 42901)
        assert refusal["message"].startswith("You are above your quota. Try again in ")
        status, refusal = await there.ask("POST", "/topics/t/records", large)
        assert (status, refusal["error_code"]) == (429, 42901), "in a request of its own, too"
        records = await there.get("/topics/t/partitions/0/records?offset=1")
        assert records["next_offset"] == 2, "it is not stored"


async def test_records_that_were_read_are_answered_however_long_their_client_has_to_wait_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "MAX_THROTTLE_SECONDS", 0.01)

    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        await there.produce("t", {"value": {"type": "STRING", "data": "x" * 900_000}})
        quota = EntryData([EntityData("client-id", CLIENT_ID)], [OpData("consumer_byte_rate", 1_000.0)])
        kafka = await there.wired.client()
        await kafka.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest([quota]))
        await there.wired.agent.catalog.refresh()
        path = "/topics/t/partitions/0/records"
        assert len((await there.get(path))["data"]) == 1, (
            "else it would be read again and again, and never had"
        )
        status, refusal = await there.ask("GET", path)
        assert (status, refusal["error_code"]) == (429, 42901)
        monkeypatch.setattr(gateway_client, "MAX_THROTTLE_SECONDS", 1e9)
        monkeypatch.setattr(GatewayClient, "pause", lambda client: asyncio.sleep(0))
        waited = await there.get(path)
        assert (waited["data"], waited["next_offset"]) == ([], 0)


async def test_batches_that_unpack_to_much_are_read_in_parts_and_counted_until_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        kafka, budget = await there.wired.client(), there.wired.agent._budget
        for _ in range(8):
            bomb = encode_batch(
                [NewRecord(None, bytes(3 << 20))], timestamps=[0], compression=Compression.ZSTD
            )
            assert (await kafka.produce(bomb)).error_code == 0
        held = []
        write = ResponseStream.write

        async def noted(stream: ResponseStream, data: bytes) -> None:
            held.append(budget.used)
            await write(stream, data)

        monkeypatch.setattr(ResponseStream, "write", noted)
        offset = 0
        while offset < 8:
            answer = await there.get(f"/topics/t/partitions/0/records?offset={offset}")
            assert len(answer["data"]) == 1, "two have more than max_answer_bytes may unpack to"
            offset = answer["next_offset"]
        assert min(held) >= 4 * (3 << 20)
        while budget.used:
            await asyncio.sleep(0.001)


async def test_a_record_that_unpacks_to_more_than_can_be_made_json_in_a_turn_is_passed_over(
    tmp_path: Path,
) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        kafka = await there.wired.client()
        for size in (5 << 20, 3 << 20):
            bomb = encode_batch([NewRecord(None, bytes(size))], timestamps=[0], compression=Compression.ZSTD)
            assert (await kafka.produce(bomb)).error_code == 0
        path = "/topics/t/partitions/0/records?value_format=string&offset="
        status, refused = await there.ask("GET", path + "0")
        assert (status, refused["error_code"]) == (500, 50002)
        assert "gateway.max_answer_bytes" in refused["message"] and "offset 1." in refused["message"]
        assert len((await there.get(path + "1"))["data"]) == 1
