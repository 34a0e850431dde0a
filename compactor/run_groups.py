"""Reads runs of Parquet objects one row group at a time, and rebuilds their batches without some rows."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from compactor.lru_cache import LruCache
from compactor.rewrite import RewriteFailed
from sequencer.api.reads import Run
from tailrace.batches.record_batch import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    TimestampType,
    assemble_like,
    read_header,
)
from tailrace.object_store.api import ObjectStore
from tailrace.parquet_object.encode import encode_records, rebuild
from tailrace.parquet_object.read import ParquetIndex, PlainBatch, RowGroupRange, read_index, row_group_table
from tailrace.parquet_object.schema import REPLAY_COLUMNS

Array = Any

KEPT_FOOTER_BYTES = 4 << 20
"""The most stored bytes of footers to keep. In memory they take about ten times as much."""
KEPT_GROUP_BYTES = 32 << 20


@dataclass(frozen=True)
class RunGroup:
    """The rows of one run in one row group. `batch_range`: its batches in the object. `table`: only these rows."""

    parquet: ParquetIndex
    batch_range: range
    table: Any

    @cached_property
    def headers(self) -> list[BatchHeader]:
        return self.parquet.batches[self.batch_range.start : self.batch_range.stop]

    @cached_property
    def counts(self) -> Array:
        """The number of records in each batch."""
        return np.array(
            self.parquet.header.record_counts[self.batch_range.start : self.batch_range.stop], np.int64
        )

    @cached_property
    def batches(self) -> Array:
        """The batch of each row, counted from the first of `batch_range`."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def column(self, name: str) -> Any:
        """Return a column as one contiguous array."""
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def without(self, dropped: Array, horizons_ms: Mapping[int, int]) -> list[PlainBatch]:
        """Return the batches that have rows left.

        Args:
            dropped: one boolean per row.
            horizons_ms: new delete horizons, by batch.

        Raises InvalidParquetObject if an uncompressed batch does not match its CRC.
        """
        stays = ~dropped
        table = self.table.filter(pa.array(stays))
        left = np.bincount(self.batches[stays], minlength=len(self.counts))
        newest = np.full(len(self.counts), -1, np.int64)
        np.maximum.at(newest, self.batches[stays], numbers(table.column("timestamp").combine_chunks()))
        kept = np.flatnonzero(left).tolist()
        changed = {
            number: _changed(self.headers[number], int(newest[number]), horizons_ms.get(number))
            for number in kept
            if left[number] != self.counts[number] or number in horizons_ms
        }
        headers = [changed.get(number, self.headers[number]) for number in kept]
        records = encode_records(table, headers, left[kept].tolist())
        return [
            _rewritten(changed[number], encoded, int(left[number]))
            if number in changed
            else self._unchanged(self.batch_range.start + number, encoded)
            for number, encoded in zip(kept, records, strict=True)
        ]

    def _unchanged(self, index: int, records: memoryview) -> PlainBatch:
        head = self.parquet.header.batch_headers[index * HEADER_BYTES : (index + 1) * HEADER_BYTES]
        batch = PlainBatch(self.parquet.batches[index], head, records, bool(self.parquet.header.exact[index]))
        if batch.header.compression is Compression.NONE and batch.is_exact:
            rebuild(batch.header, head, records, batch.header.record_count, is_exact=True)
        return batch


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Batches that wait to be written, with compressed records. So they need less memory than the task's input."""

    batches: list[tuple[BatchHeader, bytes, bool]]
    sizes: list[int]
    records: Any

    @classmethod
    def of(cls, batches: Sequence[PlainBatch]) -> PackedGroup:
        records = pa.compress(b"".join(batch.records for batch in batches), codec="lz4")
        heads = [(batch.header, batch.header_bytes, batch.is_exact) for batch in batches]
        return cls(heads, [len(batch.records) for batch in batches], records)

    def __iter__(self) -> Iterator[PlainBatch]:
        records = memoryview(pa.decompress(self.records, decompressed_size=sum(self.sizes), codec="lz4"))
        ends = itertools.accumulate(self.sizes)
        for (header, header_bytes, is_exact), size, end in zip(self.batches, self.sizes, ends, strict=True):
            yield PlainBatch(header, header_bytes, records[end - size : end], is_exact)


@dataclass(frozen=True, slots=True)
class PackedBatches:
    """Groups of batches in order. Can be iterated any number of times."""

    groups: Sequence[PackedGroup]

    def __iter__(self) -> Iterator[PlainBatch]:
        return itertools.chain.from_iterable(self.groups)


class ParquetRuns:
    """Reads runs of Parquet objects, one partition after another.

    It keeps footers, and row groups that several partitions share, so that each is read only once if memory allows.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._indexes = LruCache[str, ParquetIndex](KEPT_FOOTER_BYTES)
        self._shared = LruCache[tuple[str, int], Any](KEPT_GROUP_BYTES)
        self.read_bytes = 0

    async def groups(self, run: Run, columns: Sequence[str]) -> AsyncIterator[RunGroup]:
        """Yield the run's rows, one row group at a time. Raises RewriteFailed, StoreError, InvalidParquetObject."""
        index = await self._index(run)
        held = index.run_of(run.topic_id, run.partition)
        if held is None or (held.base_offset, held.end_offset) != (run.base_offset, run.end_offset):
            raise RewriteFailed(
                f"{run.key} has no run of partition {run.partition} from {run.base_offset} on"
            )
        for row_range in index.row_groups_for(run.topic_id, run.partition, run.base_offset):
            table = self._shared.get((run.key, row_range.number))
            if table is None and index.is_shared(row_range.number):
                table = await self._table(run.key, index, row_range.number, REPLAY_COLUMNS)
                self._shared.keep((run.key, row_range.number), table, table.nbytes)
            elif table is None:
                table = await self._table(run.key, index, row_range.number, columns)
            yield _rows_of(index, row_range, table, run)

    async def _table(self, key: str, index: ParquetIndex, number: int, columns: Sequence[str]) -> Any:
        start, length = index.bytes_of(number, columns)
        return row_group_table(index, number, await self._range(key, start, length), columns)

    async def _index(self, run: Run) -> ParquetIndex:
        held = self._indexes.get(run.key)
        if held is None:
            tail = await self._range(run.key, run.index_start, run.object_size - run.index_start)
            held = read_index(tail, run.object_size, crc=run.index_crc)
            self._indexes.keep(run.key, held, held.footer_bytes)
        return held

    async def _range(self, key: str, start: int, length: int) -> bytes | bytearray:
        data = await self._store.get_range(key, start, length)
        if len(data) != length:
            raise RewriteFailed(f"{key}: {len(data)} bytes from {start}; {length} expected")
        self.read_bytes += length
        return data


def numbers(array: Any) -> Array:
    """Return a column of integers or times as 64-bit integers."""
    return array.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _rows_of(index: ParquetIndex, row_range: RowGroupRange, table: Any, run: Run) -> RunGroup:
    held = index.run_of(run.topic_id, run.partition)
    assert held is not None, "looked up by the caller"
    group = index.header.row_groups[row_range.number]
    first = max(group.first_batch, held.first_batch)
    end = min(group.first_batch + group.batch_count, held.first_batch + held.batch_count)
    counts = index.header.record_counts
    skipped = sum(counts[group.first_batch : first])
    rows = sum(counts[first:end])
    return RunGroup(index, range(first, end), table.slice(skipped, rows))


def _changed(header: BatchHeader, newest_ms: int, horizon_ms: int | None) -> BatchHeader:
    """Return the header of a batch with fewer records, or with a delete horizon in place of its base timestamp.

    Its max timestamp never rises: a producer may have sent a lower one than its records have.
    """
    if header.timestamp_type is TimestampType.CREATE_TIME:
        header = msgspec.structs.replace(header, max_timestamp=min(header.max_timestamp, newest_ms))
    if horizon_ms is not None:
        header = msgspec.structs.replace(
            header, attributes=header.attributes | DELETE_HORIZON_FLAG, base_timestamp=horizon_ms
        )
    return header


def _rewritten(header: BatchHeader, records: memoryview, record_count: int) -> PlainBatch:
    """Return a changed batch. Its length and CRC are those of the uncompressed records; readers compress them again."""
    data = assemble_like(header, records, record_count)
    head = data[:HEADER_BYTES]
    return PlainBatch(read_header(head), head, records, True)
