"""Read record batches from Parquet objects: index and row groups come through the chunk cache, a pool decodes them.

An index (the decoded footer) never changes, so indexes are kept within a byte budget. A row group is decoded once for
the many fetches of a replay and for all partitions in it. A partition's batches are kept ready to send. The pool
imports pyarrow and numba when the first Parquet run is read, so an agent that never reads one starts and runs without
them.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cache.chunk import ChunkBytes, ChunkRef, ObjectCorrupt, chunks_of
from cache.chunk_cache import ChunkCache
from cache.eviction import S3Fifo
from cache.observer import CacheObserver
from cache.read_ahead import ReadAhead
from cache.record_times import OffsetAndTimestamp, first_reaching
from cache.single_flight import SingleFlight
from sequencer.api.reads import Run
from tailrace.batches.record_batch import InvalidBatch, patch_base_offset_and_epoch
from tailrace.batches.records import InvalidRecords
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.parquet_object.header import InvalidParquetObject

if TYPE_CHECKING:
    from tailrace.parquet_object.read import ParquetIndex, RowGroupRange, StoredBatch

T = TypeVar("T")
_Records = list[memoryview]
"""The records of each batch of a row group, as returned by `row_group_records`."""

BATCH_IN_MEMORY_BYTES = 400
"""Estimated memory of an index per batch, in addition to its footer: a header struct with its integers."""


class RebuiltBatches:
    """The batches of one partition in one row group, ready to send as one buffer, numbered in offset order.

    `sizes`, `records`: total bytes and records of the batches before this one; one extra entry holds the total.
    """

    __slots__ = ("base_offsets", "data", "end_offsets", "max_timestamps", "records", "sizes")

    def __init__(self, stored: Sequence[StoredBatch], leader_epoch: int) -> None:
        self.base_offsets = array("q", [batch.base_offset for batch in stored])
        self.end_offsets = array("q", [batch.end_offset for batch in stored])
        self.max_timestamps = array("q", [batch.max_timestamp for batch in stored])
        self.sizes = array("q", accumulate((batch.length for batch in stored), initial=0))
        self.records = array("q", accumulate((batch.record_count for batch in stored), initial=0))
        data = memoryview(bytearray().join(chain.from_iterable(batch.parts for batch in stored)))
        for batch, (start, end) in zip(stored, pairwise(self.sizes), strict=True):
            patch_base_offset_and_epoch(data[start:end], batch.base_offset, leader_epoch)
        self.data = data.toreadonly()

    @property
    def memory_bytes(self) -> int:
        return 600 + len(self.data) + 40 * len(self.base_offsets)

    def view(self, first: int, upto: int) -> memoryview:
        """Return the bytes of the batches [first, upto)."""
        return self.data[self.sizes[first] : self.sizes[upto]]

    def first_at(self, offset: int) -> int:
        """Return the number of the first batch that begins at or after `offset`."""
        return bisect_left(self.base_offsets, offset)

    def select(self, offset: int, start: int, end: int) -> tuple[int, int]:
        """Return as [first, upto) the batches that begin in [start, end) and end after `offset`."""
        first = max(bisect_right(self.end_offsets, offset), self.first_at(start))
        return first, max(first, self.first_at(end))

    def fitting(self, first: int, upto: int, max_bytes: int) -> int:
        """Return the end of the batches from `first` on, at most `upto`, that fit into `max_bytes`."""
        return bisect_right(self.sizes, self.sizes[first] + max_bytes, first, upto + 1) - 1


class _GroupId(NamedTuple):
    key: str
    number: int


class _PartId(NamedTuple):
    """One partition's batches of a row group, ready to send under an epoch."""

    group: _GroupId
    partition: TopicPartition
    leader_epoch: int


class ParquetReader:
    """Reads Parquet runs. `executor` is a bounded pool; nothing is decoded on the event loop."""

    def __init__(
        self, cache: ChunkCache, executor: Executor, observer: CacheObserver, ahead: ReadAhead
    ) -> None:
        self._cache = cache
        self._ahead = ahead
        self._executor = executor
        self._observer = observer
        self._indexes: S3Fifo[str, ParquetIndex] = S3Fifo(cache.settings.index_bytes)
        self._decoded: S3Fifo[_GroupId | _PartId, _Records | RebuiltBatches] = S3Fifo(
            cache.settings.decoded_bytes
        )
        self._index_flights: SingleFlight[str, ParquetIndex] = SingleFlight()
        self._part_flights: SingleFlight[_PartId, RebuiltBatches] = SingleFlight()
        self._records_flights: SingleFlight[_GroupId, _Records] = SingleFlight()
        self._ranges = asyncio.Semaphore(cache.settings.catch_up_gets)
        """Ranges that are fetched and decoded at the same time. Each holds its chunks, whatever the cache evicts; the
        pool decodes more slowly than the store delivers."""

    async def batches(self, run: Run, offset: int, leader_epoch: int) -> AsyncIterator[RebuiltBatches]:
        """Yield the partition's batches of each row group that may contain `offset` or later offsets.

        The batches include earlier ones and those of other runs. Raises ObjectMissing, ObjectCorrupt, ...
        """
        index = await self._index(run)
        groups = index.row_groups_for(run.topic_id, run.partition, offset)
        for position, group in enumerate(groups):
            self._read_ahead(run, groups[position + 1 :])
            yield await self._part(run, index, group, leader_epoch)

    async def find_timestamp(self, run: Run, timestamp: int, from_offset: int) -> OffsetAndTimestamp | None:
        """Return the first record at or after both `from_offset` and `timestamp`."""
        index = await self._index(run)
        find = partial(
            first_reaching, timestamp=timestamp, from_offset=from_offset, end_offset=run.end_offset
        )
        for group in index.row_groups_for(run.topic_id, run.partition, from_offset):
            held = index.header.row_groups[group.number]
            batches = range(held.first_batch, held.first_batch + held.batch_count)
            if all(index.batches[batch].max_timestamp < timestamp for batch in batches):
                continue
            part = await self._part(run, index, group, 0)
            for batch in range(bisect_right(part.end_offsets, from_offset), len(part.end_offsets)):
                if part.max_timestamps[batch] < timestamp:
                    continue
                found = await self._found_in(run, part.view(batch, batch + 1), find)
                if found is not None:
                    return found
        return None

    async def close(self) -> None:
        """Cancel and await the requests in progress."""
        await self._part_flights.close()
        await self._records_flights.close()
        await self._index_flights.close()

    async def _index(self, run: Run) -> ParquetIndex:
        held = self._indexes.get(run.key)
        if held is not None:
            return held
        return await self._index_flights.do(run.key, lambda: self._read_index(run))

    async def _read_index(self, run: Run) -> ParquetIndex:
        index: ParquetIndex | int = min(run.index_start, run.object_size)
        crc = run.index_crc
        while isinstance(index, int):
            index = await self._decode_range(
                run, index, run.object_size, partial(_parse_index, size=run.object_size, crc=crc)
            )
            crc = 0  # the CRC covers the bytes from `index_start` on, which were not enough
        self._indexes.put(
            run.key, index, index.footer_bytes + BATCH_IN_MEMORY_BYTES * index.header.batch_count
        )
        return index

    async def _part(
        self, run: Run, index: ParquetIndex, group: RowGroupRange, leader_epoch: int
    ) -> RebuiltBatches:
        """Return the partition's batches of a row group. A group with several partitions is decoded once for all of
        them."""
        partition = TopicPartition(run.topic_id, run.partition)
        group_id = _GroupId(run.key, group.number)
        part_id = _PartId(group_id, partition, leader_epoch)
        held = self._decoded.get(part_id)
        if isinstance(held, RebuiltBatches):
            return held

        async def rebuild() -> RebuiltBatches:
            def from_records(records: _Records) -> RebuiltBatches:
                return _rebuild(
                    index=index,
                    row_group=group.number,
                    records=records,
                    partition=partition,
                    leader_epoch=leader_epoch,
                )

            if index.is_shared(group.number):
                records = await self._shared_records(run, index, group, group_id)
                part = await self._in_pool(run, from_records, records)
            else:
                part = await self._decode_range(
                    run,
                    group.start,
                    group.start + group.length,
                    lambda data: from_records(_records_of(index, group.number, data)),
                )
            self._decoded.put(part_id, part, part.memory_bytes)
            return part

        return await self._part_flights.do(part_id, rebuild)

    async def _shared_records(
        self, run: Run, index: ParquetIndex, group: RowGroupRange, group_id: _GroupId
    ) -> _Records:
        held = self._decoded.get(group_id)
        if isinstance(held, list):
            return held

        async def decode() -> _Records:
            records = await self._decode_range(
                run,
                group.start,
                group.start + group.length,
                lambda data: _records_of(index, group.number, data),
            )
            self._decoded.put(
                group_id, records, sum(map(len, records)) + BATCH_IN_MEMORY_BYTES * len(records)
            )
            return records

        return await self._records_flights.do(group_id, decode)

    async def _in_pool(self, run: Run, decode: Callable[[_Records], T], records: _Records) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, decode, records)
        except InvalidParquetObject as error:
            self._observer.batch_corrupt(run.key, run.start, run.length, is_repaired=False)
            raise ObjectCorrupt(run.key, run.start, run.length, str(error)) from error

    async def _decode_range(self, run: Run, start: int, end: int, decode: Callable[[Buffer], T]) -> T:
        """Decode bytes [start, end) of the object in the pool; if they are corrupt, read them again from the store."""
        async with self._ranges:
            return await self._decode_now(run, start, end, decode)

    async def _decode_now(self, run: Run, start: int, end: int, decode: Callable[[Buffer], T]) -> T:
        loop = asyncio.get_running_loop()
        chunks = self._chunks_of(run, start, end)
        held = await asyncio.gather(*(self._cache.get(chunk, is_catch_up=True) for chunk in chunks))
        try:
            return await loop.run_in_executor(self._executor, decode, _cut(chunks, held, start, end))
        except InvalidParquetObject:
            held = await asyncio.gather(*(self._cache.reread(chunk) for chunk in chunks))
        try:
            sound = await loop.run_in_executor(self._executor, decode, _cut(chunks, held, start, end))
        except InvalidParquetObject as error:
            self._observer.batch_corrupt(run.key, start, end - start, is_repaired=False)
            raise ObjectCorrupt(run.key, start, end - start, str(error)) from error
        self._observer.batch_corrupt(run.key, start, end - start, is_repaired=True)
        return sound

    async def _found_in(
        self, run: Run, batch: memoryview, find: Callable[[Buffer], OffsetAndTimestamp | None]
    ) -> OffsetAndTimestamp | None:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, find, batch)
        except (InvalidRecords, InvalidBatch) as error:
            raise ObjectCorrupt(run.key, run.start, run.length, str(error)) from error

    def _read_ahead(self, run: Run, groups: list[RowGroupRange]) -> None:
        """Fetch the following row groups, up to `read_ahead_chunks` chunks."""
        most = self._cache.settings.read_ahead_chunks
        ahead: list[ChunkRef] = []
        for group in groups:
            if len(ahead) >= most:
                break
            ahead += self._chunks_of(run, group.start, group.start + group.length)
        self._ahead.chunks(ahead[:most])

    def _chunks_of(self, run: Run, start: int, end: int) -> list[ChunkRef]:
        chunk_bytes = self._cache.settings.chunk_bytes
        return chunks_of(run.key, start=start, end=end, object_size=run.object_size, chunk_bytes=chunk_bytes)


def _cut(refs: list[ChunkRef], chunks: list[ChunkBytes], start: int, end: int) -> Buffer:
    views: _Records = []
    for ref, chunk in zip(refs, chunks, strict=True):
        views.extend(chunk.views(max(start - ref.start, 0), min(end - ref.start, ref.length)))
    return views[0] if len(views) == 1 else b"".join(views)


def _parse_index(tail: Buffer, size: int, crc: int) -> ParquetIndex | int:
    """Return the index, or the byte at which the footer begins if the tail does not contain all of it."""
    from tailrace.parquet_object.read import FooterNeedsMore, read_index
    from tailrace.parquet_object.schema import SCHEMA

    try:
        index = read_index(tail, size, crc=crc)
    except FooterNeedsMore as error:
        if error.needed <= len(tail):
            raise
        return size - error.needed
    # Without a CRC (old objects have none), a corrupt footer may still parse. So its claims are checked here: a wrong
    # claim makes the caller read again from the store, and the event loop does not wait for the check.
    try:
        names = index.metadata.schema.to_arrow_schema().names
    except UnicodeDecodeError as error:
        raise InvalidParquetObject(f"a column's name is no text: {error}") from error
    if names != SCHEMA.names:
        raise InvalidParquetObject(f"columns {names}; expected {SCHEMA.names}")
    assert len(index.batches) == index.header.batch_count
    assert len(index.row_groups) == len(index.header.row_groups)
    return index


def _records_of(index: ParquetIndex, row_group: int, data: Buffer) -> _Records:
    from tailrace.parquet_object.read import row_group_records

    return row_group_records(index, row_group, data)


def _rebuild(
    index: ParquetIndex,
    row_group: int,
    records: Sequence[memoryview],
    partition: TopicPartition,
    leader_epoch: int,
) -> RebuiltBatches:
    from tailrace.parquet_object.read import stored_batches

    try:
        stored = stored_batches(index, row_group, records, partition=partition)
    except InvalidBatch as error:
        raise InvalidParquetObject(f"row group {row_group}, {partition}: {error}") from error
    return RebuiltBatches(stored, leader_epoch)
