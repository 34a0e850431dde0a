"""The tail of a topic as server-sent events, one for each record, until the client leaves, loses its rights, or the
agent shuts down.

| event | data |
|---|---|
| `record` | the record, as in `GET .../records` |
| `gap` | a partition whose next records were deleted before they were read, or can't be read, and where reading resumes
|
| `end` | why the stream ends; a client that reconnects resumes after the last event |
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import web

from agent.gateway.body_memory import BodyCharge
from agent.gateway.call import HttpCall
from agent.gateway.errors import HttpRefusal, refusal_of
from agent.gateway.event_text import HEARTBEAT, MAX_PARTITIONS, beginning, event, parse_event_id
from agent.gateway.reading import PartitionRead, ReadOptions, offsets_at, read, shown
from agent.gateway.responses import WRITTEN_TOGETHER_BYTES, ClientDisconnected, ResponseStream
from agent.gateway.topics import topic_of
from tailrace.background_tasks import cancel_and_wait
from tailrace.kafka.error_codes import ErrorCode

MAX_RECORDS = 10_000
"""The most records of one read."""
READ_EVERY_S = 0.05
"""The least time between two reads of a stream. A record that arrives alone is sent at once; the records of a busy
topic are sent together, because a read costs an agent as much as tens of records."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""For proxies: don't cache, don't buffer."""


async def get_events(call: HttpCall) -> web.StreamResponse:
    """Send the records of some partitions as they arrive."""
    how = ReadOptions.of(call)
    topic = await topic_of(call)
    offsets = await _beginning(call, how, len(topic.partitions))
    with _counted(call):
        stream = ResponseStream(call, "text/event-stream", **_HEADERS)
        reason = "left"
        try:
            await stream.write(beginning(offsets))
            await _Tail(call, how, offsets, stream).run()
        except HttpRefusal as refusal:
            reason = "draining" if call.parts.draining.done() else f"{refusal.status}"
            await stream.write(_end(refusal))
        except ClientDisconnected as gone:
            reason = str(gone)
            stream.push(_end(HttpRefusal(408, "You read too slowly. Connect again; nothing is lost.")))
        finally:
            call.parts.telemetry.ended_streams.labels(reason).inc()
        return await stream.end()


def _end(refusal: HttpRefusal) -> bytes:
    return event("end", msgspec.json.encode(refusal.body))


@contextmanager
def _counted(call: HttpCall) -> Iterator[None]:
    """Count the stream while it is open. Raises HttpRefusal if there are too many."""
    parts = call.parts
    if parts.streams.count >= parts.settings.max_streams:
        raise HttpRefusal(
            429, "The agent has its maximum of event streams. Use another agent, or try later.", 42901
        )
    parts.streams.count += 1
    try:
        yield
    finally:
        parts.streams.count -= 1


async def _beginning(call: HttpCall, how: ReadOptions, count: int) -> dict[int, int]:
    """Return each partition's first offset: after `Last-Event-ID`, else as the query says. Raises HttpRefusal."""
    wanted = _partitions(call, count)
    given = call.request.headers.get("Last-Event-ID", "")
    known = parse_event_id(given) if given else {}
    if known is None or any(partition >= count for partition in known):
        raise HttpRefusal(400, "Last-Event-ID is not an event of this topic.")
    known = {partition: offset for partition, offset in known.items() if partition in wanted}
    new = [partition for partition in wanted if partition not in known]
    if not new:
        return known
    return known | await offsets_at(call, new, call.request.query.get("offset", "latest"), how.isolation)


def _partitions(call: HttpCall, count: int) -> list[int]:
    given = call.request.query.get("partitions")
    if given is None:
        wanted = list(range(count))
    else:
        parts = given.split(",", MAX_PARTITIONS + 1)
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise HttpRefusal(400, "partitions must be numbers with commas between them.")
        wanted = list(dict.fromkeys(map(int, parts)))
    if len(wanted) > MAX_PARTITIONS:
        raise HttpRefusal(
            400, f"A stream has at most {MAX_PARTITIONS} partitions; name some (?partitions=0,1,2)."
        )
    for partition in wanted:
        if partition >= count:
            raise HttpRefusal(404, f"The topic has no partition {partition}.", 40402)
    return wanted


class _Tail:
    """One stream. `_offsets`: each partition's next offset; partitions that returned records move to the end.
    `_unsent`: events, which are sent together."""

    def __init__(
        self, call: HttpCall, how: ReadOptions, offsets: dict[int, int], stream: ResponseStream
    ) -> None:
        self._call = call
        self._how = how
        self._offsets = offsets
        self._stream = stream
        self._unsent = bytearray()

    async def run(self) -> None:
        """Send events until something ends the stream. Raises HttpRefusal, ClientDisconnected."""
        clock = self._call.parts.clock
        while True:
            began = clock.monotonic()
            with self._call.parts.bodies.body() as kept:
                is_new = await self._call.shared(self._take(await self._next(kept)))
            if not is_new:
                await self._stream.write(HEARTBEAT)
            await clock.sleep(began + READ_EVERY_S - clock.monotonic())
            await self._call.client.throttled()
            await self._call.check_login()

    async def _take(self, parts: list[PartitionRead]) -> bool:
        """Send what was read. Return whether it has records."""
        is_new = False
        for part in parts:
            if part.is_out_of_range:
                await self._resume_at_first(part.partition)
            elif part.found.unreadable:
                await self._gap(part.partition, part.found.next_offset, "can't be read")
            elif part.found.records:
                is_new = True
                await self._send(part)
            else:
                self._offsets[part.partition] = part.found.next_offset
        await self._flush()
        return is_new

    async def _next(self, kept: BodyCharge) -> list[PartitionRead]:
        """Return what comes next; nothing if no record arrives for a while."""
        settings = self._call.parts.settings
        fetching = asyncio.ensure_future(
            read(
                self._call,
                self._offsets,
                self._how,
                kept,
                max_records=MAX_RECORDS,
                wait_ms=settings.heartbeat_ms,
            )
        )
        try:
            longest = 2 * settings.heartbeat_ms / 1000 + settings.stalled_ms / 1000
            if await self._call.parts.done(fetching, longest):
                return fetching.result()
        finally:
            await cancel_and_wait(fetching)
        if self._call.parts.draining.done():
            raise HttpRefusal(503, "The agent is shutting down. Connect again; nothing is lost.", 50302)
        raise refusal_of(ErrorCode.REQUEST_TIMED_OUT)

    async def _send(self, part: PartitionRead) -> None:
        self._call.parts.telemetry.records.labels("read").inc(len(part.found.records))
        self._offsets.pop(part.partition)
        async for record in shown(self._call, self._how, part):
            self._offsets[part.partition] = record.offset + 1
            self._unsent += event("record", msgspec.json.encode(record), self._offsets)
            if len(self._unsent) >= WRITTEN_TOGETHER_BYTES:
                await self._flush()
        self._offsets[part.partition] = part.found.next_offset

    async def _flush(self) -> None:
        if self._unsent:
            await self._stream.write(bytes(self._unsent))
            self._unsent.clear()

    async def _resume_at_first(self, partition: int) -> None:
        """Resume with the partition's first record, because the next ones were deleted. Raises HttpRefusal if there
        never were any at this offset."""
        first = (await offsets_at(self._call, [partition], "earliest", self._how.isolation))[partition]
        if first <= self._offsets[partition]:
            raise refusal_of(ErrorCode.OFFSET_OUT_OF_RANGE)
        await self._gap(partition, first, "have been deleted")

    async def _gap(self, partition: int, end: int, why: str) -> None:
        before = self._offsets[partition]
        self._offsets[partition] = end
        message = f"The records of partition {partition} from offset {before} to {end - 1} {why}."
        data = {"partition_id": partition, "from_offset": before, "to_offset": end, "message": message}
        self._unsent += event("gap", msgspec.json.encode(data), self._offsets)
