"""Tailing a topic over server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.gateway.body_memory import BodyCharge
from agent.gateway.event_text import MAX_PARTITIONS, event, event_id, parse_event_id
from agent.gateway.events import READ_EVERY_S, _Tail
from agent.gateway.reading import PartitionRead, ReadOptions
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from tailrace.background_tasks import cancel_and_wait
from tailrace.batches.record_batch import assemble_like, read_header
from tailrace.clock import SystemClock
from tailrace.object_store.memory import MemoryStore
from tests.agent.gateway.serving import Served, opened_gateway, served
from tests.support.agents import batch, settle
from tests.support.clocks import ManualClock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import wired_agent

pytestmark = pytest.mark.uvloop


@given(
    st.dictionaries(st.integers(0, 10_000), st.integers(0, 2**63 - 1), min_size=1, max_size=MAX_PARTITIONS)
)
def test_an_id_is_the_offsets_that_come_next(offsets: dict[int, int]) -> None:
    assert parse_event_id(event_id(offsets)) == offsets
    assert event("record", b"{}", offsets).startswith(
        b"id: " + event_id(offsets).encode() + b"\nevent: record\n"
    )


@pytest.mark.parametrize(
    "text",
    ["", "0", "0-", "a-1", "0-1.", "0-9223372036854775808", "0-1 ", ".".join(["1-1"] * (MAX_PARTITIONS + 1))],
)
def test_an_invalid_id_is_recognised(text: str) -> None:
    assert parse_event_id(text) is None


@dataclass
class Event:
    name: str = ""
    id: str = ""
    data: Any = None


@dataclass
class Reader:
    """A reader as browsers have it. `last`: the id after which it would connect again."""

    answer: aiohttp.ClientResponse
    last: str = ""
    comments: list[str] = field(default_factory=list)

    async def next(self) -> Event | None:
        """The next event; None at the end of the stream."""
        found = Event()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := (await self.answer.content.readline()).decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if not name and not value and found.name:
                    return found
                match name:
                    case "id":
                        found.id = self.last = value
                    case "event":
                        found.name = value
                    case "data":
                        found.data = json.loads(value)
                    case _:
                        self.comments.append(value)
        return None

    async def beginning(self) -> None:
        """Read what comes before the first event."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := (await self.answer.content.readline()).decode().rstrip("\n"):
                if line.startswith("id: "):
                    self.last = line.removeprefix("id: ")

    async def values(self, count: int) -> list[str]:
        """The values of so many records."""
        events = [await self.next() for _ in range(count)]
        assert all(each is not None and each.name == "record" for each in events), events
        return [each.data["value"]["data"] for each in events if each is not None]


@asynccontextmanager
async def reading(there: Served, topic: str = "t", query: str = "", last: str = "") -> AsyncIterator[Reader]:
    headers = {"Last-Event-ID": last} if last else {}
    url = f"{there.base}/topics/{topic}/events?value_format=string{query}"
    async with there.session.get(url, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        yield Reader(answer)


async def put(there: Served, *values: str, partition: int = 0) -> None:
    record = {"partition_id": partition}
    reports = await there.produce(
        "t", *({**record, "value": {"type": "STRING", "data": each}} for each in values)
    )
    assert {each["error_code"] for each in reports} == {200}


async def test_records_come_as_they_are_produced_and_a_reader_continues_after_any_of_them(
    tmp_path: Path,
) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t", partitions=3)
        await put(there, "old")
        async with reading(there) as tail:
            await put(there, "a", "b", partition=1)
            assert await tail.values(1) == ["a"]
            middle = tail.last
            assert await tail.values(1) == ["b"]
            await put(there, "c", partition=2)
            assert await tail.values(1) == ["c"]
            assert parse_event_id(tail.last) == {0: 1, 1: 2, 2: 1}
        async with reading(there, last=middle) as again:
            assert sorted(await again.values(2)) == ["b", "c"], "nothing twice, nothing lost"
        async with reading(there, query="&offset=earliest&partitions=0") as first:
            assert await first.values(1) == ["old"]
        assert there.wired.metric("gateway_records_total", kind="read") == 6


async def test_a_reader_that_got_no_record_yet_continues_where_it_began(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t", partitions=2)
        await put(there, "old")
        async with reading(there) as tail:
            await tail.beginning()
        await put(there, "a")
        async with reading(there, last=tail.last) as again:
            assert await again.values(1) == ["a"]


async def test_a_tail_survives_the_restart_of_its_agent(tmp_path: Path) -> None:
    async def before(objects: MemoryStore) -> str:
        async with wired_agent(tmp_path, objects=objects) as wired, served(wired, heartbeat_ms=200) as there:
            await wired.topic("t", partitions=2)
            async with reading(there) as tail:
                await put(there, "a", "b", partition=1)
                assert await tail.values(2) == ["a", "b"]
                closing = asyncio.create_task(there.gateway.close())
                end = await tail.next()
                assert end is not None and end.name == "end"
                assert end.data["message"] == "The agent is shutting down. Connect again; nothing is lost."
                assert await tail.next() is None
                await closing
            await (await wired.client()).produce(batch(b"meanwhile"), partition=0)
        return tail.last

    async with asyncio.timeout(PATIENCE_SECONDS):
        objects = MemoryStore(SystemClock())
        last = await before(objects)
        async with (
            wired_agent(tmp_path, objects=objects) as wired,
            served(wired) as there,
            reading(there, last=last) as again,
        ):
            assert await again.values(1) == ["meanwhile"]
            await put(there, "c", partition=1)
            assert await again.values(1) == ["c"]


async def test_a_quiet_stream_reports_it_and_a_reader_that_left_is_noticed(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, heartbeat_ms=100) as there:
        await there.wired.topic("t")
        async with reading(there) as tail:
            line = b""
            while b"nothing new" not in line:
                line = await tail.answer.content.readline()
            assert there.wired.metric("gateway_streams") == 1
            tail.answer.close()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while there.wired.metric("gateway_streams"):
                    await asyncio.sleep(0.01)
        assert there.wired.metric("gateway_ended_streams_total", reason="left") == 1


class _BusyTopic(_Tail):
    """A stream that always has new records, and reads from nowhere."""

    reads = 0

    async def _next(self, kept: BodyCharge) -> list[PartitionRead]:
        self.reads += 1
        await asyncio.sleep(0)
        return []

    async def _take(self, parts: list[PartitionRead]) -> bool:
        return True


async def test_a_stream_of_a_busy_topic_reads_at_intervals() -> None:
    async def work(taking: Awaitable[bool]) -> bool:
        return await taking

    async def nothing() -> None:
        return None

    clock = ManualClock()
    parts = SimpleNamespace(clock=clock, bodies=SimpleNamespace(body=nullcontext))
    call: Any = SimpleNamespace(
        parts=parts, shared=work, check_login=nothing, client=SimpleNamespace(throttled=nothing)
    )
    stream: Any = None
    tail = _BusyTopic(call, ReadOptions("BINARY", "BINARY", 1, 1), {0: 0}, stream)
    running = asyncio.create_task(tail.run())
    for reads in (1, 2, 3):
        await settle()
        assert tail.reads == reads
        clock.advance(READ_EVERY_S)
    await cancel_and_wait(running)


async def test_a_reader_that_is_too_slow_gets_an_error_and_is_disconnected(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, stalled_ms=300) as there:
        await there.wired.topic("t")
        path = there.base.split(str(there.gateway.port))[1] + "/topics/t/events?offset=earliest"
        for _ in range(24):
            await put(there, "x" * 700_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", there.gateway.port, limit=1024)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not there.wired.metric("gateway_ended_streams_total", reason="stalled"):
                await asyncio.sleep(0.05)
            data = await reader.read()
        assert b"event: end\ndata: " in data[-400:] and b"You read too slowly." in data[-400:]
        assert there.wired.agent._fetch_memory.used == 0 and there.wired.metric("gateway_streams") == 0
        writer.close()


async def test_deleted_records_are_a_gap_and_offsets_that_never_were_an_end(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        topic = await there.wired.topic("t")
        await put(there, "a", "b", "c")
        part = DeleteRecordsPartition(topic.topic_id, 0, 2)
        await there.wired.sequencer.delete_records(DeleteRecords([part]))
        async with reading(there, last="0-1") as tail:
            gap = await tail.next()
            assert gap is not None and gap.name == "gap" and gap.id == "0-2"
            assert gap.data["message"] == "The records of partition 0 from offset 1 to 1 have been deleted."
            assert await tail.values(1) == ["c"]
        async with reading(there, last="0-77") as tail:
            end = await tail.next()
            assert end is not None and end.name == "end" and end.data["error_code"] == 41601


async def test_an_unreadable_record_is_a_gap_and_the_stream_continues(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        sound = batch(b"x", b"y")
        unreadable = assemble_like(read_header(sound), b"\xff" * 30, 2)
        assert (await (await there.wired.client()).produce(unreadable)).error_code == 0
        await put(there, "c")
        async with reading(there, last="0-0") as tail:
            gap = await tail.next()
            assert gap is not None and gap.name == "gap" and gap.id == "0-2"
            assert gap.data["message"] == "The records of partition 0 from offset 0 to 1 can't be read."
            assert await tail.values(1) == ["c"]
        status, answer = await there.ask("GET", "/topics/t/partitions/0/records?offset=0")
        assert (status, answer["error_code"]) == (500, 50002)
        assert "Read on from offset 2." in answer["message"]


async def test_a_stream_that_can_t_be_had_says_why(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path, max_streams=1) as there:
        await there.wired.topic("t", partitions=MAX_PARTITIONS + 1)
        for query, headers, status, said in [
            ("", {}, 400, "A stream has at most 64 partitions"),
            ("partitions=0,x", {}, 400, "partitions must be numbers"),
            ("partitions=65", {}, 404, "The topic has no partition 65."),
            ("partitions=0&offset=first", {}, 400, "offset must be earliest, latest or a number."),
            ("partitions=0&value_format=avro", {}, 400, "value_format must be binary or string or json."),
            ("partitions=0", {"Last-Event-ID": "7"}, 400, "Last-Event-ID is not an event of this topic."),
            ("partitions=0", {"Last-Event-ID": "99-1"}, 400, "Last-Event-ID is not an event of this topic."),
        ]:
            answer = await there.ask("GET", f"/topics/t/events?{query}", headers=headers)
            assert answer[0] == status and answer[1]["message"].startswith(said), answer
        assert (await there.ask("GET", "/topics/no/events"))[0] == 404
        async with reading(there, query="&partitions=0"):
            status, refused = await there.ask("GET", "/topics/t/events?partitions=0")
            assert (status, refused["error_code"]) == (429, 42901)
