"""Produces records over HTTP: a stream of JSON objects in, a report for each out, in the same order.

Records that arrive together form one produce request, with a batch for each partition. The next records are read after
these are stored, so a connection keeps its order and holds no more than one request's records. A record that fails does
not affect the others: its report has the error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from agent.gateway.body_memory import BodyCharge
from agent.gateway.call import JSON, HttpCall
from agent.gateway.errors import HttpRefusal, refusal_of
from agent.gateway.json_objects import JsonObjects, NotAnObject, ObjectTooLarge
from agent.gateway.partitioning import STEP_BYTES, partition_of
from agent.gateway.record_json import (
    Produced,
    RecordToProduce,
    parse_record,
    size_of,
    time_text,
    timestamp_ms,
)
from agent.gateway.responses import ResponseStream
from agent.gateway.topics import topic_of
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tailrace.turns import Turns, in_turns

MAX_TOGETHER = 1_000
"""The most records of one produce request."""
LOOKED_AT_BYTES = 16 * 1024
"""Bytes of a body examined in one turn of the loop: some 5 ms if each byte is a brace."""
OBJECT_BYTES = 48
"""The cost of an object in addition to its bytes, until it is stored."""
TIMEOUT_MS = 30_000
ALL_REPLICAS = -1
STORED = 200


@dataclass(slots=True)
class _PendingRecord:
    """A record to store. `report`: its result, once known."""

    record: RecordToProduce
    stored: NewRecord
    partition: int
    timestamp: int
    report: object = None


class _RecordProducer:
    """The records of one HTTP request.

    The agent knows most topics' partitions without asking the sequencer. As with Kafka's producers, a topic that has
    just grown may have more.
    """

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._topic = call.name("topic_name")
        self._partitions = 0
        self._is_current = False
        self.count = 0

    async def find_topic(self) -> None:
        """Find the topic's partitions. Raises HttpRefusal."""
        known = self._call.client.known_partitions(self._topic)
        if known is None:
            await self._ask_partitions()
        else:
            self._partitions = known

    async def _ask_partitions(self) -> None:
        self._partitions, self._is_current = len((await topic_of(self._call)).partitions), True

    async def reports(self, objects: Sequence[bytes]) -> list[object]:
        """Store the records of these objects. Return a report for each, in order."""
        keyless = next(self._call.parts.groups)
        turns = Turns(STEP_BYTES)
        given = [await self._given(text, keyless, turns) for text in objects]
        by_partition: dict[int, list[_PendingRecord]] = defaultdict(list)
        for record in given:
            if isinstance(record, _PendingRecord):
                by_partition[record.partition].append(record)
        if by_partition:
            await self._store(list(by_partition.values()))
        self.count += len(given)
        return [record.report if isinstance(record, _PendingRecord) else record.body for record in given]

    async def _given(self, text: bytes, keyless: int, turns: Turns) -> _PendingRecord | HttpRefusal:
        try:
            record, stored = parse_record(text)
            timestamp = timestamp_ms(record, self._call.parts.clock.wall_ms())
            choosing = partition_of(record.partition_id, stored.key, self._partitions, keyless)
            partition = await in_turns(choosing, turns)
            if partition >= self._partitions and not self._is_current:
                await self._ask_partitions()
        except HttpRefusal as refusal:
            return refusal
        if not 0 <= partition < self._partitions:
            return HttpRefusal(404, f"The topic has no partition {partition}.", 40402)
        return _PendingRecord(record, stored, partition, timestamp)

    async def _store(self, batches: list[list[_PendingRecord]]) -> None:
        """Store a batch for each partition, and fill in the reports. Too large a batch is halved and retried."""
        data = [PartitionProduceData(batch[0].partition, memoryview(_batch(batch))) for batch in batches]
        topic = TopicProduceData(self._topic, partition_data=data)
        try:
            response: ProduceResponse = await self._call.ask(
                ProduceRequest(acks=ALL_REPLICAS, timeout_ms=TIMEOUT_MS, topic_data=[topic])
            )
        except HttpRefusal as refusal:
            for record in [given for batch in batches for given in batch]:
                record.report = refusal.body
            return
        rows = {row.index: row for part in response.responses for row in part.partition_responses}
        for batch in batches:
            row = rows[batch[0].partition]
            if row.error_code == ErrorCode.MESSAGE_TOO_LARGE and len(batch) > 1:
                middle = len(batch) // 2
                await self._store([batch[:middle]])
                await self._store([batch[middle:]])
            else:
                self._fill_in(batch, row)

    def _fill_in(self, batch: list[_PendingRecord], row: PartitionProduceResponse) -> None:
        refusal = refusal_of(row.error_code, row.error_message) if row.error_code else None
        for number, record in enumerate(batch):
            record.report = (
                Produced(
                    error_code=STORED,
                    cluster_id=self._call.parts.cluster_id(),
                    topic_name=self._topic,
                    partition_id=row.index,
                    offset=row.base_offset + number if row.base_offset >= 0 else -1,
                    timestamp=time_text(
                        record.timestamp if row.log_append_time_ms < 0 else row.log_append_time_ms
                    ),
                    key=size_of(record.record.key, record.stored.key),
                    value=size_of(record.record.value, record.stored.value),
                )
                if refusal is None
                else refusal.body
            )


def _batch(given: Sequence[_PendingRecord]) -> bytes:
    return encode_batch([sent.stored for sent in given], timestamps=[sent.timestamp for sent in given])


async def produce(call: HttpCall) -> web.StreamResponse:
    """Store the records of the body as they arrive, and report each."""
    if call.request.headers.get("Content-Encoding", "identity") != "identity":
        raise HttpRefusal(415, "The body must not be compressed.")
    call.client.check_quota(ApiKey.PRODUCE)
    producing = _RecordProducer(call)
    await producing.find_topic()
    stream = ResponseStream(call, JSON)
    try:
        await _store_body(call, producing, stream)
    except (HttpRefusal, NotAnObject, ObjectTooLarge) as error:
        status = 413 if isinstance(error, ObjectTooLarge) else 400
        refusal = error if isinstance(error, HttpRefusal) else HttpRefusal(status, str(error))
        if not stream.has_begun:
            raise refusal from None
        await stream.write(msgspec.json.encode(refusal.body) + b"\n")
        if not call.request.content.at_eof():
            stream.close_after()
    return await stream.end()


async def _store_body(call: HttpCall, producing: _RecordProducer, stream: ResponseStream) -> None:
    """Read the body and store its records. Raises HttpRefusal, NotAnObject, ObjectTooLarge."""
    objects = JsonObjects(call.parts.settings.max_record_bytes)
    with call.parts.bodies.body() as kept:
        storing = _BodyWriter(call, producing, stream, objects=objects, kept=kept)
        while chunk := await call.read():
            await call.shared(storing.store(chunk))
            kept.keep(objects.held_bytes)
        objects.finish()
        if not producing.count:
            raise HttpRefusal(400, "The body has no record.")


@dataclass(frozen=True, slots=True)
class _BodyWriter:
    """Stores a body's records and sends their reports."""

    call: HttpCall
    producing: _RecordProducer
    stream: ResponseStream
    objects: JsonObjects
    kept: BodyCharge

    async def store(self, chunk: bytes) -> None:
        """Store the objects that end in this chunk, as many together as allowed. Raises as `_store_body`."""
        found: list[bytes] = []
        turns = Turns(LOOKED_AT_BYTES)
        for at in range(0, len(chunk), LOOKED_AT_BYTES):
            part = chunk[at : at + LOOKED_AT_BYTES]
            found += self.objects.feed(part)
            self.kept.keep(self.objects.held_bytes + sum(map(len, found)) + OBJECT_BYTES * len(found))
            while len(found) >= MAX_TOGETHER:
                await self._store_together(found[:MAX_TOGETHER])
                del found[:MAX_TOGETHER]
            await turns.did(len(part))
        if found:
            await self._store_together(found)

    async def _store_together(self, found: Sequence[bytes]) -> None:
        most, counted = self.call.parts.settings.max_records_per_request, self.call.parts.telemetry.records
        if self.producing.count >= most:
            raise HttpRefusal(413, f"A request may have {most} records.")
        reports = await self.producing.reports(found)
        stored = sum(isinstance(report, Produced) for report in reports)
        counted.labels("produced").inc(stored)
        counted.labels("refused").inc(len(reports) - stored)
        await self.stream.write(b"".join(msgspec.json.encode(report) + b"\n" for report in reports))
        await self.call.client.throttled()
        await self.call.check_login()
