"""Finds a record by its time among the records of one batch. Runs in a thread of the pool: a small batch may unpack to
millions of records, so none are kept, and the event loop gets the interpreter between them.

A batch that unpacks to more than MAX_LOOKED_INTO_BYTES counts as one record, with its first offset and its largest
timestamp: a consumer that begins there misses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.batches.compression import MAX_LOOKED_INTO_BYTES, UnpackedTooLarge
from tailrace.batches.record_batch import read_header
from tailrace.batches.records import LOOKED_AT_TOGETHER, InvalidRecords, iterate_records
from tailrace.buffers import Buffer
from tailrace.turns import ThreadTurns


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The offset and timestamp of a record that was found by time."""

    offset: int
    timestamp: int


def first_reaching(
    batch: Buffer, timestamp: int, from_offset: int, end_offset: int
) -> OffsetAndTimestamp | None:
    """Return the first record at or after both `from_offset` and `timestamp`, and before `end_offset`. Raises
    InvalidBatch, InvalidRecords; errors after that record go unnoticed."""
    for found in _records(batch):
        if found.timestamp >= timestamp and from_offset <= found.offset < end_offset:
            return found
    return None


def latest(batch: Buffer, from_offset: int) -> OffsetAndTimestamp | None:
    """Return the first record with the largest timestamp among those from `from_offset` on. Raises InvalidBatch,
    InvalidRecords."""
    reached = (found for found in _records(batch) if found.offset >= from_offset)
    return max(reached, key=lambda found: found.timestamp, default=None)


def _records(batch: Buffer) -> Iterator[OffsetAndTimestamp]:
    turns = ThreadTurns(LOOKED_AT_TOGETHER)
    try:
        for record in iterate_records(batch, max_bytes=MAX_LOOKED_INTO_BYTES):
            turns.did()
            yield OffsetAndTimestamp(record.offset, record.timestamp)
    except InvalidRecords as error:
        if not isinstance(error.__cause__, UnpackedTooLarge):
            raise
        header = read_header(batch)
        yield OffsetAndTimestamp(header.base_offset, header.max_timestamp)
