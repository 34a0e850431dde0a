"""Writes records that share groups gave up to their dead-letter topics (KIP-1191).

The sequencer assigns a record to one agent for the time of a lock. The agent writes it, and reports to the sequencer
when it is stored; only then is the group done with it. If the agent dies or the write fails, another agent writes the
record: it may be there twice, but it is never missing. As in Kafka, an unusable topic blocks nothing: the records are
given up without it, which is logged and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog

from agent.catalog import KnownTopic
from agent.fetch.dead_letter_queue import UndeliverableRecords
from agent.fetch.fetch_sessions import PartitionKey, RequestedPartition
from agent.fetch.partition_fetch import PartitionFetch
from agent.handlers.fetch import fill
from agent.produce.own_records import is_written, size_of
from agent.services import Services
from sequencer.api.share_groups import AcquiredRecords, ShareRequest, ShareWork
from tailrace.batches.compression import MAX_LOOKED_INTO_BYTES
from tailrace.batches.record_batch import InvalidBatch, split
from tailrace.batches.records import LOOKED_AT_TOGETHER, InvalidRecords, NewRecord, Record, iterate_records
from tailrace.configs.broker_config import DEAD_LETTER_PREFIX
from tailrace.configs.group_config import DEAD_LETTER_COPY, DEAD_LETTER_TOPIC
from tailrace.configs.topic_config import DEAD_LETTERS_ENABLE, effective
from tailrace.kafka.messages.fetch import FetchRequest, PartitionData
from tailrace.tenants import local_name, stored_in_same_tenant
from tailrace.turns import ThreadTurns

log = structlog.get_logger("agent.share")

MAX_COPIED_BYTES = 4 << 20
"""Bytes of one read, and of contents copied at a time. A single record that was read whole may be larger."""
MAX_RECORDS = 500
"""The most dead letters written at a time."""
REJECTED = "Offset rejected by client."
DELIVERED_TOO_OFTEN = "Offset delivery count exceeded the threshold."
Content = tuple[bytes | None, bytes | None]
"""A record's key and value."""


async def write_dead_letters(services: Services, undeliverable: UndeliverableRecords) -> None:
    """Write records to the group's dead-letter topic, and report to the sequencer that the group is done with them."""
    snapshot = await services.catalog.refresh()
    name = services.groups.configs.text(undeliverable.group_id, DEAD_LETTER_TOPIC)
    if not name:
        return  # the group no longer has a dead-letter topic
    prefix = snapshot.broker_configs.get(DEAD_LETTER_PREFIX.name, DEAD_LETTER_PREFIX.default)
    target = snapshot.by_name.get(stored_in_same_tenant(undeliverable.group_id, name))
    problem = why_unusable(name, target, prefix)
    count = sum(record.last_offset - record.first_offset + 1 for record in undeliverable.records)
    if problem is not None or target is None:
        log.warning("a share group gives records up without its dead-letter topic",
                    group=undeliverable.group_id, topic=name, reason=problem, records=count)  # fmt: skip
        services.telemetry.dead_letters.labels("dropped").inc(count)
    elif await _is_stored(services, undeliverable, target):
        services.telemetry.dead_letters.labels("written").inc(count)
    else:
        services.telemetry.dead_letters.labels("failed").inc(count)
        return  # the sequencer assigns them again after the lock expires
    written = [(record.first_offset, record.last_offset + 1) for record in undeliverable.records]
    work = ShareWork(*undeliverable.topic_partition, written=written)
    await services.sequencer.share_records(
        ShareRequest(undeliverable.group_id, undeliverable.member_id, undeliverable.limits, [work])
    )


def why_unusable(name: str, topic: KnownTopic | None, prefix: str) -> str | None:
    """Return why dead letters can't be written to this topic, or None."""
    if not name.startswith(prefix):
        return f"its name does not begin with {prefix!r} ({DEAD_LETTER_PREFIX.name})"
    if topic is None:
        return "it does not exist"
    if topic.is_internal:
        return "it is internal"
    if effective(DEAD_LETTERS_ENABLE, topic.topic.configs) != "true":
        return f"its config {DEAD_LETTERS_ENABLE} is not true"
    if "compact" in topic.settings.cleanup_policy:
        return "it is compacted, and dead letters may have no key"
    return None


async def _is_stored(services: Services, undeliverable: UndeliverableRecords, target: KnownTopic) -> bool:
    """Write all records, in parts of bounded size. Return whether all of them are stored."""
    is_copying = services.groups.configs.text(undeliverable.group_id, DEAD_LETTER_COPY) == "true"
    for record in undeliverable.records:
        first = record.first_offset
        while first <= record.last_offset:
            end = min(record.last_offset + 1, first + MAX_RECORDS)
            contents: Mapping[int, Content] = {}
            if is_copying:
                contents, end = await _contents(services, undeliverable, first, end)
            letters = [
                _letter(undeliverable, record, offset, contents.get(offset, (None, None)))
                for offset in range(first, end)
            ]
            if not await _write(services, target, undeliverable.topic_partition.partition, letters):
                return False
            first = end
    return True


def _letter(
    undeliverable: UndeliverableRecords, records: AcquiredRecords, offset: int, content: Content
) -> NewRecord:
    """Return Kafka's dead letter: headers that identify the record, and its key and value if they are copied."""
    is_rejected = records.deliveries < undeliverable.limits.max_deliveries
    headers = {
        "topic": local_name(undeliverable.topic.topic.name),
        "partition": str(undeliverable.topic_partition.partition),
        "offset": str(offset),
        "group": local_name(undeliverable.group_id),
        "delivery.count": str(records.deliveries),
        "message": REJECTED if is_rejected else DELIVERED_TOO_OFTEN,
    }
    return NewRecord(*content, [(f"__dlq.errors.{name}", value.encode()) for name, value in headers.items()])


async def _contents(
    services: Services, undeliverable: UndeliverableRecords, first: int, end: int
) -> tuple[dict[int, Content], int]:
    """Return the contents of the records from `first` to before `end`, and where they end: possibly earlier, at the end
    of one read or of the bytes that may be copied. Unreadable records have no contents."""
    read = PartitionFetch(
        RequestedPartition(PartitionKey("", *undeliverable.topic_partition), first, MAX_COPIED_BYTES, -1, -1),
        undeliverable.topic,
        PartitionData(undeliverable.topic_partition.partition, aborted_transactions=None),
        read_committed=False,
        limit=end,
    )
    grant = await fill(services, FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=MAX_COPIED_BYTES), [read])
    if grant is None:
        return {}, end
    try:
        loop = asyncio.get_running_loop()
        end = min(end, max(read.read_end, first + 1))
        return await loop.run_in_executor(services.decoding, partial(copied, read.records, first, end))
    finally:
        grant.release()


def copied(data: bytes, first: int, end: int) -> tuple[dict[int, Content], int]:
    """Return the contents of the readable records from `first` to before `end`, and where they end: earlier if the next
    record would exceed MAX_COPIED_BYTES."""
    contents: dict[int, Content] = {}
    largest = max(len(data), MAX_COPIED_BYTES)
    size = 0
    for record in _readable(data):
        added = len(record.key or b"") + len(record.value or b"")
        if not first <= record.offset < end or added > largest:
            continue
        if contents and size + added > MAX_COPIED_BYTES:
            return contents, record.offset
        size += added
        contents[record.offset] = record.key, record.value
    return contents, end


def _readable(data: bytes) -> Iterator[Record]:
    """Yield the records of these batches. Skip what can't be read of a batch."""
    turns = ThreadTurns(LOOKED_AT_TOGETHER)
    with suppress(InvalidBatch):
        for header, batch in split(memoryview(data)):
            with suppress(InvalidRecords):
                for record in (
                    () if header.is_control else iterate_records(batch, max_bytes=MAX_LOOKED_INTO_BYTES)
                ):
                    turns.did()
                    yield record


async def _write(
    services: Services, target: KnownTopic, partition: int, letters: Sequence[NewRecord]
) -> bool:
    """Write the letters, and return whether they are stored. As in Kafka, the target is the source's partition number
    modulo the topic's partitions."""
    max_bytes = target.settings.max_message_bytes
    fitting = [_fitting(letter, max_bytes) for letter in letters]
    return await is_written(services, target, partition % target.topic.partitions, fitting)


def _fitting(letter: NewRecord, max_bytes: int) -> NewRecord:
    """Return the letter, without its key and value if it is too large for a batch."""
    return letter if size_of(letter) <= max_bytes else letter._replace(key=None, value=None)
