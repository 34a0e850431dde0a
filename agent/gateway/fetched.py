"""The records of a fetched partition that a reader may see, as Java's consumer finds them (CompletedFetch). Pure.

A producer counts as aborted from its first offset in the response's list until its abort marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from tailrace.buffers import Buffer
from tailrace.kafka.messages.fetch import AbortedTransaction
from tailrace.record_batch import MarkerKind, split
from tailrace.records import Record, decode_records

MAX_UNPACKED_BYTES = 64 << 20
"""What one batch may unpack to; a larger one can't be read over HTTP."""


@dataclass(frozen=True, slots=True)
class Visible:
    """`next_offset`: where the next fetch begins."""

    records: list[Record]
    next_offset: int


def visible(data: Buffer, aborted: Sequence[AbortedTransaction], offset: int, max_records: int) -> Visible:
    """The records from `offset` on, as many as are wanted. Raises InvalidBatch, InvalidRecords."""
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
            decoded = decode_records(batch, max_bytes=MAX_UNPACKED_BYTES)
            records += [record for record in decoded if record.offset >= offset]
            if len(records) > max_records:
                return Visible(records[:max_records], records[max_records].offset)
        offset = max(offset, header.end_offset)
    return Visible(records, offset)


def _is_abort(control: Buffer) -> bool:
    key = decode_records(control)[0].key
    return key is not None and int.from_bytes(key[2:4], "big") == MarkerKind.ABORT
