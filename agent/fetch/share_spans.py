"""What a share request acknowledges and acquires of a partition, as offsets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.fetch.partition_fetch import PartitionFetch
from sequencer.api.share_groups import Acknowledged, AcknowledgeType, AcquireSpan
from tailrace.batches.record_batch import BatchHeader, walk
from tailrace.kafka.messages.share_fetch import AcknowledgementBatch

MAX_TYPES = 10_000
"""The most acknowledge types of one partition in a request: more than can be in flight."""


def acknowledged_of(batches: Sequence[AcknowledgementBatch], *, may_renew: bool) -> list[Acknowledged]:
    """Return what a request acknowledges of a partition. Raises ValueError for what Kafka refuses."""
    end = -1
    acknowledged: list[Acknowledged] = []
    if sum(len(batch.acknowledge_types) for batch in batches) > MAX_TYPES:
        raise ValueError(f"more than {MAX_TYPES} acknowledge types for one partition")
    for batch in batches:
        length = batch.last_offset - batch.first_offset + 1
        types = batch.acknowledge_types
        if batch.first_offset <= end or length < 1 or len(types) not in (1, length):
            raise ValueError(
                f"{len(types)} types for offsets {batch.first_offset} to {batch.last_offset}, after {end}"
            )
        last_type = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
        if not all(AcknowledgeType.GAP <= kind <= last_type for kind in types):
            raise ValueError(f"acknowledge types {sorted(set(types))}; 0 to {last_type} are known here")
        end = batch.last_offset
        acknowledged.append(
            Acknowledged(batch.first_offset, batch.last_offset, [AcknowledgeType(kind) for kind in types])
        )
    return acknowledged


def span_of(read: PartitionFetch, max_records: int, *, is_strict: bool) -> AcquireSpan:
    """Return what to acquire of a read: whole batches until there are enough, or exactly `max_records` if the limit is
    strict. Markers, aborted records and compaction's holes are skipped."""
    first = read.requested.fetch_offset
    skipped: list[tuple[int, int]] = []
    at = first
    for header in walk(memoryview(read.records)):
        if at - first >= max_records:
            break
        _skip(skipped, at, header.base_offset)
        if header.is_control or header.record_count == 0 or _is_aborted(read, header):
            _skip(skipped, max(at, header.base_offset), header.end_offset)
        at = max(at, header.end_offset)
    else:
        _skip(skipped, at, read.read_end)
        at = max(at, read.read_end)
    return AcquireSpan(first, at, min(max_records, at - first) if is_strict else at - first, skipped)


def _skip(skipped: list[tuple[int, int]], first: int, end: int) -> None:
    if first >= end:
        return
    if skipped and skipped[-1][1] == first:
        first = skipped.pop()[0]
    skipped.append((first, end))


def _is_aborted(read: PartitionFetch, header: BatchHeader) -> bool:
    if not read.read_committed or not header.is_transactional or read.found is None:
        return False
    return any(
        aborted.producer_id == header.producer_id
        and aborted.first_offset <= header.base_offset <= aborted.last_offset
        for aborted in read.found.aborted
    )
