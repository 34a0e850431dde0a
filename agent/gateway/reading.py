"""Reads records of partitions over HTTP, one fetch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from agent.gateway.body_memory import SMALL_BYTES, BodyCharge, BodyMemory
from agent.gateway.call import JSON, HttpCall
from agent.gateway.errors import HttpRefusal, check, refusal_of
from agent.gateway.record_json import Format, RecordRead, record_read
from agent.gateway.responses import WRITTEN_TOGETHER_BYTES, ResponseStream
from agent.gateway.visible_records import ReadBudget, VisibleRecords, visible
from tailrace.batches.record_batch import InvalidBatch
from tailrace.batches.records import InvalidRecords
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.turns import ThreadTurns, Turns

EARLIEST, LATEST = -2, -1
_NAMED = {"earliest": EARLIEST, "latest": LATEST}
FORMATS: Mapping[str, Format] = {"binary": "BINARY", "string": "STRING", "json": "JSON"}
ISOLATION = {"read_committed": 1, "read_uncommitted": 0}
MAX_RECORDS = 10_000
SHOWN_TOGETHER = 30
"""Records converted to JSON in one turn of the loop."""
DECODED_TOGETHER = 50
"""Records decoded in another thread before it lets the loop have the interpreter."""
DEFAULT_RECORDS = 500
MAX_WAIT_MS = 30_000
NO_SESSION = -1
UNPACKED_FACTOR = 4
"""The records of a read may decompress to this many times the bytes that it may fetch. The first record always fits,
unless it alone has this many times `max_answer_bytes`: its JSON is made in one turn of the loop, 4 MiB in 50 ms."""
COPIES = 4
"""The cost of a decoded record until it is written, in its sizes: the record, its JSON, and the response."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, other than partitions and offsets."""

    key: Format
    value: Format
    isolation: int
    max_bytes: int

    @classmethod
    def of(cls, call: HttpCall) -> ReadOptions:
        """Read the options from the query. Raises HttpRefusal."""
        largest = call.parts.settings.max_answer_bytes
        return cls(
            key=call.query_choice("key_format", FORMATS, "BINARY"),
            value=call.query_choice("value_format", FORMATS, "BINARY"),
            isolation=call.query_choice("isolation", ISOLATION, 1),
            max_bytes=call.query_number("max_bytes", largest, largest),
        )


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """The records of one partition. `is_out_of_range`: it has none at this offset, and never will."""

    partition: int
    found: VisibleRecords
    is_out_of_range: bool = False


async def offsets_at(call: HttpCall, partitions: Sequence[int], given: str, isolation: int) -> dict[int, int]:
    """Return each partition's offset for a number, `earliest` or `latest`. Raises HttpRefusal."""
    if given not in _NAMED:
        if not (given.isascii() and given.isdigit() and len(given) < 20 and int(given) < 2**63):
            raise HttpRefusal(400, "offset must be earliest, latest or a number.")
        return dict.fromkeys(partitions, int(given))
    wanted = [ListOffsetsPartition(partition, timestamp=_NAMED[given]) for partition in partitions]
    topic = ListOffsetsTopic(call.name("topic_name"), wanted)
    answer = await call.ask(ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic]))
    rows = [row for part in answer.topics for row in part.partitions]
    for row in rows:
        check(row.error_code)
    return {row.partition_index: row.offset for row in rows}


async def read(
    call: HttpCall,
    offsets: Mapping[int, int],
    how: ReadOptions,
    kept: BodyCharge,
    *,
    max_records: int,
    wait_ms: int,
) -> list[PartitionRead]:
    """Return the partitions' records from these offsets on; wait until there are some. A client above its quota gets no
    partitions. `kept` counts the records; the caller must drop them when it ends. Raises HttpRefusal."""
    wanted = [
        FetchPartition(partition, fetch_offset=offset, partition_max_bytes=how.max_bytes)
        for partition, offset in offsets.items()
    ]
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=how.max_bytes,
        isolation_level=how.isolation,
        session_epoch=NO_SESSION,
        topics=[FetchTopic(call.name("topic_name"), partitions=wanted)],
    )
    answer = await call.client.hold(request)
    try:
        async with call.parts.decodes:
            largest = UNPACKED_FACTOR * call.parts.settings.max_answer_bytes
            budget = ReadBudget(max_records, _bytes_to_unpack(kept.memory, how), largest)
            parts = await asyncio.get_running_loop().run_in_executor(
                call.parts.decoding, _decoded, answer.response, offsets, budget
            )
            kept.keep(COPIES * budget.used)
        return parts
    except (InvalidBatch, InvalidRecords) as error:
        raise _unreadable(str(error)) from None
    finally:
        answer.release()


def _unreadable(why: str) -> HttpRefusal:
    return HttpRefusal(500, f"A record batch can't be read: {why}.", 50002)


def _bytes_to_unpack(memory: BodyMemory, how: ReadOptions) -> int:
    """Return how many bytes a read's records may decompress to: few if there is no memory for more."""
    wanted = UNPACKED_FACTOR * how.max_bytes
    return wanted if memory.has_room(COPIES * wanted, 0) else min(wanted, SMALL_BYTES // COPIES)


def _decoded(response: FetchResponse, offsets: Mapping[int, int], budget: ReadBudget) -> list[PartitionRead]:
    check(response.error_code)
    found, turns = [], ThreadTurns(DECODED_TOGETHER)
    for row in [row for part in response.responses for row in part.partitions]:
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            nothing = VisibleRecords([], offsets[row.partition_index])
            found.append(PartitionRead(row.partition_index, nothing, is_out_of_range=True))
            continue
        check(row.error_code)
        data = memoryview(row.records or b"")  # type: ignore[arg-type]
        aborted = row.aborted_transactions or ()
        part = visible(data, aborted, offsets[row.partition_index], budget, did=turns.did)
        found.append(PartitionRead(row.partition_index, part))
    return found


async def shown(call: HttpCall, how: ReadOptions, read: PartitionRead) -> AsyncIterator[RecordRead]:
    """Yield the records in their JSON form, some per turn of the loop."""
    async for record in Turns(SHOWN_TOGETHER).over(read.found.records):
        yield record_read(
            record,
            cluster_id=call.parts.cluster_id(),
            topic=call.name("topic_name"),
            partition=read.partition,
            key=how.key,
            value=how.value,
        )


async def get_records(call: HttpCall) -> web.StreamResponse:
    """Return records of one partition, and where the next ones begin."""
    how = ReadOptions.of(call)
    partition = call.number("partition_id")
    max_records = call.query_number("max_records", DEFAULT_RECORDS, MAX_RECORDS) or DEFAULT_RECORDS
    wait_ms = call.query_number("timeout_ms", 0, MAX_WAIT_MS)
    given = call.request.query.get("offset", "earliest")
    offsets = await offsets_at(call, [partition], given, how.isolation)
    with call.parts.bodies.body() as kept:
        parts = await read(call, offsets, how, kept, max_records=max_records, wait_ms=wait_ms)
        part = parts[0] if parts else PartitionRead(partition, VisibleRecords([], offsets[partition]))
        if part.is_out_of_range:
            raise refusal_of(ErrorCode.OFFSET_OUT_OF_RANGE)
        if part.found.unreadable:
            raise _unreadable(f"{part.found.unreadable}. Read on from offset {part.found.next_offset}")
        await (call.client.pause() if part.found.records else call.client.throttled())
        call.parts.telemetry.records.labels("read").inc(len(part.found.records))
        return await _written(call, msgspec.json.encode(await _record_list(call, how, part)))


async def _record_list(call: HttpCall, how: ReadOptions, part: PartitionRead) -> dict[str, object]:
    path = ("topics", call.name("topic_name"), "partitions", part.partition, "records")
    query: dict[str, object] = dict(call.request.query)
    return {
        "kind": "KafkaRecordList",
        "metadata": {
            "self": call.url(*path),
            "next": f"{call.url(*path)}?{urlencode(query | {'offset': part.found.next_offset})}",
        },
        "next_offset": part.found.next_offset,
        "data": [record async for record in shown(call, how, part)],
    }


async def _written(call: HttpCall, body: bytes) -> web.StreamResponse:
    """Write the response. It ends once the client has read nearly all of it: until then its records are counted."""
    stream = ResponseStream(call, JSON, **{"Content-Length": str(len(body))})
    for start in range(0, len(body), WRITTEN_TOGETHER_BYTES):
        await stream.write(body[start : start + WRITTEN_TOGETHER_BYTES])
    return await stream.end()
