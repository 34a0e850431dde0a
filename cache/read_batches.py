"""What a read of one partition asks for, and what it gives: batches as a gather list, and where it ends."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tailrace.buffers import Buffer
from tailrace.record_batch import framed


class BatchColumns(Protocol):
    """Batches of a partition in order, with an entry in each column for each; `sizes` and `records`: of all batches
    before it, and one more entry for those of all."""

    base_offsets: array[int]
    end_offsets: array[int]
    sizes: array[int]
    records: array[int]


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which batches of a partition's runs are read: from the one that holds `offset` on.

    `max_bytes`: no more whole batches than this holds. `leader_epoch`: the log's own, written into each batch.
    `minimum_one`: the first batch is given even where it is longer than `max_bytes`. `end_limit`: nothing that begins
    at or after this offset is given: the high watermark, or the last stable offset for read_committed.
    """

    offset: int
    max_bytes: int
    leader_epoch: int
    minimum_one: bool = True
    end_limit: int | None = None

    def has_room(self, out: ReadBatches, size: int) -> bool:
        """Whether a batch of so many bytes may follow what was read."""
        return out.bytes + size <= self.max_bytes or (self.minimum_one and not out.batch_count)


@dataclass(slots=True)
class ReadBatches:
    """Batches of one partition, in order: `parts` one after the other are `bytes` bytes.

    `first_offset`: where the first batch begins, perhaps before the requested offset; -1 for none.
    `end_offset`: the offset to go on from, past compaction's holes; the requested one if nothing was read.
    `is_complete`: all that the runs hold (below the limit) is in it.
    `record_count`: what producers wrote; markers are batches, not records.
    """

    parts: list[Buffer] = field(default_factory=list)
    bytes: int = 0
    first_offset: int = -1
    end_offset: int = 0
    batch_count: int = 0
    record_count: int = 0
    is_complete: bool = True
    client_offset: int = 0
    """Where a client will ask next: the end of the last batch. Behind `end_offset` where a hole follows."""
    made: int = field(default=0, compare=False)
    """Batches of old runs that were made ready for this read: nobody has read them before."""

    def add(
        self, batch: memoryview, *, base_offset: int, end_offset: int, record_count: int, leader_epoch: int
    ) -> None:
        """Append one batch, patched."""
        if self.batch_count == 0:
            self.first_offset = base_offset
        self.parts.extend(framed(batch, base_offset, leader_epoch))
        self.bytes += len(batch)
        self.batch_count += 1
        self.record_count += record_count
        self.end_offset = self.client_offset = end_offset

    def add_whole(self, part: Buffer, base_offset: int, end_offset: int, batch_count: int) -> None:
        """Append batches, patched already, of the records [base_offset, end_offset)."""
        if self.batch_count == 0:
            self.first_offset = base_offset
        self.parts.append(part)
        self.bytes += len(part)
        self.batch_count += batch_count
        self.record_count += end_offset - base_offset
        self.end_offset = self.client_offset = end_offset

    def add_framed(self, parts: Iterable[Buffer], batches: BatchColumns, first: int, upto: int) -> None:
        """Append the batches [first, upto), which are patched already."""
        if self.batch_count == 0:
            self.first_offset = batches.base_offsets[first]
        self.parts.extend(parts)
        self.bytes += batches.sizes[upto] - batches.sizes[first]
        self.batch_count += upto - first
        self.record_count += batches.records[upto] - batches.records[first]
        self.end_offset = self.client_offset = batches.end_offsets[upto - 1]
