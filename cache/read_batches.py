"""The request and the result of a read of one partition: batches as a gather list, and the offset where they end."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tailrace.batches.record_batch import framed
from tailrace.buffers import Buffer


class BatchColumns(Protocol):
    """Batches of a partition in offset order; each column has one entry per batch. `sizes` and `records` hold the
    totals of all batches before it, and one extra entry with the total."""

    base_offsets: array[int]
    end_offsets: array[int]
    sizes: array[int]
    records: array[int]


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which batches to read from a partition's runs, beginning with the one that contains `offset`.

    `max_bytes`: limit of the answer; batches are never cut. `leader_epoch`: the log's epoch, written into each batch.
    `minimum_one`: return the first batch even if it is longer than `max_bytes`. `end_limit`: return no batch that
    begins at or after this offset: the high watermark, or the last stable offset for read_committed.
    """

    offset: int
    max_bytes: int
    leader_epoch: int
    minimum_one: bool = True
    end_limit: int | None = None

    def has_room(self, out: ReadBatches, size: int) -> bool:
        """Whether a batch of `size` bytes may follow the batches in `out`."""
        return out.bytes + size <= self.max_bytes or (self.minimum_one and not out.batch_count)


@dataclass(slots=True)
class ReadBatches:
    """Batches of one partition in offset order; `parts` concatenated are `bytes` bytes.

    `first_offset`: where the first batch begins, perhaps before the requested offset; -1 if there is none.
    `end_offset`: where the next read continues, after any hole that compaction left; the requested offset if nothing
    was read.
    `is_complete`: the answer contains all that the runs hold below the limit.
    `record_count`: records that producers wrote; markers count as batches, not as records.
    """

    parts: list[Buffer] = field(default_factory=list)
    bytes: int = 0
    first_offset: int = -1
    end_offset: int = 0
    batch_count: int = 0
    record_count: int = 0
    is_complete: bool = True
    client_offset: int = 0
    """The offset that a client will request next: the end of the last batch. It is before `end_offset` if a hole
    follows."""
    made: int = field(default=0, compare=False)
    """Batches of old runs that were made ready in their chunk for this read; this is their first read."""

    def add(
        self, batch: memoryview, *, base_offset: int, end_offset: int, record_count: int, leader_epoch: int
    ) -> None:
        """Append one batch, and patch its offset and epoch."""
        if self.batch_count == 0:
            self.first_offset = base_offset
        self.parts.extend(framed(batch, base_offset, leader_epoch))
        self.bytes += len(batch)
        self.batch_count += 1
        self.record_count += record_count
        self.end_offset = self.client_offset = end_offset

    def add_whole(self, part: Buffer, base_offset: int, end_offset: int, batch_count: int) -> None:
        """Append batches that are already patched, with the records [base_offset, end_offset)."""
        if self.batch_count == 0:
            self.first_offset = base_offset
        self.parts.append(part)
        self.bytes += len(part)
        self.batch_count += batch_count
        self.record_count += end_offset - base_offset
        self.end_offset = self.client_offset = end_offset

    def add_framed(self, parts: Iterable[Buffer], batches: BatchColumns, first: int, upto: int) -> None:
        """Append the batches [first, upto), which are already patched."""
        if self.batch_count == 0:
            self.first_offset = batches.base_offsets[first]
        self.parts.extend(parts)
        self.bytes += batches.sizes[upto] - batches.sizes[first]
        self.batch_count += upto - first
        self.record_count += batches.records[upto] - batches.records[first]
        self.end_offset = self.client_offset = batches.end_offsets[upto - 1]
