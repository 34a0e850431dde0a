"""The records of a fetched partition that a reader may see, as Java's consumer finds them (CompletedFetch). Pure.

A producer counts as aborted from its first offset in the response's list until its abort marker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tailrace.batches.compression import MAX_LOOKED_INTO_BYTES
from tailrace.batches.record_batch import MarkerKind, split
from tailrace.batches.records import InvalidRecords, Record, decode_records, iterate_records
from tailrace.buffers import Buffer
from tailrace.kafka.messages.fetch import AbortedTransaction

RECORD_BYTES = 256
"""The cost of a record in addition to its bytes, and of each header."""


@dataclass(slots=True)
class ReadBudget:
    """How many records, and bytes of records, one read still accepts, for all its partitions together. The first record
    always fits, or a reader would never get past it; but one of more than `largest` bytes counts as unreadable.
    `used`: bytes of the accepted records."""

    records: int
    bytes: int
    largest: int = MAX_LOOKED_INTO_BYTES
    used: int = 0
    is_full: bool = False

    def take(self, record: Record) -> bool:
        """Accept the record if it fits. Return whether it does; after the first that does not, none does."""
        size = size_in_memory(record)
        if not self.records or (self.used and self.used + size > self.bytes):
            self.is_full = True
        if self.is_full:
            return False
        self.records -= 1
        self.used += size
        return True


def size_in_memory(record: Record) -> int:
    """Estimate the memory of a decoded record."""
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    names = sum(len(name) for name, _ in record.headers)
    return sum(len(part or b"") for part in parts) + names + RECORD_BYTES * (1 + len(record.headers))


@dataclass(frozen=True, slots=True)
class VisibleRecords:
    """`next_offset`: where the next fetch begins. `unreadable`: why nothing before it can be read; `records` is empty
    then."""

    records: list[Record]
    next_offset: int
    unreadable: str = ""


def _nothing() -> None:
    pass


def visible(
    data: Buffer,
    aborted: Sequence[AbortedTransaction],
    offset: int,
    budget: ReadBudget,
    *,
    did: Callable[[], None] = _nothing,
) -> VisibleRecords:
    """Return the records from `offset` on that fit, up to a batch that can't be read. `did` is called for each decoded
    record. Raises InvalidBatch, InvalidRecords."""
    waiting = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
    now_aborted: set[int] = set()
    records: list[Record] = []
    for header, batch in split(memoryview(data)):
        while waiting and waiting[-1].first_offset < header.end_offset:
            now_aborted.add(waiting.pop().producer_id)
        if header.is_control:
            if _is_abort(batch):
                now_aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in now_aborted) and header.record_count:
            if budget.is_full:
                return VisibleRecords(records, max(offset, header.base_offset))
            try:
                for record in iterate_records(batch, max_bytes=MAX_LOOKED_INTO_BYTES):
                    did()
                    if record.offset < offset:
                        continue
                    if size_in_memory(record) > budget.largest:
                        return _before_large(record, records)
                    if not budget.take(record):
                        return VisibleRecords(records, record.offset)
                    records.append(record)
            except InvalidRecords as error:
                if not records:
                    return VisibleRecords([], max(offset, header.end_offset), str(error))
                return VisibleRecords(records, max(offset, header.base_offset, records[-1].offset + 1))
        offset = max(offset, header.end_offset)
    return VisibleRecords(records, offset)


def _before_large(large: Record, records: list[Record]) -> VisibleRecords:
    """Return the records before one that is too large; if there are none, the next read begins after it."""
    if records:
        return VisibleRecords(records, large.offset)
    why = f"a record of {size_in_memory(large)} bytes, for which gateway.max_answer_bytes is too small"
    return VisibleRecords([], large.offset + 1, why)


def _is_abort(control: Buffer) -> bool:
    key = decode_records(control)[0].key
    return key is not None and int.from_bytes(key[2:4], "big") == MarkerKind.ABORT
